//! Encoding shared by GRE and IP tunnels: endpoints and the fields of the outer header.

use std::net::IpAddr;

use knit_model::IfName;
use knit_model::link::{INHERIT_TOS, MAX_FLOW_LABEL, NumberOrNone, TunnelFields};

use super::RelatedLinks;
use crate::netlink::{Attributes, Message};

// ip6_tunnel.h, IP6_TNL_F_*
const IGNORE_ENCAP_LIMIT: u32 = 0x1;
const USE_INNER_TRAFFIC_CLASS: u32 = 0x2;

/// The position of the traffic class in the first word of the IPv6 header.
const TRAFFIC_CLASS_SHIFT: u32 = 20;

/// Documentation addresses (RFC 5737, RFC 3849) as endpoints of probed tunnels.
pub(super) const PROBE_ENDS: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
const PROBE_ENDS6: [[u16; 8]; 2] = [[0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2]];

/// Writes the endpoints of a probed tunnel over IPv4.
pub(super) fn put_probe_ends(data: &mut Message, local: u16, remote: u16) {
    let [near, far] = PROBE_ENDS.map(IpAddr::from);
    data.put_address(local, near).put_address(remote, far);
}

/// Writes the endpoints of a probed tunnel over IPv6.
pub(super) fn put_probe_ends6(data: &mut Message, local: u16, remote: u16) {
    let [near, far] = PROBE_ENDS6.map(IpAddr::from);
    data.put_address(local, near).put_address(remote, far);
}

/// Attribute numbers of the fields that GRE and IP tunnels share.
pub(super) struct TunnelAttributes {
    pub(super) link: u16,
    pub(super) local: u16,
    pub(super) remote: u16,
    pub(super) ttl: u16,
    /// Over IPv4 only: over IPv6 the DS field is part of the flow information.
    pub(super) tos: u16,
    /// Over IPv4 only.
    pub(super) pmtudisc: u16,
    /// Over IPv6 only.
    pub(super) encap_limit: u16,
    /// Over IPv6 only.
    pub(super) flow_info: u16,
    /// Over IPv6 only.
    pub(super) flags: u16,
    pub(super) fwmark: u16,
}

impl TunnelAttributes {
    pub(super) fn encode(
        &self,
        outer: &TunnelFields,
        ipv6: bool,
        related: &RelatedLinks<'_>,
        data: &mut Message,
    ) {
        if let Some(parent) = related.parent {
            data.put_u32(self.link, parent);
        }
        put_end(self.local, outer.local, data);
        put_end(self.remote, outer.remote, data);
        if let Some(ttl) = outer.ttl {
            data.put_u8(self.ttl, ttl);
        }
        if let Some(mark) = outer.fwmark {
            data.put_u32(self.fwmark, mark);
        }
        if ipv6 {
            self.encode_ipv6(outer, data);
            return;
        }
        if let Some(tos) = outer.tos {
            data.put_u8(self.tos, tos);
        }
        if let Some(on) = outer.pmtudisc {
            data.put_u8(self.pmtudisc, on.into());
        }
    }

    fn encode_ipv6(&self, outer: &TunnelFields, data: &mut Message) {
        let mut flags = 0;
        match outer.encap_limit {
            Some(NumberOrNone(Some(limit))) => {
                data.put_u8(self.encap_limit, u8::try_from(limit).unwrap_or(u8::MAX));
            }
            // Without the flag the limit would be 0, which forbids further encapsulation of every packet.
            Some(NumberOrNone(None)) | None => flags |= IGNORE_ENCAP_LIMIT,
        }
        let traffic_class = match outer.tos {
            Some(INHERIT_TOS) => {
                flags |= USE_INNER_TRAFFIC_CLASS;
                0
            }
            tos => u32::from(tos.unwrap_or(0)),
        };
        let label = outer.flow_label.unwrap_or(0) & MAX_FLOW_LABEL;
        data.put_be32(self.flow_info, traffic_class << TRAFFIC_CLASS_SHIFT | label);
        data.put_u32(self.flags, flags);
    }

    pub(super) fn decode(&self, data: Attributes<'_>, ipv6: bool, parent: Option<IfName>) -> TunnelFields {
        let byte = |kind| data.first(kind).and_then(|value| value.u8());
        let fields = TunnelFields {
            remote: data.first(self.remote).and_then(|end| end.address()),
            local: data.first(self.local).and_then(|end| end.address()),
            parent,
            ttl: byte(self.ttl),
            fwmark: data.first(self.fwmark).and_then(|mark| mark.u32()),
            ..TunnelFields::default()
        };
        if !ipv6 {
            let pmtudisc = byte(self.pmtudisc).map(|on| on != 0);
            return TunnelFields { tos: byte(self.tos), pmtudisc, ..fields };
        }
        let flags = data.first(self.flags).and_then(|flags| flags.u32());
        let has = |flag: u32| flags.is_some_and(|flags| flags & flag != 0);
        let info = data.first(self.flow_info).and_then(|info| info.be32());
        let limit = byte(self.encap_limit);
        let class = info.map(|info| (info >> TRAFFIC_CLASS_SHIFT) as u8);
        TunnelFields {
            tos: if has(USE_INNER_TRAFFIC_CLASS) { Some(INHERIT_TOS) } else { class },
            encap_limit: flags
                .map(|_| NumberOrNone(limit.map(u32::from).filter(|_| !has(IGNORE_ENCAP_LIMIT)))),
            flow_label: info.map(|info| info & MAX_FLOW_LABEL),
            ..fields
        }
    }

    pub(super) fn parent_index(&self, data: Attributes<'_>) -> Option<u32> {
        data.first(self.link).and_then(|link| link.u32()).filter(|index| *index != 0)
    }
}

/// Writes an endpoint that is set.
fn put_end(kind: u16, end: Option<IpAddr>, data: &mut Message) {
    if let Some(end) = end.filter(|end| !end.is_unspecified()) {
        data.put_address(kind, end);
    }
}
