//! Identifiers that Knit reserves in the kernel: route protocol, link groups, tables, rule priorities, packet marks and
//! link names.
//!
//! An object that carries one of the ownership marks was created by Knit and may be removed by Knit; no other object is
//! ever removed.

use std::net::Ipv4Addr;

/// Protocol number of Knit's routes, rules, addresses and neighbours (`RTA_PROTOCOL`, `FRA_PROTOCOL`, `IFA_PROTO`,
/// `NDA_PROTOCOL`). Not used by the kernel, iproute2's `rt_protos` or a known routing daemon.
pub const PROTOCOL: u8 = 75;

/// Link group of both ends of a new link. It marks ownership until the alternative name is set, because the kernel accepts
/// a group, but no alternative name, in the message that creates a link.
pub const NEW_LINK_GROUP: u32 = 0x6b6e_6974;

/// Link group of links whose deletion is deferred; all of them are deleted together.
pub const DEFERRED_DELETE_GROUP: u32 = 0x6b6e_6975;

/// Prefix of the alternative name that marks a link as owned by Knit; the owner id follows.
pub const ALTNAME_PREFIX: &str = "knit-";

/// Handle of the queueing discipline that limits a link, `7500:`. One with another handle is not Knit's.
pub const LIMIT_HANDLE: u32 = 0x7500_0000;

/// Host routing table of the connected routes of Knit's bridges and of node routes.
pub const HOST_TABLE: u32 = 7_500;

/// Priority of Knit's policy rules on the host: after the local table, well before the main table.
pub const HOST_RULE_PRIORITY: u32 = 7_500;

/// Base of the host routing tables for egress through another node; the number of the gateway is added.
pub const EGRESS_TABLE_BASE: u32 = 7_600;

/// Priority of the rules that select egress tables: after all routes to pods and nodes.
pub const EGRESS_RULE_PRIORITY: u32 = 7_501;

/// Bits of the packet mark that hold the number of the egress gateway. kube-proxy uses other bits.
pub const EGRESS_MARK_MASK: u32 = 0xff00_0000;

/// Shift of the gateway number in the packet mark.
pub const EGRESS_MARK_SHIFT: u32 = 24;

/// Bit of the packet mark of connections to Services that are masqueraded. It is set between translation and masquerading,
/// and never on packets that leave the node. kube-proxy uses another bit.
pub const SERVICE_MARK: u32 = 0x0020_0000;

/// Host link of VXLAN tunnels to other nodes over IPv4.
pub const TUNNEL_LINK_IPV4: &str = "knitvx4";

/// Host link of VXLAN tunnels to other nodes over IPv6.
pub const TUNNEL_LINK_IPV6: &str = "knitvx6";

/// Address of the VXLAN links on every node. It is never used as source or destination.
pub const TUNNEL_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 75, 1);

/// Host link of WireGuard tunnels to other nodes.
pub const WIREGUARD_LINK: &str = "knitwg0";

/// Whether a host routing table contains node routes or egress routes.
pub fn is_node_route_table(table: u32) -> bool {
    table == HOST_TABLE || (EGRESS_TABLE_BASE + 1..=EGRESS_TABLE_BASE + 255).contains(&table)
}
