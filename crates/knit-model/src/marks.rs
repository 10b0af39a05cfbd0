//! Knit's own numbers and names in the kernel: the one place where they are written down.
//!
//! Whatever carries one of these marks was made by Knit and may be removed by it; nothing else ever is.

use std::net::Ipv4Addr;

/// Protocol number on routes, rules, addresses and neighbours (`RTA_PROTOCOL`, `FRA_PROTOCOL`, `IFA_PROTO`,
/// `NDA_PROTOCOL`). Not used by the kernel, iproute2's list or a known routing daemon.
pub const PROTOCOL: u8 = 75;

/// The link group that both ends of a link are born in. It is the mark until the alternative name is set, because the
/// kernel takes a group, but no alternative name, in the message that makes a link.
pub const BIRTH_GROUP: u32 = 0x6b6e_6974;

/// Links on their way out are moved to this group, then deleted together.
pub const REAP_GROUP: u32 = 0x6b6e_6975;

/// Alternative names with this prefix are Knit's mark on a link; the owner's id follows.
pub const ALTNAME_PREFIX: &str = "knit-";

/// The handle of the queueing discipline that limits a link, `7500:`. One with another handle is somebody else's.
pub const LIMIT_HANDLE: u32 = 0x7500_0000;

/// The host's routing table for the connected routes of Knit's bridges.
pub const HOST_TABLE: u32 = 7_500;

/// Priority of Knit's rules on the host: after the local table's, well before the main table's.
pub const HOST_RULE_PRIORITY: u32 = 7_500;

/// The first of the host's tables for ways out of the cluster through another node: one for each gateway, by its number.
pub const EGRESS_TABLES: u32 = 7_600;

/// Priority of the rules that lead to those tables: after all ways to pods and nodes.
pub const EGRESS_RULE_PRIORITY: u32 = 7_501;

/// The bits of a packet's mark that tell the gateway's number. kube-proxy has others.
pub const EGRESS_MASK: u32 = 0xff00_0000;

/// How far the number is shifted in those bits.
pub const EGRESS_SHIFT: u32 = 24;

/// The host's link for tunnels to other nodes over IPv4.
pub const TUNNEL_IPV4: &str = "knitvx4";

/// The same over IPv6.
pub const TUNNEL_IPV6: &str = "knitvx6";

/// The address of those links on every node. Nobody speaks from it or to it.
pub const TUNNEL_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 75, 1);

/// The host's link for encrypted ways to other nodes.
pub const TUNNEL_WIREGUARD: &str = "knitwg0";

/// Whether a table of the host is for ways to other nodes.
pub fn is_of_ways(table: u32) -> bool {
    table == HOST_TABLE || (EGRESS_TABLES + 1..=EGRESS_TABLES + 255).contains(&table)
}
