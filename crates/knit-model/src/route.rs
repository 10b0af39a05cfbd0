//! Routes.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;
use crate::problem::Problems;

/// The main routing table.
pub const MAIN_TABLE: u32 = 254;
/// The local routing table.
pub const LOCAL_TABLE: u32 = 255;

/// A route. Its identity in the kernel is table, destination and metric (see [`Route::key`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination; `0.0.0.0/0` or `::/0` is the default route.
    pub to: IpNet,
    /// What happens to packets.
    #[serde(default, skip_serializing_if = "RouteAction::is_forward")]
    pub action: RouteAction,
    /// The next hops; several are an ECMP route.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<NextHop>,
    /// The table.
    #[serde(default = "main_table", skip_serializing_if = "is_main_table")]
    pub table: u32,
    /// The metric; the smallest wins. The kernel turns 0 into 1024 for IPv6.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub metric: u32,
    /// Preferred source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// Scope.
    #[serde(default, skip_serializing_if = "RouteScope::is_global")]
    pub scope: RouteScope,
    /// MTU of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether it carries Knit's protocol number.
    #[serde(default = "default_true", skip_serializing_if = "is_true")]
    pub owned: bool,
}

/// A next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NextHop {
    /// The gateway; `None`: the destination is on the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// The link.
    pub link: IfName,
    /// ECMP weight, 1 to 256.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u16,
    /// Whether the gateway is on the link even if no connected range contains it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub onlink: bool,
}

/// A range that is reached through a gateway on a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatewayRoute {
    /// The range.
    pub to: IpNet,
    /// The gateway.
    pub gateway: IpAddr,
    /// The link.
    pub link: IfName,
}

/// What happens to packets that match a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteAction {
    /// Forwarded to a next hop.
    #[default]
    Forward,
    /// Dropped silently.
    Blackhole,
    /// Rejected with ICMP unreachable.
    Unreachable,
    /// Rejected with ICMP administratively prohibited.
    Prohibit,
}

/// Scope of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouteScope {
    /// Through a gateway.
    #[default]
    Global,
    /// On the link.
    Link,
    /// On this host.
    Host,
}

/// Identity of a route in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteKey {
    /// The table.
    pub table: u32,
    /// The destination.
    pub to: IpNet,
    /// The metric.
    pub metric: u32,
}

/// The kernel's default metric of IPv6 routes.
const IPV6_DEFAULT_METRIC: u32 = 1024;

impl Route {
    /// An on-link route.
    pub fn on_link(to: IpNet, link: IfName) -> Self {
        Self::through(to, NextHop { gateway: None, link, weight: 1, onlink: false })
    }

    /// An unreachable route.
    pub fn unreachable(to: IpNet, table: u32, metric: u32) -> Self {
        Self {
            to,
            action: RouteAction::Unreachable,
            via: Vec::new(),
            table,
            metric,
            source: None,
            scope: RouteScope::Global,
            mtu: None,
            owned: true,
        }
    }

    /// A route through one next hop.
    pub fn through(to: IpNet, hop: NextHop) -> Self {
        let scope =
            if hop.gateway.is_none() && to.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Global };
        Self {
            to: to.trunc(),
            action: RouteAction::Forward,
            via: vec![hop],
            table: MAIN_TABLE,
            metric: 0,
            source: None,
            scope,
            mtu: None,
            owned: true,
        }
    }

    /// Its identity in the kernel.
    pub fn key(&self) -> RouteKey {
        let metric = match self.to {
            IpNet::V6(_) if self.metric == 0 => IPV6_DEFAULT_METRIC,
            _ => self.metric,
        };
        RouteKey { table: self.table, to: self.to.trunc(), metric }
    }

    /// Whether the kernel treats both as the same route.
    pub fn same_as(&self, other: &Self) -> bool {
        let mut hops = (self.via.clone(), other.via.clone());
        hops.0.sort();
        hops.1.sort();
        let scopes_agree = self.to.addr().is_ipv6() || self.scope == other.scope;
        self.key() == other.key()
            && self.action == other.action
            && hops.0 == hops.1
            && self.source == other.source
            && self.mtu == other.mtu
            && scopes_agree
    }

    /// Checks every value.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        if self.to != self.to.trunc() {
            let network = self.to.trunc();
            problems.invalid(
                format!("{path}.to"),
                format!("{} has host bits set: the network is {network}", self.to),
            );
        }
        if self.action == RouteAction::Forward && self.via.is_empty() {
            problems
                .invalid(format!("{path}.via"), "a route needs a next hop, or an action such as blackhole");
        }
        if self.action != RouteAction::Forward && !self.via.is_empty() {
            problems.invalid(format!("{path}.via"), "a route that drops packets has no next hop");
        }
        if self.table == 0 {
            problems.invalid(format!("{path}.table"), "table 0 is not a table");
        }
        let families = self.via.iter().filter_map(|hop| hop.gateway).chain(self.source);
        for address in families.filter(|address| address.is_ipv4() != self.to.addr().is_ipv4()) {
            problems.invalid(
                path,
                format!("{address} and the destination {} are of different families", self.to),
            );
        }
        for (index, hop) in self.via.iter().enumerate().filter(|(_, hop)| !(1..=256).contains(&hop.weight)) {
            problems.invalid(
                format!("{path}.via[{index}].weight"),
                format!("weight {} is outside 1 to 256", hop.weight),
            );
        }
    }
}

