//! Probes of nftables: a base chain in a table of each family that Knit uses.

use nix::errno::Errno;

use super::Area;
use super::probe::{Finding, Probe, ProbeRun::Scratch as InScratch};
use super::scratch::Scratch;
use crate::error::{Error, Result};
use crate::netlink::{Protocol, Socket};
use crate::nft::{self, BaseChain, Chain, ChainType, Family, Hook, Table};

const TABLE: &str = "knit-probe";

const fn family(
    name: &'static str,
    title: &'static str,
    config: &'static str,
    run: fn(&mut Scratch) -> Finding,
) -> Probe {
    Probe::new(name, title, Area::Filtering, config, InScratch(run))
}

pub const PROBES: &[Probe] = &[
    family("nftables-inet", "nftables for IPv4 and IPv6", "CONFIG_NF_TABLES_INET", |_| {
        base_chain(Family::Inet, Hook::Input)
    })
    .module("nf_tables")
    .needed_for("NetworkPolicy, Services, masquerading"),
    family("nftables-bridge", "nftables on bridges", "CONFIG_NF_TABLES_BRIDGE", |_| {
        base_chain(Family::Bridge, Hook::Input)
    })
    .module("nf_tables")
    .needed_for("anti-spoofing between pods of one bridge"),
    family("nftables-netdev", "nftables at link ingress", "CONFIG_NF_TABLES_NETDEV", |_| {
        base_chain(Family::Netdev, Hook::Ingress("lo"))
    })
    .module("nf_tables")
    .needed_for("anti-spoofing on a pod's link"),
];

/// A table alone is accepted for any family; only a base chain shows that the family is supported.
fn base_chain(family: Family, hook: Hook) -> Finding {
    let base = Some(BaseChain { chain_type: ChainType::Filter, hook, priority: 0 });
    let chains = vec![Chain { name: "probe", base, rules: Vec::new() }];
    let table = Table { family, name: TABLE, sets: Vec::new(), chains };
    let attempt: Result<()> =
        Socket::open(Protocol::Netfilter).and_then(|mut socket| nft::replace(&mut socket, &[table]));
    match attempt {
        Err(Error::Unsupported { .. }) => Finding::Absent,
        // No netfilter sockets, or no such hook.
        other => Finding::of(other, &[Errno::EPROTONOSUPPORT, Errno::EINVAL]),
    }
}
