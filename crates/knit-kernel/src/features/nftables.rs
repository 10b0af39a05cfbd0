//! Probes of nftables: a base chain in a table of each family that Knit uses, and owners of tables.

use knit_model::filter::{BaseChain, ChainType, FilterStep, Hook, TableFamily, TableKey};
use nix::errno::Errno;

use super::Area;
use super::probe::{Finding, Probe, ProbeRun::Scratch as InScratch};
use super::scratch::Scratch;
use crate::error::{Error, Result};
use crate::netlink::{Protocol, Socket};
use crate::nft;

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
        base_chain(TableFamily::Inet)
    })
    .module("nf_tables")
    .needed_for("NetworkPolicy, Services, masquerading"),
    family("nftables-bridge", "nftables on bridges", "CONFIG_NF_TABLES_BRIDGE", |_| {
        base_chain(TableFamily::Bridge)
    })
    .module("nf_tables")
    .needed_for("anti-spoofing between pods of one bridge"),
    family("nftables-netdev", "nftables at link ingress", "CONFIG_NF_TABLES_NETDEV", |_| {
        base_chain(TableFamily::Netdev)
    })
    .module("nf_tables")
    .needed_for("anti-spoofing on a pod's link"),
    Probe::new(
        "nftables-owner",
        "nftables tables with an owner that outlive it (Linux 6.9)",
        Area::Filtering,
        "CONFIG_NF_TABLES",
        InScratch(|_| table_owner()),
    )
    .module("nf_tables")
    .needed_for("rules of policies that no other program can remove"),
];

fn table_owner() -> Finding {
    match Socket::open(Protocol::Netfilter).and_then(|mut socket| nft::supports_owner(&mut socket)) {
        Ok(true) => Finding::Present,
        Ok(false) | Err(Error::Unsupported { .. }) => Finding::Absent,
        Err(error) => Finding::of(Err(error), &[Errno::EPROTONOSUPPORT]),
    }
}

/// A table alone is accepted for any family; only a base chain shows that the family is supported.
fn base_chain(family: TableFamily) -> Finding {
    match try_base_chain(family) {
        Err(Error::Unsupported { .. }) => Finding::Absent,
        // No netfilter sockets, or no such hook.
        other => Finding::of(other, &[Errno::EPROTONOSUPPORT, Errno::EINVAL]),
    }
}

fn try_base_chain(family: TableFamily) -> Result<()> {
    let hook = match family {
        TableFamily::Netdev => Hook::Ingress("lo".parse().expect("lo is a valid name")),
        _ => Hook::Input,
    };
    let base = BaseChain { chain_type: ChainType::Filter, hook, priority: 0 };
    let table = TableKey { family, name: TABLE.into() };
    let steps =
        [FilterStep::AddTable(table.clone()), FilterStep::AddChain(table, "probe".to_owned(), Some(base))];
    let mut socket = Socket::open(Protocol::Netfilter)?;
    nft::apply(&mut socket, steps.iter().enumerate()).map_err(|failed| failed.error)
}
