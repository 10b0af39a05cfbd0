//! nftables: a base chain in a table of each family that Knit filters in.

use nix::errno::Errno;

use super::Area;
use super::probe::{Finding, Probe, Where::Scratch as Try};
use super::scratch::Scratch;
use crate::netlink::constants::NLM_F_CREATE;
use crate::netlink::header::NetfilterHeader;
use crate::netlink::{Message, Protocol, Socket};

// nfnetlink.h, nf_tables.h, netfilter.h
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEV: u16 = 3;
const NFPROTO_INET: u8 = 1;
const NFPROTO_NETDEV: u8 = 5;
const NFPROTO_BRIDGE: u8 = 7;
const NF_INET_LOCAL_IN: u32 = 1;
const NF_NETDEV_INGRESS: u32 = 0;

const TABLE: &str = "knit-probe";

const fn family(
    name: &'static str,
    title: &'static str,
    config: &'static str,
    run: fn(&mut Scratch) -> Finding,
) -> Probe {
    Probe::new(name, title, Area::Filtering, config, Try(run))
}

pub const PROBES: &[Probe] = &[
    family("nftables-inet", "nftables for IPv4 and IPv6", "CONFIG_NF_TABLES_INET", |_| {
        base_chain(NFPROTO_INET, NF_INET_LOCAL_IN, None)
    })
    .module("nf_tables")
    .needed_for("NetworkPolicy, Services, masquerading"),
    family("nftables-bridge", "nftables on bridges", "CONFIG_NF_TABLES_BRIDGE", |_| {
        base_chain(NFPROTO_BRIDGE, NF_INET_LOCAL_IN, None)
    })
    .module("nf_tables")
    .needed_for("spoofing protection between pods of one bridge"),
    family("nftables-netdev", "nftables at a link's entrance", "CONFIG_NF_TABLES_NETDEV", |_| {
        base_chain(NFPROTO_NETDEV, NF_NETDEV_INGRESS, Some("lo"))
    })
    .module("nf_tables")
    .needed_for("spoofing protection on a pod's own link"),
];

/// A table alone is accepted for any family; only a chain on a hook shows that the family is there.
fn base_chain(family: u8, hook: u32, device: Option<&str>) -> Finding {
    let header = NetfilterHeader { family, ..Default::default() };
    let subsystem = NetfilterHeader { resource: NFNL_SUBSYS_NFTABLES.to_be(), ..Default::default() };
    let context = "make an nftables chain";
    let mut begin = Message::new(NFNL_MSG_BATCH_BEGIN, 0, context).marker();
    begin.header(&subsystem);
    let mut table = Message::new(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE, NLM_F_CREATE, context);
    table.header(&header).put_str(NFTA_TABLE_NAME, TABLE);
    let mut chain = Message::new(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN, NLM_F_CREATE, context);
    chain.header(&header).put_str(NFTA_CHAIN_TABLE, TABLE).put_str(NFTA_CHAIN_NAME, "probe");
    chain.put_str(NFTA_CHAIN_TYPE, "filter").nest(NFTA_CHAIN_HOOK, |place| {
        place.put_be32(NFTA_HOOK_HOOKNUM, hook).put_be32(NFTA_HOOK_PRIORITY, 0);
        if let Some(device) = device {
            place.put_str(NFTA_HOOK_DEV, device);
        }
    });
    let mut end = Message::new(NFNL_MSG_BATCH_END, 0, context).marker();
    end.header(&subsystem);
    let attempt = Socket::open(Protocol::Netfilter)
        .and_then(|mut socket| socket.batch(&[begin, table, chain, end]).map_err(|failed| failed.error));
    // No netfilter sockets, no nftables behind them, no such family: each has its own number.
    let absent =
        [Errno::EPROTONOSUPPORT, Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT, Errno::ENOENT, Errno::EINVAL];
    Finding::of(attempt, &absent)
}
