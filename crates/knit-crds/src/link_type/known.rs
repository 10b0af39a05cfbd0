//! The kinds of links that an entry of a list can have: what each sits on, what it needs, and the link it becomes.

use std::collections::BTreeMap;

use knit_model::link::{
    Dummy, GENEVE_PORT, Geneve, Gre, GreForm, HostDevice, IpTunnel, IpTunnelForm, Ipvlan, IpvlanFlag,
    IpvlanMode, Kind, Macvlan, MacvlanMode, TAP_NOBODY, Tap, VXLAN_PORT, Veth, Vlan, VlanProtocol, Vrf,
    Vxlan, WIREGUARD_PORT, WireGuard,
};
use knit_model::{KeyRef, SecretKey};

use super::details::{Details, LinkMode};

/// What an entry of a kind makes.
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) sits: Sits,
    /// Fields that it cannot be without.
    pub(super) needs: &'static [&'static str],
    /// Fields that it may have besides.
    pub(super) takes: &'static [&'static str],
    /// The link; `None` while something that it needs is missing.
    pub(super) kind: fn(&Details) -> Option<Kind>,
}

/// What `parent` and `master` of an entry mean.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sits {
    /// It has an end on the node, a port of `master`.
    WithHostEnd,
    /// It sits on `parent`.
    OnParent,
    /// It sits on `parent` if there is one; without, the pod's routes decide.
    MaybeOnParent,
    /// It sits on nothing; `master` is a bridge in the pod.
    OnNothing,
}

const fn shape(name: &'static str, sits: Sits, kind: fn(&Details) -> Option<Kind>) -> Shape {
    Shape { name, sits, needs: &[], takes: &[], kind }
}

impl Shape {
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

/// The kinds, by name: one line each.
pub(super) const KNOWN: &[Shape] = &[
    shape("veth", Sits::WithHostEnd, |_| Some(Kind::Veth(Veth::default()))).takes(&["vlan"]),
    shape("macvlan", Sits::OnParent, macvlan).takes(&["mode"]),
    shape("ipvlan", Sits::OnParent, ipvlan).takes(&["mode"]),
    shape("vlan", Sits::OnParent, |details| Some(Kind::Vlan(plain_vlan(details.vlan_id?))))
        .needs(&["vlanID"]),
    shape("host-device", Sits::OnParent, |_| Some(Kind::HostDevice(HostDevice::default()))),
    shape("dummy", Sits::OnNothing, |_| Some(Kind::Dummy(Dummy {}))),
    shape("tap", Sits::OnNothing, |_| Some(Kind::Tap(root_tap()))),
    shape("vrf", Sits::OnNothing, |details| Some(Kind::Vrf(Vrf { table: details.table? }))).needs(&["table"]),
    shape("vxlan", Sits::MaybeOnParent, vxlan).needs(&["vni"]).takes(&["remote", "local"]),
    shape("geneve", Sits::OnNothing, geneve).needs(&["vni", "remote"]),
    shape("gre", Sits::MaybeOnParent, |details| gre(details, false)).takes(&["remote", "local"]),
    shape("gretap", Sits::MaybeOnParent, |details| gre(details, true)).takes(&["remote", "local"]),
    shape("ipip", Sits::MaybeOnParent, |details| ip_tunnel(details, IpTunnelForm::Ipip))
        .takes(&["remote", "local"]),
    shape("sit", Sits::MaybeOnParent, |details| ip_tunnel(details, IpTunnelForm::Sit))
        .takes(&["remote", "local"]),
    shape("ip6tnl", Sits::MaybeOnParent, |details| ip_tunnel(details, IpTunnelForm::Ip6tnl))
        .needs(&["remote", "local"]),
    shape("wireguard", Sits::OnNothing, |_| Some(Kind::WireGuard(lone_wireguard()))),
];

/// A VLAN with everything but its number as it usually is.
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

/// A tap that root alone may open.
fn root_tap() -> Tap {
    Tap { user: Some(TAP_NOBODY), user_group: Some(TAP_NOBODY), multi_queue: Some(false), vnet_hdr: None }
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

/// A WireGuard with a key of the node's own and no peer yet: a WireGuard object says those.
fn lone_wireguard() -> WireGuard {
    WireGuard {
        private_key: Some(SecretKey::from(KeyRef::Made { id: String::new() })),
        listen_port: Some(WIREGUARD_PORT),
        fwmark: Some(0),
        peers: Some(BTreeMap::new()),
    }
}
