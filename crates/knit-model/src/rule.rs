//! Policy rules: which table a packet's route is looked up in.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;
use crate::problem::Problems;

/// A rule. All of it is its identity: a rule is added or removed, never changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Rules are asked in this order.
    pub priority: u32,
    /// The family, also when neither `from` nor `to` says it.
    pub ipv6: bool,
    /// Packets from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<IpNet>,
    /// Packets to there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<IpNet>,
    /// Packets that came in by this link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<IfName>,
    /// Packets that are bound to this link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oif: Option<IfName>,
    /// Packets with this mark, and which of its bits count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<(u32, u32)>,
    /// The table to look in; 0 with `vrf`.
    pub table: u32,
    /// Packets of a VRF's ports are looked up in that VRF's own table, in place of `table`; others pass by.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vrf: bool,
}

impl Rule {
    /// Packets from an address are looked up in a table.
    pub fn from_address(from: IpNet, table: u32, priority: u32) -> Self {
        let ipv6 = from.addr().is_ipv6();
        Self { from: Some(from), table, vrf: false, ..Self::of_vrfs(ipv6, priority) }
    }

    /// Packets of every VRF are looked up in its own table.
    pub fn of_vrfs(ipv6: bool, priority: u32) -> Self {
        Self { priority, ipv6, from: None, to: None, iif: None, oif: None, mark: None, table: 0, vrf: true }
    }

    /// Checks every value.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        for (field, prefix) in [("from", self.from), ("to", self.to)] {
            let Some(prefix) = prefix else { continue };
            if prefix.addr().is_ipv6() != self.ipv6 {
                problems.invalid(format!("{path}.{field}"), format!("{prefix} is not of the rule's family"));
            }
            if prefix != prefix.trunc() {
                problems.invalid(
                    format!("{path}.{field}"),
                    format!("{prefix} has host bits set: the network is {}", prefix.trunc()),
                );
            }
        }
        if self.table == 0 && !self.vrf {
            problems.invalid(format!("{path}.table"), "table 0 is no table");
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
