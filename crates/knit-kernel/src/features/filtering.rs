//! nftables: a base chain in a table of each family that Knit filters in.

use nix::errno::Errno;

use super::Area;
use super::probe::{Finding, Probe, Where::Scratch as Try};
use super::scratch::Scratch;
use crate::error::{Error, Result};
use crate::netlink::{Protocol, Socket};
use crate::nft::{self, Chain, ChainKind, Entry, Family, Hook, Table};

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
        base_chain(Family::Inet, Hook::Input)
    })
    .module("nf_tables")
    .needed_for("NetworkPolicy, Services, masquerading"),
    family("nftables-bridge", "nftables on bridges", "CONFIG_NF_TABLES_BRIDGE", |_| {
        base_chain(Family::Bridge, Hook::Input)
    })
    .module("nf_tables")
    .needed_for("spoofing protection between pods of one bridge"),
    family("nftables-netdev", "nftables at a link's entrance", "CONFIG_NF_TABLES_NETDEV", |_| {
        base_chain(Family::Netdev, Hook::Ingress("lo"))
    })
    .module("nf_tables")
    .needed_for("spoofing protection on a pod's own link"),
];

/// A table alone is accepted for any family; only a chain on a hook shows that the family is there.
fn base_chain(family: Family, hook: Hook) -> Finding {
    let entry = Some(Entry { kind: ChainKind::Filter, hook, priority: 0 });
    let chains = vec![Chain { name: "probe", entry, rules: Vec::new() }];
    let table = Table { family, name: TABLE, sets: Vec::new(), chains };
    let attempt: Result<()> =
        Socket::open(Protocol::Netfilter).and_then(|mut socket| nft::replace(&mut socket, &[table]));
    match attempt {
        Err(Error::Lacks { .. }) => Finding::Absent,
        // No netfilter sockets, or no such place in the kernel.
        other => Finding::of(other, &[Errno::EPROTONOSUPPORT, Errno::EINVAL]),
    }
}
