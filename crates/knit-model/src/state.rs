//! Network state of a node, desired or observed, by scope.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::filter::Filter;
use crate::link::Link;
use crate::name::IfName;
use crate::neighbour::{Neighbour, NeighbourKey};
use crate::route::{Route, RouteKey};
use crate::rule::Rule;
use crate::sandbox::Scope;

/// An address on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The link.
    pub link: IfName,
    /// The address with its prefix length.
    pub address: IpNet,
    /// Whether the kernel adds no connected route.
    #[serde(default)]
    pub noprefixroute: bool,
    /// Broadcast address (IPv4 only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Ipv4Addr>,
    /// Whether it is deprecated: used as source address only on explicit request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
    /// Whether it carries Knit's protocol number.
    #[serde(default)]
    pub owned: bool,
}

/// Identity of an address in the kernel.
pub type AddressKey = (IfName, IpNet);

/// State of one scope. Observed: everything that was read, owned by Knit or not. Desired: what Knit manages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeState {
    /// Links by name.
    pub links: BTreeMap<IfName, Link>,
    /// Addresses.
    #[serde(with = "crate::serde_pairs")]
    pub addresses: BTreeMap<AddressKey, Address>,
    /// Routes of every table.
    #[serde(with = "crate::serde_pairs")]
    pub routes: BTreeMap<RouteKey, Route>,
    /// Rules; in observed state only those owned by Knit.
    pub rules: BTreeSet<Rule>,
    /// Observed rules that Knit does not own, because the kernel rejects duplicates.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign_rules: BTreeSet<Rule>,
    /// Permanent neighbours and proxy entries.
    #[serde(with = "crate::serde_pairs")]
    pub neighbours: BTreeMap<NeighbourKey, Neighbour>,
    /// Sysctls by path, such as `net/ipv6/conf/net1/accept_ra`; in observed state only the requested ones.
    pub sysctls: BTreeMap<String, String>,
    /// The packet filter; in observed state only the requested tables and elements.
    #[serde(default, skip_serializing_if = "Filter::is_empty")]
    pub filter: Filter,
}

/// Network state of a node: the host and its sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
    /// States by scope.
    #[serde(with = "crate::serde_pairs")]
    pub scopes: BTreeMap<Scope, ScopeState>,
}

impl Address {
    /// An address owned by Knit, with the usual IPv4 broadcast address.
    pub fn new(link: IfName, address: IpNet) -> Self {
        let broadcast = match address {
            IpNet::V4(net) if net.prefix_len() < 31 => Some(net.broadcast()),
            _ => None,
        };
        Self { link, address, noprefixroute: false, broadcast, deprecated: false, owned: true }
    }

    /// Its identity in the kernel.
    pub fn key(&self) -> AddressKey {
        (self.link.clone(), self.address)
    }

    /// Whether the kernel treats both as the same address.
    pub fn same_as(&self, other: &Self) -> bool {
        self.key() == other.key()
            && self.noprefixroute == other.noprefixroute
            && self.broadcast == other.broadcast
            && self.deprecated == other.deprecated
    }
}

impl ScopeState {
    /// Inserts a link.
    pub fn add_link(&mut self, link: Link) {
        self.links.insert(link.name.clone(), link);
    }

    /// Inserts an address.
    pub fn add_address(&mut self, address: Address) {
        self.addresses.insert(address.key(), address);
    }

    /// Inserts a route.
    pub fn add_route(&mut self, route: Route) {
        self.routes.insert(route.key(), route);
    }

    /// Inserts a neighbour.
    pub fn add_neighbour(&mut self, neighbour: Neighbour) {
        self.neighbours.insert(neighbour.key(), neighbour);
    }
}

impl NetState {
    /// A scope, created empty if missing.
    pub fn scope(&mut self, scope: &Scope) -> &mut ScopeState {
        self.scopes.entry(scope.clone()).or_default()
    }

    /// A link, if it exists.
    pub fn link(&self, scope: &Scope, name: &IfName) -> Option<&Link> {
        self.scopes.get(scope)?.links.get(name)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} dev {}", self.address, self.link)?;
        if self.noprefixroute {
            out.write_str(" noprefixroute")?;
        }
        if self.deprecated { out.write_str(" deprecated") } else { Ok(()) }
    }
}
