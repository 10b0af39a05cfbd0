//! Constants of the kernel's netlink interface, under the kernel's names.
//!
//! They are part of the kernel's ABI and never change. libc has some of them, in five integer types; here each has
//! the type of its field.
#![allow(
    missing_docs,
    reason = "the names are the kernel's own: see include/uapi/linux, headers named below"
)]

// netlink.h
pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;
pub const NLM_F_REQUEST: u16 = 0x001;
pub const NLM_F_ACK: u16 = 0x004;
pub const NLM_F_ECHO: u16 = 0x008;
pub const NLM_F_DUMP_INTR: u16 = 0x010;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_REPLACE: u16 = 0x100;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_CREATE: u16 = 0x400;
pub const NLM_F_APPEND: u16 = 0x800;
/// In a reply: the request is not repeated in full.
pub const NLM_F_CAPPED: u16 = 0x100;
/// In a reply: attributes follow.
pub const NLM_F_ACK_TLVS: u16 = 0x200;
pub const NLA_F_NESTED: u16 = 0x8000;
pub const NLA_F_NET_BYTEORDER: u16 = 0x4000;
pub const NLMSGERR_ATTR_MSG: u16 = 1;
pub const NLMSGERR_ATTR_OFFS: u16 = 2;

// rtnetlink.h
pub const RTM_NEWLINK: u16 = 16;
pub const RTM_DELLINK: u16 = 17;
pub const RTM_GETLINK: u16 = 18;
pub const RTM_SETLINK: u16 = 19;
pub const RTM_NEWADDR: u16 = 20;
pub const RTM_DELADDR: u16 = 21;
pub const RTM_GETADDR: u16 = 22;
pub const RTM_NEWROUTE: u16 = 24;
pub const RTM_DELROUTE: u16 = 25;
pub const RTM_GETROUTE: u16 = 26;
pub const RTM_NEWNEIGH: u16 = 28;
pub const RTM_DELNEIGH: u16 = 29;
pub const RTM_GETNEIGH: u16 = 30;
pub const RTM_NEWRULE: u16 = 32;
pub const RTM_DELRULE: u16 = 33;
pub const RTM_GETRULE: u16 = 34;
pub const RTM_NEWQDISC: u16 = 36;
pub const RTM_DELQDISC: u16 = 37;
pub const RTM_GETQDISC: u16 = 38;
pub const RTM_NEWTFILTER: u16 = 44;
pub const RTM_GETNSID: u16 = 90;
pub const RTM_NEWLINKPROP: u16 = 108;
pub const RTM_DELLINKPROP: u16 = 109;
pub const RTM_NEWVLAN: u16 = 112;
pub const RTM_DELVLAN: u16 = 113;
pub const RTM_GETVLAN: u16 = 114;

pub const RTNLGRP_LINK: u32 = 1;
pub const RTNLGRP_IPV4_IFADDR: u32 = 5;

pub const RTA_DST: u16 = 1;
pub const RTA_OIF: u16 = 4;
pub const RTA_GATEWAY: u16 = 5;
pub const RTA_PRIORITY: u16 = 6;
pub const RTA_PREFSRC: u16 = 7;
pub const RTA_METRICS: u16 = 8;
pub const RTA_MULTIPATH: u16 = 9;
pub const RTA_TABLE: u16 = 15;
pub const RTA_VIA: u16 = 18;
pub const RTA_ENCAP_TYPE: u16 = 21;
pub const RTA_ENCAP: u16 = 22;
pub const RTAX_MTU: u16 = 2;
pub const RTNH_F_ONLINK: u32 = 4;
pub const RTM_F_CLONED: u32 = 0x200;
pub const RTEXT_FILTER_SKIP_STATS: u32 = 8;
pub const RT_TABLE_MAIN: u8 = 254;
pub const RT_TABLE_LOCAL: u32 = 255;
pub const RT_SCOPE_UNIVERSE: u8 = 0;
pub const RT_SCOPE_LINK: u8 = 253;
pub const RT_SCOPE_HOST: u8 = 254;
pub const RT_SCOPE_NOWHERE: u8 = 255;
pub const RTPROT_KERNEL: u8 = 2;
pub const RTPROT_STATIC: u8 = 4;
pub const RTN_UNICAST: u8 = 1;
pub const RTN_BLACKHOLE: u8 = 6;
pub const RTN_UNREACHABLE: u8 = 7;
pub const RTN_PROHIBIT: u8 = 8;

