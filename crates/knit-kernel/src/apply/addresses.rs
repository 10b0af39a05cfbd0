//! Encodes addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::{Address, Scope, kernel_ids};

use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::AddressHeader;

/// Whether it is the link-local address that the kernel assigns to each new link.
pub(super) fn is_added_by_kernel(address: &Address) -> bool {
    let is_link_local = matches!(address.address, IpNet::V6(net) if net.addr().is_unicast_link_local());
    !address.owned && is_link_local
}

/// Adds an address.
pub(super) fn add(scope: &Scope, address: &Address, index: u32) -> Message {
    let context = format!("add address {address} on {scope}");
    let mut message = message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, context, address, index);
    // Knit allocates each address once: without duplicate address detection it is usable immediately.
    let mut flags = if address.address.addr().is_ipv6() { IFA_F_NODAD } else { 0 };
    if address.noprefixroute {
        flags |= IFA_F_NOPREFIXROUTE;
    }
    message.put_u32(IFA_FLAGS, flags);
    if let Some(broadcast) = address.broadcast {
        message.put_address(IFA_BROADCAST, IpAddr::V4(broadcast));
    }
    if address.deprecated {
        // `struct ifa_cacheinfo`: preferred lifetime 0, valid lifetime infinite, and two read-only timestamps.
        let lifetimes: Vec<u8> =
            [0, u32::MAX, 0, 0].iter().flat_map(|lifetime: &u32| lifetime.to_ne_bytes()).collect();
        message.put_bytes(IFA_CACHEINFO, &lifetimes);
    }
    if address.owned {
        message.put_u8(IFA_PROTO, kernel_ids::PROTOCOL);
    }
    message
}

/// Removes an address.
pub(super) fn remove(scope: &Scope, address: &Address, index: u32) -> Message {
    message(RTM_DELADDR, 0, format!("remove address {address} on {scope}"), address, index)
}

fn message(kind: u16, flags: u16, context: String, address: &Address, index: u32) -> Message {
    let ip = address.address.addr();
    let mut message = Message::new(kind, flags, context);
    message.header(&AddressHeader {
        family: if ip.is_ipv4() { AF_INET } else { AF_INET6 },
        prefix_length: address.address.prefix_len(),
        index,
        ..Default::default()
    });
    message.put_address(IFA_LOCAL, ip).put_address(IFA_ADDRESS, ip);
    message
}
