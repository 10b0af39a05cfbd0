//! Encodes ipip, sit and ip6tnl tunnels.

use knit_model::IfName;
use knit_model::link::{InnerProtocol, IpTunnel, IpTunnelForm, LinkKind};

use super::tunnel::{TunnelAttributes, put_probe_ends, put_probe_ends6};
use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_tunnel.h, IFLA_IPTUN_*
const LOCAL: u16 = 2;
const REMOTE: u16 = 3;
const PROTO: u16 = 9;
const OUTER: TunnelAttributes = TunnelAttributes {
    link: 1,
    local: LOCAL,
    remote: REMOTE,
    ttl: 4,
    tos: 5,
    pmtudisc: 10,
    encap_limit: 6,
    flow_info: 7,
    flags: 8,
    fwmark: 20,
};

/// IANA protocol numbers of the payload; 0 is everything that the form supports.
const PROTOCOLS: [(InnerProtocol, u8); 3] =
    [(InnerProtocol::Any, 0), (InnerProtocol::Ipv4, 4), (InnerProtocol::Ipv6, 41)];

impl WireKind for IpTunnel {
    const CONFIG: &'static str = "CONFIG_NET_IPIP";
    const PROBES: &'static [Probe] = &[
        Probe::tunnel("ipip", "IP in IP", Self::CONFIG, |scratch| {
            scratch.link("ipip", |data| put_probe_ends(data, LOCAL, REMOTE))
        })
        .module("ipip")
        .makes_devices()
        .needed_for("tenant tunnels"),
        Probe::tunnel("sit", "IPv6 in IPv4 (sit)", "CONFIG_IPV6_SIT", |scratch| {
            scratch.link("sit", |data| put_probe_ends(data, LOCAL, REMOTE))
        })
        .module("sit")
        .makes_devices()
        .needed_for("tenant tunnels"),
        Probe::tunnel("ip6tnl", "IP in IPv6 (ip6tnl)", "CONFIG_IPV6_TUNNEL", |scratch| {
            scratch.link("ip6tnl", |data| put_probe_ends6(data, LOCAL, REMOTE))
        })
        .module("ip6_tunnel")
        .makes_devices()
        .needed_for("tenant tunnels"),
    ];
    /// The kernel rejects a second tunnel with the same endpoints.
    const ALLOWS_DEFERRED_DELETE: bool = false;
    const RESETS_OMITTED_FIELDS: bool = true;

    fn conflicting_link(&self) -> Option<String> {
        Some(format!("another {} with the same endpoints", self.name()))
    }

    fn config(name: &str) -> &'static str {
        match IpTunnelForm::named(name) {
            Some(IpTunnelForm::Sit) => "CONFIG_IPV6_SIT",
            Some(IpTunnelForm::Ip6tnl) => "CONFIG_IPV6_TUNNEL",
            Some(IpTunnelForm::Ipip) | None => Self::CONFIG,
        }
    }

    /// Writes all fields, also for a change.
    fn encode(&self, _selection: FieldSelection<'_>, related: &RelatedLinks<'_>, data: &mut Message) {
        OUTER.encode(&self.outer, self.form.is_ipv6(), related, data);
        if let Some((_, protocol)) = PROTOCOLS.iter().find(|(inner, _)| Some(*inner) == self.inner) {
            data.put_u8(PROTO, *protocol);
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        Self::decode_as("ipip", data, parent)
    }

    fn decode_as(name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let form = IpTunnelForm::named(name).unwrap_or_default();
        let protocol = data.first(PROTO).and_then(|protocol| protocol.u8());
        let inner = PROTOCOLS.iter().find(|(_, other)| Some(*other) == protocol).map(|(inner, _)| *inner);
        Self { form, inner, outer: OUTER.decode(data, form.is_ipv6(), parent) }
    }

    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        OUTER.parent_index(data)
    }
}