pub const TCA_KIND: u16 = 1;
pub const TCA_OPTIONS: u16 = 2;

// pkt_sched.h
pub const TC_H_ROOT: u32 = 0xffff_ffff;
pub const TC_H_CLSACT: u32 = 0xffff_fff1;
pub const TC_H_CLSACT_INGRESS: u32 = 0xffff_fff2;
pub const CLSACT_HANDLE: u32 = 0xffff_0000;
pub const TCA_TBF_PARMS: u16 = 1;
pub const TCA_TBF_RATE64: u16 = 4;
pub const TCA_TBF_BURST: u16 = 6;
pub const TC_LINKLAYER_ETHERNET: u8 = 1;
/// The kernel's name of the token bucket filter.
pub const TBF: &str = "tbf";

// pkt_cls.h
pub const TCA_BPF_FD: u16 = 6;
pub const TCA_BPF_NAME: u16 = 7;
pub const TCA_BPF_FLAGS: u16 = 8;
pub const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
/// Packets of every protocol.
pub const ETH_P_ALL: u16 = 3;

// if_link.h, if.h
pub const IFF_UP: u32 = 1;
pub const IFF_NOARP: u32 = 0x80;
pub const IFF_PROMISC: u32 = 0x100;
pub const IFF_ALLMULTI: u32 = 0x200;
pub const IFF_MULTICAST: u32 = 0x1000;
/// The link has a carrier, known at once (`IFF_RUNNING` follows a little later).
pub const IFF_LOWER_UP: u32 = 0x1_0000;
pub const IFLA_ADDRESS: u16 = 1;
pub const IFLA_IFNAME: u16 = 3;
pub const IFLA_MTU: u16 = 4;
pub const IFLA_QDISC: u16 = 6;
pub const IFLA_LINK: u16 = 5;
pub const IFLA_MASTER: u16 = 10;
pub const IFLA_TXQLEN: u16 = 13;
pub const IFLA_LINKINFO: u16 = 18;
pub const IFLA_IFALIAS: u16 = 20;
pub const IFLA_STATS64: u16 = 23;
pub const IFLA_GROUP: u16 = 27;
pub const IFLA_NUM_TX_QUEUES: u16 = 31;
pub const IFLA_NUM_RX_QUEUES: u16 = 32;
pub const IFLA_NET_NS_FD: u16 = 28;
pub const IFLA_EXT_MASK: u16 = 29;
pub const IFLA_LINK_NETNSID: u16 = 37;
pub const IFLA_PROP_LIST: u16 = 52;
pub const IFLA_ALT_IFNAME: u16 = 53;
pub const IFLA_INFO_KIND: u16 = 1;
pub const IFLA_INFO_DATA: u16 = 2;
pub const IFLA_INFO_SLAVE_KIND: u16 = 4;
pub const IFLA_INFO_SLAVE_DATA: u16 = 5;
pub const IFLA_BRPORT_MODE: u16 = 4;

// if_bridge.h
pub const BRIDGE_VLANDB_ENTRY: u16 = 1;
pub const BRIDGE_VLANDB_ENTRY_INFO: u16 = 1;
pub const BRIDGE_VLANDB_ENTRY_RANGE: u16 = 2;
pub const BRIDGE_VLAN_INFO_PVID: u16 = 2;
pub const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 4;

// veth.h
pub const VETH_INFO_PEER: u16 = 1;

