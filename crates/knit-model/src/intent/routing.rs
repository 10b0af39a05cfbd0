//! Routes, rules, neighbours and sysctls that are requested independently of an interface.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{RouteIntent, Selector};
use crate::name::IfName;
use crate::neighbour::Neighbour;
use crate::report::ItemKind;
use crate::route::MAIN_TABLE;
use crate::rule::Rule;
use crate::sysctl;

/// A routing entry in each selected pod. It is applied once the interfaces that it refers to exist.
///
/// An interface is referred to by its name, or by the name prefix that an object requests it with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingIntent {
    /// Selects pods of the object's namespace.
    pub pods: Selector,
    /// VRF of the pod: routes of the main table are placed in its table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<IfName>,
    /// The entry.
    pub entry: RoutingEntry,
}

/// A routing entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RoutingEntry {
    /// A route. A next hop without a link uses the interface that reaches the gateway.
    Route(RouteIntent),
    /// A policy rule.
    Rule(Rule),
    /// A permanent or proxy neighbour.
    Neighbour(Neighbour),
    /// A sysctl of the pod.
    Sysctl(SysctlIntent),
}

/// A sysctl of the pod, or of one of its interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SysctlIntent {
    /// The interface; `None`: a sysctl of the pod's network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<IfName>,
    /// For an interface: family and name, such as `ipv4/rp_filter`. For the namespace: the path, such as
    /// `net/ipv4/ip_forward`.
    pub key: String,
    /// The value.
    pub value: String,
}

impl RoutingIntent {
    /// The intent with interface names resolved for one pod.
    #[must_use]
    pub fn with_names(&self, name_of: impl Fn(&IfName) -> IfName) -> Self {
        let mut resolved = self.clone();
        let mut links: Vec<&mut IfName> = resolved.vrf.iter_mut().collect();
        match &mut resolved.entry {
            RoutingEntry::Route(route) => {
                links.extend(route.via.iter_mut().filter_map(|hop| hop.link.as_mut()));
            }
            RoutingEntry::Rule(rule) => links.extend(rule.iif.iter_mut().chain(&mut rule.oif)),
            RoutingEntry::Neighbour(neighbour) => links.push(&mut neighbour.link),
            RoutingEntry::Sysctl(sysctl) => links.extend(&mut sysctl.link),
        }
        links.into_iter().for_each(|link| *link = name_of(link));
        resolved
    }
}

impl SysctlIntent {
    /// Path below `/proc/sys`.
    pub fn path(&self) -> String {
        self.link.as_ref().map_or_else(|| self.key.clone(), |link| sysctl::link_path(link, &self.key))
    }

    /// The `default` sysctl that a new interface inherits from. It exists iff the kernel supports the sysctl.
    pub fn default_path(&self) -> Option<String> {
        sysctl::default_path(&self.path())
    }
}

impl RoutingEntry {
    /// The kind of the item that it becomes.
    pub fn kind(&self) -> ItemKind {
        match self {
            Self::Route(_) => ItemKind::Route,
            Self::Rule(_) => ItemKind::Rule,
            Self::Neighbour(_) => ItemKind::Neighbour,
            Self::Sysctl(_) => ItemKind::Sysctl,
        }
    }
}

/// Without its kind.
impl fmt::Display for RoutingEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(route) if route.table == MAIN_TABLE => write!(out, "{}", route.to),
            Self::Route(route) => write!(out, "{} table {}", route.to, route.table),
            Self::Rule(rule) => write!(out, "{rule}"),
            Self::Neighbour(neighbour) => write!(out, "{neighbour}"),
            Self::Sysctl(sysctl) => {
                write!(out, "{}={}", sysctl.path().replace('/', "."), sysctl.value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysctl(link: Option<&str>, key: &str) -> SysctlIntent {
        let link = link.map(|link| link.parse().unwrap());
        SysctlIntent { link, key: key.to_owned(), value: "1".to_owned() }
    }

    #[test]
    fn an_interface_sysctl_has_the_interface_in_its_path() {
        let of_link = sysctl(Some("net1.7"), "ipv4/rp_filter");
        assert_eq!(of_link.path(), "net/ipv4/conf/net1.7/rp_filter");
        assert_eq!(of_link.default_path().unwrap(), "net/ipv4/conf/default/rp_filter");
        let of_pod = sysctl(None, "net/ipv4/ip_forward");
        assert_eq!((of_pod.path().as_str(), of_pod.default_path()), ("net/ipv4/ip_forward", None));
    }

    #[test]
    fn interface_names_are_resolved_per_pod() {
        let name = |link: &IfName| {
            if link.as_str() == "pc0" { "pc0123".parse().unwrap() } else { link.clone() }
        };
        let entry = RoutingEntry::Sysctl(sysctl(Some("pc0"), "ipv4/rp_filter"));
        let intent = RoutingIntent { pods: Selector::default(), vrf: Some("red".parse().unwrap()), entry };
        let named = intent.with_names(name);
        assert_eq!(named.entry.to_string(), "net.ipv4.conf.pc0123.rp_filter=1");
        assert_eq!(named.vrf, intent.vrf);
    }
}
