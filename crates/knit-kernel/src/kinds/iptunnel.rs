//! Encodes ipip, sit and ip6tnl tunnels.

use knit_model::IfName;
use knit_model::link::{InnerProtocol, IpTunnel, IpTunnelForm, LinkKind};

use super::tunnel::{Ipv6Fields, Outer, put_end, put_probe_ends, put_probe_ends6};
use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_tunnel.h, IFLA_IPTUN_*
const LINK: u16 = 1;
const LOCAL: u16 = 2;
const REMOTE: u16 = 3;
const TTL: u16 = 4;
const TOS: u16 = 5;
const PROTO: u16 = 9;
const PMTUDISC: u16 = 10;
const FWMARK: u16 = 20;
const IPV6: Ipv6Fields = Ipv6Fields { encap_limit: 6, flow_info: 7, flags: 8 };

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
        if let Some(parent) = related.parent {
            data.put_u32(LINK, parent);
        }
        put_end(LOCAL, self.local, data);
        put_end(REMOTE, self.remote, data);
        if let Some((_, protocol)) = PROTOCOLS.iter().find(|(inner, _)| Some(*inner) == self.inner) {
            data.put_u8(PROTO, *protocol);
        }
        if let Some(ttl) = self.ttl {
            data.put_u8(TTL, ttl);
        }
        if let Some(mark) = self.fwmark {
            data.put_u32(FWMARK, mark);
        }
        if self.form.is_ipv6() {
            let outer = Outer { tos: self.tos, encap_limit: self.encap_limit, flow_label: self.flow_label };
            IPV6.encode(&outer, data);
            return;
        }
        if let Some(tos) = self.tos {
            data.put_u8(TOS, tos);
        }
        if let Some(on) = self.pmtudisc {
            data.put_u8(PMTUDISC, on.into());
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        Self::decode_as("ipip", data, parent)
    }

    fn decode_as(name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let form = IpTunnelForm::named(name).unwrap_or_default();
        let byte = |kind| data.first(kind).and_then(|value| value.u8());
        let protocol = byte(PROTO);
        let outer = match form.is_ipv6() {
            true => IPV6.decode(data),
            false => Outer { tos: byte(TOS), ..Outer::default() },
        };
        Self {
            form,
            inner: PROTOCOLS.iter().find(|(_, other)| Some(*other) == protocol).map(|(inner, _)| *inner),
            remote: data.first(REMOTE).and_then(|end| end.address()),
            local: data.first(LOCAL).and_then(|end| end.address()),
            parent,
            ttl: byte(TTL),
            tos: outer.tos,
            pmtudisc: byte(PMTUDISC).map(|on| on != 0).filter(|_| !form.is_ipv6()),
            encap_limit: outer.encap_limit,
            flow_label: outer.flow_label,
            fwmark: data.first(FWMARK).and_then(|mark| mark.u32()),
        }
    }

    fn parent_index(data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        data.first(LINK).and_then(|link| link.u32()).filter(|index| *index != 0)
    }
}
