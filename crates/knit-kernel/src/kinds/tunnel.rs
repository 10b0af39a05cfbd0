//! What GRE and IP tunnels say in the same way: ends, and the fields of IPv6's outer header.

use std::net::IpAddr;

use knit_model::link::{INHERIT_TOS, MAX_FLOW_LABEL, OrNone};

use crate::netlink::{Attributes, Message};

// ip6_tunnel.h, IP6_TNL_F_*
const IGNORE_ENCAP_LIMIT: u32 = 0x1;
const USE_INNER_TRAFFIC_CLASS: u32 = 0x2;

/// Where the traffic class is in the outer header's first word.
const TRAFFIC_CLASS_SHIFT: u32 = 20;

/// The kernel's numbers for fields that only a tunnel over IPv6 has.
pub(super) struct Ipv6Fields {
    pub(super) encap_limit: u16,
    pub(super) flow_info: u16,
    pub(super) flags: u16,
}

/// The model's values of them. Over IPv6 the DS field is part of the flow information.
#[derive(Default)]
pub(super) struct Outer {
    pub(super) tos: Option<u8>,
    pub(super) encap_limit: Option<OrNone>,
    pub(super) flow_label: Option<u32>,
}

impl Ipv6Fields {
    pub(super) fn encode(&self, outer: &Outer, data: &mut Message) {
        let mut flags = 0;
        match outer.encap_limit {
            Some(OrNone(Some(limit))) => {
                data.put_u8(self.encap_limit, u8::try_from(limit).unwrap_or(u8::MAX));
            }
            // Not said at all it would be a limit of 0: every packet would say that it must not be put into a tunnel.
            Some(OrNone(None)) | None => flags |= IGNORE_ENCAP_LIMIT,
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
            encap_limit: flags.map(|_| OrNone(limit.map(u32::from).filter(|_| !has(IGNORE_ENCAP_LIMIT)))),
            flow_label: info.map(|info| info & MAX_FLOW_LABEL),
        }
    }
}

/// Writes an end that is set. One that is not said is not set.
pub(super) fn put_end(kind: u16, end: Option<IpAddr>, data: &mut Message) {
    if let Some(end) = end.filter(|end| !end.is_unspecified()) {
        data.put_address(kind, end);
    }
}