// if_addr.h
pub const IFA_ADDRESS: u16 = 1;
pub const IFA_LOCAL: u16 = 2;
pub const IFA_BROADCAST: u16 = 4;
pub const IFA_CACHEINFO: u16 = 6;
pub const IFA_FLAGS: u16 = 8;
pub const IFA_PROTO: u16 = 11;
pub const IFA_F_NODAD: u32 = 0x02;
pub const IFA_F_DADFAILED: u32 = 0x08;
pub const IFA_F_DEPRECATED: u32 = 0x20;
pub const IFA_F_TENTATIVE: u32 = 0x40;
pub const IFA_F_NOPREFIXROUTE: u32 = 0x200;

// fib_rules.h
pub const FRA_DST: u16 = 1;
pub const FRA_SRC: u16 = 2;
pub const FRA_IIFNAME: u16 = 3;
pub const FRA_PRIORITY: u16 = 6;
pub const FRA_FWMARK: u16 = 10;
pub const FRA_TABLE: u16 = 15;
pub const FRA_FWMASK: u16 = 16;
pub const FRA_OIFNAME: u16 = 17;
pub const FRA_L3MDEV: u16 = 19;
pub const FRA_PROTOCOL: u16 = 21;
pub const FR_ACT_TO_TBL: u8 = 1;

// neighbour.h
pub const NDA_DST: u16 = 1;
pub const NDA_LLADDR: u16 = 2;
pub const NDA_IFINDEX: u16 = 8;
pub const NDA_PROTOCOL: u16 = 12;
pub const NTF_SELF: u8 = 0x02;
pub const NTF_PROXY: u8 = 0x08;
pub const NUD_NOARP: u16 = 0x40;
pub const NUD_PERMANENT: u16 = 0x80;

// net_namespace.h
pub const NETNSA_NSID: u16 = 1;
pub const NETNSA_FD: u16 = 3;

// genetlink.h
pub const GENL_ID_CTRL: u16 = 16;
pub const CTRL_CMD_GETFAMILY: u8 = 3;
pub const CTRL_ATTR_FAMILY_ID: u16 = 1;
pub const CTRL_ATTR_FAMILY_NAME: u16 = 2;

// nfnetlink.h
pub const NFNL_MSG_BATCH_BEGIN: u16 = 16;
pub const NFNL_MSG_BATCH_END: u16 = 17;
pub const NFNL_SUBSYS_CTNETLINK: u16 = 1;
pub const NFNL_SUBSYS_NFTABLES: u16 = 10;

// netfilter/nfnetlink_conntrack.h, netfilter/nf_conntrack_common.h
pub const IPCTNL_MSG_CT_GET: u16 = 1;
pub const IPCTNL_MSG_CT_DELETE: u16 = 2;
pub const CTA_TUPLE_ORIG: u16 = 1;
pub const CTA_TUPLE_REPLY: u16 = 2;
pub const CTA_STATUS: u16 = 3;
pub const CTA_ID: u16 = 12;
pub const CTA_ZONE: u16 = 18;
pub const CTA_TUPLE_IP: u16 = 1;
pub const CTA_TUPLE_PROTO: u16 = 2;
pub const CTA_PROTO_NUM: u16 = 1;
pub const CTA_PROTO_SRC_PORT: u16 = 2;
pub const CTA_PROTO_DST_PORT: u16 = 3;
pub const CTA_IP_V4_SRC: u16 = 1;
pub const CTA_IP_V4_DST: u16 = 2;
pub const CTA_IP_V6_SRC: u16 = 3;
pub const CTA_IP_V6_DST: u16 = 4;
pub const IPS_DST_NAT: u32 = 0x20;

// socket families, as the one byte they are in netlink headers
pub const AF_UNSPEC: u8 = 0;
pub const AF_INET: u8 = 2;
pub const AF_BRIDGE: u8 = 7;
pub const AF_INET6: u8 = 10;
