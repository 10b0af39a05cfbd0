//! vrf: a separate routing domain inside a sandbox. Links are its ports; their routes are in its table.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind, MAX_MTU};
use crate::problem::Problems;
use crate::route::{LOCAL_TABLE, MAIN_TABLE, Route};
use crate::rule::Rule;

/// Priority of the rule that looks up packets of VRFs in their tables, before the system's tables. It is the priority of
/// the rule that the kernel adds with the first VRF; Knit adds its own because the kernel's outlives the last VRF.
pub const VRF_RULE_PRIORITY: u32 = 1000;

/// Metric of the fallback route of a VRF's table: all other routes are preferred.
const LAST_METRIC: u32 = u32::MAX - 1;

/// VRF-specific fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vrf {
    /// Its routing table.
    pub table: u32,
}

impl LinkKind for Vrf {
    const NAME: &'static str = "vrf";
    const IMMUTABLE: &'static [&'static str] = &["table"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        vec![Self { table: 10 }]
    }

    /// Packets do not really pass through the VRF device, so a smaller MTU would only cause needless fragmentation.
    fn default_attrs(&self) -> Attrs {
        Attrs { mtu: Some(MAX_MTU), arp: Some(false), multicast: Some(false), ..Attrs::default() }
    }

    fn rules(&self) -> Vec<Rule> {
        [false, true].map(|ipv6| Rule::of_vrfs(ipv6, VRF_RULE_PRIORITY)).into()
    }

    /// Packets without a route in the VRF must not fall through to the pod's main table.
    fn routes(&self) -> Vec<Route> {
        let everywhere = [IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
        everywhere.map(|to| Route::unreachable(to, self.table, LAST_METRIC)).into()
    }

    fn table(&self) -> Option<u32> {
        Some(self.table)
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let reason = match self.table {
            0 => "is not a table",
            253 => "is the kernel's default table",
            MAIN_TABLE => "is the pod's main table",
            LOCAL_TABLE => "is the pod's local table",
            _ => return,
        };
        problems.invalid(format!("{path}.table"), format!("table {} {reason}: choose another", self.table));
    }
}
