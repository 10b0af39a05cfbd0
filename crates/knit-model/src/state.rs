//! A node's network, desired or observed, scope by scope.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

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
    /// Whether the kernel adds no route for the prefix.
    #[serde(default)]
    pub noprefixroute: bool,
    /// The broadcast address (IPv4 only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Ipv4Addr>,
    /// Whether nobody on this machine speaks from it unless he names it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
    /// Whether it carries Knit's mark.
    #[serde(default)]
    pub owned: bool,
}

/// What the kernel holds at most one address of.
pub type AddressKey = (IfName, IpNet);

/// Everything in one scope. Observed: all that was looked at, Knit's and others'. Desired: what Knit wants there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopeState {
    /// Links by name.
    pub links: BTreeMap<IfName, Link>,
    /// Addresses.
    #[serde(with = "crate::pairs")]
    pub addresses: BTreeMap<AddressKey, Address>,
    /// Routes of every table.
    #[serde(with = "crate::pairs")]
    pub routes: BTreeMap<RouteKey, Route>,
    /// Rules; observed holds only those with Knit's mark.
    pub rules: BTreeSet<Rule>,
    /// Observed rules of others: the kernel takes none twice.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub foreign_rules: BTreeSet<Rule>,
    /// Permanent neighbours and proxy entries.
    #[serde(with = "crate::pairs")]
    pub neighbours: BTreeMap<NeighbourKey, Neighbour>,
    /// Sysctls by path, such as `net/ipv6/conf/net1/accept_ra`. Observed holds those that were asked for.
    pub sysctls: BTreeMap<String, String>,
}

/// A node's network: the host's scope and the sandboxes'.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
    /// Scope by scope.
    #[serde(with = "crate::pairs")]
    pub scopes: BTreeMap<Scope, ScopeState>,
}

impl Address {
    /// An address of Knit's, with the broadcast address that IPv4 users expect.
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

    /// Whether the kernel would hold the same address.
    pub fn same_as(&self, other: &Self) -> bool {
        self.key() == other.key()
            && self.noprefixroute == other.noprefixroute
            && self.broadcast == other.broadcast
            && self.deprecated == other.deprecated
    }
}

impl ScopeState {
    /// Puts a link in.
    pub fn add_link(&mut self, link: Link) {
        self.links.insert(link.name.clone(), link);
    }

    /// Puts an address in.
    pub fn add_address(&mut self, address: Address) {
        self.addresses.insert(address.key(), address);
    }

    /// Puts a route in.
    pub fn add_route(&mut self, route: Route) {
        self.routes.insert(route.key(), route);
    }

    /// Puts a neighbour in.
    pub fn add_neighbour(&mut self, neighbour: Neighbour) {
        self.neighbours.insert(neighbour.key(), neighbour);
    }
}

impl NetState {
    /// A scope, made empty if it is not there.
    pub fn scope(&mut self, scope: &Scope) -> &mut ScopeState {
        self.scopes.entry(scope.clone()).or_default()
    }

    /// A link, if it is there.
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
