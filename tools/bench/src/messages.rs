//! The netlink messages of an attach, reduced to the minimum.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use knit_kernel::netlink::constants::*;
use knit_kernel::netlink::header::{AddressHeader, LinkHeader, RouteHeader};
use knit_kernel::{Message, Netns};

/// The link group of all links of a benchmark, by which they are deleted together.
pub const GROUP: u32 = 4711;

/// Creates a bridge and sets it up.
pub fn bridge(name: &str) -> Message {
    let mut message = new_link(format!("add bridge {name}"));
    message
        .header(&LinkHeader { flags: IFF_UP, change: IFF_UP, ..Default::default() })
        .put_str(IFLA_IFNAME, name);
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, "bridge");
    });
    message
}

/// The number of queues of a new link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Queues {
    /// The kernel's default: one per CPU, of which a veth uses one.
    Default,
    One,
}

/// Creates a veth pair; with a namespace, the peer is created there.
pub fn veth(name: &str, peer_name: &str, peer_netns: Option<&Netns>, queues: Queues) -> Message {
    let put_queues = |message: &mut Message| {
        if queues == Queues::One {
            message.put_u32(IFLA_NUM_TX_QUEUES, 1).put_u32(IFLA_NUM_RX_QUEUES, 1);
        }
    };
    let mut message = new_link(format!("add veth {name}"));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name).put_u32(IFLA_GROUP, GROUP);
    put_queues(&mut message);
    message.nest(IFLA_LINKINFO, |info| {
        info.put_str(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
            data.nest(VETH_INFO_PEER, |peer| {
                peer.header(&LinkHeader::default()).put_str(IFLA_IFNAME, peer_name);
                put_queues(peer);
                if let Some(netns) = peer_netns {
                    peer.put_u32(IFLA_NET_NS_FD, netns.as_fd().as_raw_fd() as u32);
                }
            });
        });
    });
    message
}

/// Adds an alternative name to a link, which identifies its owner.
pub fn add_altname(name: &str, alternative: &str) -> Message {
    let mut message = Message::new(RTM_NEWLINKPROP, 0, format!("add an alternative name to link {name}"));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name);
    message.nest(IFLA_PROP_LIST, |list| {
        list.put_str(IFLA_ALT_IFNAME, alternative);
    });
    message
}

/// Adds a link to a bridge and sets it up.
pub fn enslave(name: &str, bridge: i32) -> Message {
    let mut message = up(name);
    message.put_u32(IFLA_MASTER, bridge as u32);
    message
}

/// Sets a link up.
pub fn up(name: &str) -> Message {
    let mut message = Message::new(RTM_NEWLINK, 0, format!("set link {name} up"));
    message
        .header(&LinkHeader { flags: IFF_UP, change: IFF_UP, ..Default::default() })
        .put_str(IFLA_IFNAME, name);
    message
}

/// Moves a link into a namespace, under a new name.
pub fn move_to(index: i32, netns: &Netns, new_name: &str) -> Message {
    let mut message = Message::new(RTM_NEWLINK, 0, format!("move a link and rename it to {new_name}"));
    message.header(&LinkHeader { index, ..Default::default() }).put_str(IFLA_IFNAME, new_name);
    message.put_u32(IFLA_NET_NS_FD, netns.as_fd().as_raw_fd() as u32);
    message
}

/// Deletes a link.
pub fn delete(name: &str) -> Message {
    let mut message = Message::new(RTM_DELLINK, 0, format!("delete link {name}"));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name);
    message
}

/// Deletes every link of the group.
pub fn delete_group() -> Message {
    let mut message = Message::new(RTM_DELLINK, 0, format!("delete links of group {GROUP}"));
    message.header(&LinkHeader::default()).put_u32(IFLA_GROUP, GROUP);
    message
}

/// Reads a link: the smallest possible request.
pub fn get(name: &str) -> Message {
    let mut message = Message::new(RTM_GETLINK, 0, format!("read link {name}"));
    message.header(&LinkHeader::default()).put_str(IFLA_IFNAME, name);
    message
}

/// Adds an address to a link, with `IFA_F_*` flags.
pub fn address(index: i32, ip: IpAddr, prefix_length: u8, flags: u32) -> Message {
    let mut message = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, format!("add address {ip}"));
    let family = family(ip);
    message.header(&AddressHeader { family, prefix_length, index: index as u32, ..Default::default() });
    message.put_address(IFA_LOCAL, ip).put_address(IFA_ADDRESS, ip).put_u32(IFA_FLAGS, flags);
    message
}

/// Adds a default route.
pub fn default_route(index: i32, gateway: IpAddr) -> Message {
    let mut message =
        Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, format!("add route via {gateway}"));
    message.header(&RouteHeader {
        family: family(gateway),
        table: RT_TABLE_MAIN,
        protocol: RTPROT_STATIC,
        kind: RTN_UNICAST,
        ..Default::default()
    });
    message.put_address(RTA_GATEWAY, gateway).put_u32(RTA_OIF, index as u32);
    message
}

fn new_link(context: String) -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, context)
}

fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { AF_INET } else { AF_INET6 }
}
