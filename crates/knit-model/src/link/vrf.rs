//! vrf: a routing domain of its own inside a sandbox. Links are its ports; their routes live in its table.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind, MAX_MTU};
use crate::problem::Problems;
use crate::route::{LOCAL_TABLE, MAIN_TABLE, Route};
use crate::rule::Rule;

/// Where the rule stands that sends packets of VRFs to their tables: before the system's own tables, where the kernel
/// itself puts one with the first VRF. The kernel's would outlive the last VRF, so that Knit has its own.
pub const VRF_RULE_PRIORITY: u32 = 1000;

/// The metric of the last route of a VRF's table: any other comes before it.
const LAST_METRIC: u32 = u32::MAX - 1;

/// A VRF's own fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vrf {
    /// The table of its routes.
    pub table: u32,
}

impl LinkKind for Vrf {
    const NAME: &'static str = "vrf";
    const RECREATE: &'static [&'static str] = &["table"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    /// Packets only pass through it on paper: a small MTU would cut them for nothing.
    fn habits(&self) -> Attrs {
        Attrs { mtu: Some(MAX_MTU), arp: Some(false), multicast: Some(false), ..Attrs::default() }
    }

    fn rules(&self) -> Vec<Rule> {
        [false, true].map(|ipv6| Rule::of_vrfs(ipv6, VRF_RULE_PRIORITY)).into()
    }

    /// What no route of the VRF leads anywhere must not go on by the pod's own routes.
    fn routes(&self) -> Vec<Route> {
        let everywhere = [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
        everywhere.map(|to| Route::unreachable(to, self.table, LAST_METRIC)).into()
    }

    fn table(&self) -> Option<u32> {
        Some(self.table)
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let whose = match self.table {
            0 => "is no table",
            253 => "is the kernel's default table",
            MAIN_TABLE => "is the pod's main table",
            LOCAL_TABLE => "is the pod's table of local addresses",
            _ => return,
        };
        problems.invalid(format!("{path}.table"), format!("table {} {whose}: take another", self.table));
    }
}
