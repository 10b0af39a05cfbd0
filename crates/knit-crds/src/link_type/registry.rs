//! The link types of list entries: the lower link, the fields and the model's link of each.

use std::collections::BTreeMap;

use knit_model::link::{
    Dummy, GENEVE_PORT, Geneve, Gre, GreForm, HostDevice, IpTunnel, IpTunnelForm, Ipvlan, IpvlanFlag,
    IpvlanMode, Kind, Macvlan, MacvlanMode, TAP_NO_OWNER, Tap, VXLAN_PORT, Veth, Vlan, VlanProtocol, Vrf,
    Vxlan, WIREGUARD_PORT, WireGuard,
};
use knit_model::{KeyRef, SecretKey};

use super::details::{Details, LinkMode};

/// One link type.
pub(super) struct LinkTypeInfo {
    pub(super) name: &'static str,
    pub(super) lower_link: LowerLink,
    /// Required fields.
    pub(super) needs: &'static [&'static str],
    /// Optional fields.
    pub(super) takes: &'static [&'static str],
    /// The link; `None` while a required field is missing.
    pub(super) kind: fn(&Details) -> Option<Kind>,
}

/// The meaning of `parent` and `master` of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LowerLink {
    /// No lower link; the host end is a port of `master` on the node.
    HostEnd,
    /// `parent` is the lower link.
    Required,
    /// `parent` is the lower link if it is set; otherwise the pod's routes determine the interface.
    Optional,
    /// No lower link; `master` is a bridge in the pod.
    None,
}

const fn link_type(
    name: &'static str,
    lower_link: LowerLink,
    kind: fn(&Details) -> Option<Kind>,
) -> LinkTypeInfo {
    LinkTypeInfo { name, lower_link, needs: &[], takes: &[], kind }
}

impl LinkTypeInfo {
    const fn needs(self, fields: &'static [&'static str]) -> Self {
        Self { needs: fields, ..self }
    }

    const fn takes(self, fields: &'static [&'static str]) -> Self {
        Self { takes: fields, ..self }
    }

    pub(super) fn has_field(&self, field: &str) -> bool {
        self.needs.contains(&field) || self.takes.contains(&field)
    }
}

/// The link types, one line each.
pub(super) const LINK_TYPES: &[LinkTypeInfo] = &[
    link_type("veth", LowerLink::HostEnd, |_| Some(Kind::Veth(Veth::default()))).takes(&["vlan"]),
    link_type("macvlan", LowerLink::Required, macvlan).takes(&["mode"]),
    link_type("ipvlan", LowerLink::Required, ipvlan).takes(&["mode"]),
    link_type("vlan", LowerLink::Required, |details| Some(Kind::Vlan(plain_vlan(details.vlan_id?))))
        .needs(&["vlanID"]),
    link_type("host-device", LowerLink::Required, |_| Some(Kind::HostDevice(HostDevice::default()))),
    link_type("dummy", LowerLink::None, |_| Some(Kind::Dummy(Dummy {}))),
    link_type("tap", LowerLink::None, |_| Some(Kind::Tap(root_tap()))),
    link_type("vrf", LowerLink::None, |details| Some(Kind::Vrf(Vrf { table: details.table? })))
        .needs(&["table"]),
    link_type("vxlan", LowerLink::Optional, vxlan).needs(&["vni"]).takes(&["remote", "local"]),
    link_type("geneve", LowerLink::None, geneve).needs(&["vni", "remote"]),
    link_type("gre", LowerLink::Optional, |details| gre(details, false)).takes(&["remote", "local"]),
    link_type("gretap", LowerLink::Optional, |details| gre(details, true)).takes(&["remote", "local"]),
    link_type("ipip", LowerLink::Optional, |details| ip_tunnel(details, IpTunnelForm::Ipip))
        .takes(&["remote", "local"]),
    link_type("sit", LowerLink::Optional, |details| ip_tunnel(details, IpTunnelForm::Sit))
        .takes(&["remote", "local"]),
    link_type("ip6tnl", LowerLink::Optional, |details| ip_tunnel(details, IpTunnelForm::Ip6tnl))
        .needs(&["remote", "local"]),
    link_type("wireguard", LowerLink::None, |_| Some(Kind::WireGuard(default_wireguard()))),
];

/// A VLAN with the default settings.
pub(crate) fn plain_vlan(id: u16) -> Vlan {
    Vlan {
        parent: None,
        id,
        protocol: Some(VlanProtocol::Dot1q),
        reorder_header: Some(true),
        gvrp: Some(false),
        mvrp: Some(false),
        loose_binding: Some(false),
        ingress_qos: Some(Vec::new()),
        egress_qos: Some(Vec::new()),
    }
}

fn macvlan(details: &Details) -> Option<Kind> {
    let mode = match details.mode.unwrap_or(LinkMode::Bridge) {
        LinkMode::Bridge => MacvlanMode::Bridge,
        LinkMode::Private => MacvlanMode::Private,
        LinkMode::Vepa => MacvlanMode::Vepa,
        LinkMode::Passthru => MacvlanMode::Passthru,
        LinkMode::L2 | LinkMode::L3 | LinkMode::L3s => return None,
    };
    Some(Kind::Macvlan(Macvlan { parent: None, mode: Some(mode) }))
}

fn ipvlan(details: &Details) -> Option<Kind> {
    let mode = match details.mode.unwrap_or(LinkMode::L2) {
        LinkMode::L2 => IpvlanMode::L2,
        LinkMode::L3 => IpvlanMode::L3,
        LinkMode::L3s => IpvlanMode::L3s,
        _ => return None,
    };
    Some(Kind::Ipvlan(Ipvlan { parent: None, mode: Some(mode), flag: Some(IpvlanFlag::Bridge) }))
}

/// A tap that only root may open.
fn root_tap() -> Tap {
    Tap { user: Some(TAP_NO_OWNER), user_group: Some(TAP_NO_OWNER), multi_queue: Some(false), vnet_hdr: None }
}

fn vxlan(details: &Details) -> Option<Kind> {
    Some(Kind::Vxlan(Vxlan {
        vni: details.vni?,
        remote: details.remote_address(),
        local: details.local,
        port: Some(VXLAN_PORT),
        parent: None,
        ttl: None,
        learning: None,
        fdb_ageing: None,
        fdb: None,
        flood: None,
    }))
}

fn geneve(details: &Details) -> Option<Kind> {
    let (vni, remote) = (details.vni?, details.remote_address());
    details.remote.as_ref()?;
    Some(Kind::Geneve(Geneve { vni, remote, port: Some(GENEVE_PORT), ..Geneve::default() }))
}

fn gre(details: &Details, ethernet: bool) -> Option<Kind> {
    let (remote, local) = (details.remote_address(), details.local);
    let ipv6 = remote.or(local).is_some_and(|end| end.is_ipv6());
    Some(Kind::Gre(Gre { form: GreForm::new(ethernet, ipv6), remote, local, ..Gre::default() }))
}

fn ip_tunnel(details: &Details, form: IpTunnelForm) -> Option<Kind> {
    let (remote, local) = (details.remote_address(), details.local);
    Some(Kind::IpTunnel(IpTunnel { form, remote, local, ..IpTunnel::default() }))
}

/// A WireGuard interface with a generated key and no peers, which a WireGuard object adds.
fn default_wireguard() -> WireGuard {
    WireGuard {
        private_key: Some(SecretKey::from_source(KeyRef::Generated { id: String::new() })),
        listen_port: Some(WIREGUARD_PORT),
        fwmark: Some(0),
        peers: Some(BTreeMap::new()),
    }
}
