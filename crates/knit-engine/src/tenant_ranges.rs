//! The ranges in which networks of tenants may have an address on the node: those that an admin opened.
//!
//! An address on a host link is in the kernel's table `local`, which precedes every route. An address of any other range would take the
//! place of a destination that the node and its pods reach through their default route.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::event::Record;
use crate::resolve;
use crate::state::State;
use crate::step::Effects;

/// How many open ranges a message lists.
const MAX_LISTED: usize = 8;
/// What a message recommends.
const REMEDY: &str =
    "choose another, or have an admin open it in ClusterRanges or by `tenantRanges` of the agents";

/// All addresses of both families.
pub fn all_addresses() -> [IpNet; 2] {
    [Ipv4Net::default().into(), Ipv6Net::default().into()]
}

/// The ranges that are open unless an admin chooses others.
pub fn default_ranges() -> [IpNet; 2] {
    // Private (RFC 1918) and unique local (RFC 4193).
    ["192.168.96.0/19", "fd74:6b6e:6974::/48"].map(|range| range.parse().expect("a constant range is valid"))
}

impl State {
    /// The open ranges: those of the cluster, or those of the settings if the cluster has no list.
    pub fn open_ranges(&self) -> &[IpNet] {
        self.tenant_ranges.as_deref().unwrap_or(&self.settings.tenant_ranges)
    }
}

/// An error message if the range is not within the open ones.
pub(crate) fn closed_message(state: &State, range: IpNet) -> Option<String> {
    let open = state.open_ranges();
    if open.iter().any(|one| one.contains(&range)) {
        return None;
    }
    let because = match open {
        [] => "no range is open to tenants".to_owned(),
        open => format!("it is not within a range that is open to tenants ({})", list(open)),
    };
    Some(format!("the node has no address of {range}, because {because}: {REMEDY}"))
}

fn list(ranges: &[IpNet]) -> String {
    let mut texts: Vec<String> = ranges.iter().take(MAX_LISTED).map(ToString::to_string).collect();
    if ranges.len() > MAX_LISTED {
        texts.push(format!("{} more", ranges.len() - MAX_LISTED));
    }
    texts.join(", ")
}

/// The list of the cluster changed.
pub(crate) fn handle(state: &mut State, ranges: Option<Vec<IpNet>>, effects: &mut Effects) {
    if state.tenant_ranges != ranges {
        effects.record(state, Record::TenantRanges(ranges));
        requeue(state);
    }
}

/// Queues the bridges whose addresses may depend on the open ranges.
pub(crate) fn requeue(state: &mut State) {
    let affected = resolve::bridges_with_ranges(state, &all_addresses());
    state.dirty.extend(affected);
}
