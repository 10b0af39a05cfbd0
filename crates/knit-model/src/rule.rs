//! Policy routing rules.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;
use crate::problem::Problems;

/// A policy rule. All fields are its identity: a rule is added or removed, never changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Rules are evaluated in this order.
    pub priority: u32,
    /// Whether it is an IPv6 rule.
    pub ipv6: bool,
    /// Source range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpNet>,
    /// Destination range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<IpNet>,
    /// Ingress link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<IfName>,
    /// Egress link of sockets bound to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oif: Option<IfName>,
    /// Firewall mark and its mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<(u32, u32)>,
    /// Table to look up; 0 with `vrf`.
    pub table: u32,
    /// Looks up packets of VRF ports in the table of their VRF (`l3mdev`) in place of `table`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vrf: bool,
}

impl Rule {
    /// Looks up packets from a source in a table.
    pub fn from_address(from: IpNet, table: u32, priority: u32) -> Self {
        let ipv6 = from.addr().is_ipv6();
        Self { from: Some(from), table, vrf: false, ..Self::of_vrfs(ipv6, priority) }
    }

    /// Looks up packets of every VRF in its table.
    pub fn of_vrfs(ipv6: bool, priority: u32) -> Self {
        Self { priority, ipv6, from: None, to: None, iif: None, oif: None, mark: None, table: 0, vrf: true }
    }

    /// Checks every value.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        for (field, prefix) in [("from", self.from), ("to", self.to)] {
            let Some(prefix) = prefix else { continue };
            if prefix.addr().is_ipv6() != self.ipv6 {
                problems
                    .invalid(format!("{path}.{field}"), format!("{prefix} is not of the family of the rule"));
            }
            if prefix != prefix.trunc() {
                problems.invalid(
                    format!("{path}.{field}"),
                    format!("{prefix} has host bits set: the network is {}", prefix.trunc()),
                );
            }
        }
        if self.table == 0 && !self.vrf {
            problems.invalid(format!("{path}.table"), "table 0 is not a table");
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:", self.priority)?;
        match self.from {
            Some(from) => write!(out, " from {from}")?,
            None => out.write_str(" from all")?,
        }
        if let Some(to) = self.to {
            write!(out, " to {to}")?;
        }
        if let Some(link) = &self.iif {
            write!(out, " iif {link}")?;
        }
        if let Some(link) = &self.oif {
            write!(out, " oif {link}")?;
        }
        if let Some((mark, mask)) = self.mark {
            write!(out, " fwmark {mark:#x}/{mask:#x}")?;
        }
        match self.vrf {
            true => out.write_str(" lookup [l3mdev-table]"),
            false => write!(out, " lookup {}", self.table),
        }
    }
}
