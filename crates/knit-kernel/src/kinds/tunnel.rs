//! Encoding shared by GRE and IP tunnels: endpoints, and the fields of the outer IPv6 header.

use std::net::IpAddr;

use knit_model::link::{INHERIT_TOS, MAX_FLOW_LABEL, NumberOrNone};

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

/// Attribute numbers of fields that only tunnels over IPv6 have.
pub(super) struct Ipv6Fields {
    pub(super) encap_limit: u16,
    pub(super) flow_info: u16,
    pub(super) flags: u16,
}

/// The model's values. Over IPv6 the DS field is part of the flow information.
#[derive(Default)]
pub(super) struct Outer {
    pub(super) tos: Option<u8>,
    pub(super) encap_limit: Option<NumberOrNone>,
    pub(super) flow_label: Option<u32>,
}

impl Ipv6Fields {
    pub(super) fn encode(&self, outer: &Outer, data: &mut Message) {
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

    pub(super) fn decode(&self, data: Attributes<'_>) -> Outer {
        let flags = data.first(self.flags).and_then(|flags| flags.u32());
        let has = |flag: u32| flags.is_some_and(|flags| flags & flag != 0);
        let info = data.first(self.flow_info).and_then(|info| info.be32());
        let limit = data.first(self.encap_limit).and_then(|limit| limit.u8());
        let class = info.map(|info| (info >> TRAFFIC_CLASS_SHIFT) as u8);
        Outer {
            tos: if has(USE_INNER_TRAFFIC_CLASS) { Some(INHERIT_TOS) } else { class },
            encap_limit: flags
                .map(|_| NumberOrNone(limit.map(u32::from).filter(|_| !has(IGNORE_ENCAP_LIMIT)))),
            flow_label: info.map(|info| info & MAX_FLOW_LABEL),
        }
    }
}

/// Writes an endpoint that is set.
pub(super) fn put_end(kind: u16, end: Option<IpAddr>, data: &mut Message) {
    if let Some(end) = end.filter(|end| !end.is_unspecified()) {
        data.put_address(kind, end);
    }
}
