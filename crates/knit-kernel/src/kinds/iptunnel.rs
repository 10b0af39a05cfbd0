//! ipip, sit and ip6tnl on the wire.

use knit_model::IfName;
use knit_model::link::{Inner, IpTunnel, IpTunnelForm, LinkKind};

use super::tunnel::{Ipv6Fields, Outer, put_end};
use super::{Around, Wanted, WireKind};
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

/// IANA's protocol numbers of what is carried; 0 is all that the form can carry.
const PROTOCOLS: [(Inner, u8); 3] = [(Inner::Any, 0), (Inner::Ipv4, 4), (Inner::Ipv6, 41)];

impl WireKind for IpTunnel {
    const CONFIG: &'static str = "CONFIG_NET_IPIP";
    /// The kernel refuses a second tunnel with the same ends.
    const LINGERS: bool = false;
    const RETOLD: bool = true;

    fn twin(&self) -> Option<String> {
        Some(format!("another {} with the same ends", self.name()))
    }

    fn config(name: &str) -> &'static str {
        match IpTunnelForm::named(name) {
            Some(IpTunnelForm::Sit) => "CONFIG_IPV6_SIT",
            Some(IpTunnelForm::Ip6tnl) => "CONFIG_IPV6_TUNNEL",
            Some(IpTunnelForm::Ipip) | None => Self::CONFIG,
        }
    }

    /// All stated fields, also on a change.
    fn encode(&self, _wanted: Wanted<'_>, around: &Around<'_>, data: &mut Message) {
        if let Some(parent) = around.parent {
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