impl RouteAction {
    fn is_forward(&self) -> bool {
        *self == Self::Forward
    }
}

impl RouteScope {
    fn is_global(&self) -> bool {
        *self == Self::Global
    }
}

impl fmt::Display for Route {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            RouteAction::Forward => write!(out, "{}", self.to)?,
            RouteAction::Blackhole => write!(out, "blackhole {}", self.to)?,
            RouteAction::Unreachable => write!(out, "unreachable {}", self.to)?,
            RouteAction::Prohibit => write!(out, "prohibit {}", self.to)?,
        }
        for hop in &self.via {
            if let Some(gateway) = hop.gateway {
                write!(out, " via {gateway}")?;
            }
            write!(out, " dev {}", hop.link)?;
            if hop.weight != 1 {
                write!(out, " weight {}", hop.weight)?;
            }
            if hop.onlink {
                out.write_str(" onlink")?;
            }
        }
        if let Some(source) = self.source {
            write!(out, " src {source}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(out, " mtu {mtu}")?;
        }
        if self.metric != 0 {
            write!(out, " metric {}", self.metric)?;
        }
        if self.table != MAIN_TABLE {
            write!(out, " table {}", self.table)?;
        }
        Ok(())
    }
}

fn main_table() -> u32 {
    MAIN_TABLE
}
fn is_main_table(table: &u32) -> bool {
    *table == MAIN_TABLE
}
fn is_zero(number: &u32) -> bool {
    *number == 0
}
fn one() -> u16 {
    1
}
fn is_one(number: &u16) -> bool {
    *number == 1
}
fn default_true() -> bool {
    true
}
fn is_true(value: &bool) -> bool {
    *value
}
fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(gateway: &str) -> NextHop {
        NextHop {
            gateway: Some(gateway.parse().unwrap()),
            link: "net1".parse().unwrap(),
            weight: 1,
            onlink: false,
        }
    }

    #[test]
    fn the_order_of_next_hops_is_irrelevant() {
        let mut a = Route::through("10.1.0.0/16".parse().unwrap(), hop("10.0.0.1"));
        a.via.push(hop("10.0.0.2"));
        let mut b = a.clone();
        b.via.reverse();
        assert!(a.same_as(&b));
        b.via.pop();
        assert!(!a.same_as(&b));
    }

    #[test]
    fn the_default_metric_of_ipv6_routes_is_1024() {
        let plain = Route::through("fd00::/64".parse().unwrap(), hop("fd01::1"));
        let observed = Route { metric: 1024, ..plain.clone() };
        assert_eq!(plain.key(), observed.key());
        assert!(plain.same_as(&observed));
    }

    #[test]
    fn invalid_routes_are_reported() {
        let mut problems = Problems::default();
        let route = Route {
            to: "10.1.2.3/16".parse().unwrap(),
            via: vec![],
            ..Route::through("10.0.0.0/8".parse().unwrap(), hop("::1"))
        };
        route.check("spec.routes[0]", &mut problems);
        assert_eq!(
            problems.to_string(),
            "spec.routes[0].to: 10.1.2.3/16 has host bits set: the network is 10.1.0.0/16\n\
             spec.routes[0].via: a route needs a next hop, or an action such as blackhole"
        );
    }
}
