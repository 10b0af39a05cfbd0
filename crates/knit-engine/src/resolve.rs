//! Computes the desired state of each unit from objects and sandboxes.

mod addresses;
mod attachment;
mod bandwidth;
mod bridge;
mod bridge_ports;
mod bridge_ranges;
mod host_devices;
mod interface;
mod keys;
mod link_change;
mod lower_links;
mod nesting;
mod node_routes;
mod overlay_tunnel;
mod pod_pools;
mod quota;
mod routing;
mod single_address_claim;
mod tunnel_endpoints;
mod virtual_machine;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_model::link::{Attrs, Kind, Master, RateLimit};
use knit_model::plan::{Desired, ItemKey};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Provenance;
use knit_model::quota::ResourceCounts;
use knit_model::{IfName, Mac, Sandbox, Scope};

pub(crate) use bridge::{bridge, is_draining, is_needed, macs_of as bridge_macs, name_of as bridge_name};
pub(crate) use bridge_ports::{can_disable_vlan_filter, needs_vlan_filter};
pub(crate) use bridge_ranges::{bridges_with_ranges, overlap_with_others};
pub(crate) use interface::{bridges_of, sandbox};
pub(crate) use keys::fill as fill_keys;
pub(crate) use lower_links::settle;
pub(crate) use node_routes::{
    drop_conflicting_addresses, fail_closed, native_routes, next_hops, node_routes, remote_pod_ranges,
    restored,
};
pub(crate) use tunnel_endpoints::tunnel_peers;

use crate::blocks::{BlockWait, PoolKey};
use crate::event::ObserveRequest;
use crate::state::{NewLease, ObjectKey, UnitState};

/// The default MTU.
const DEFAULT_MTU: u32 = 1500;
/// The default transmit queue length, which is the kernel's.
const DEFAULT_TXQUEUELEN: u32 = 1000;

/// The desired state of a unit, and what to observe for the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The desired state.
    pub(crate) desired: Desired,
    /// What to observe.
    pub(crate) observe: ObserveRequest,
    /// The state of the unit after a successful change.
    pub(crate) unit_state: UnitState,
    /// New leases.
    pub(crate) leases: Vec<NewLease>,
    /// Problems by object.
    pub(crate) problems: Vec<(ObjectKey, Problem)>,
    /// The upper bound of the MTU of links without an explicit one, from their uplink.
    pub(crate) max_mtus: BTreeMap<IfName, u32>,
    /// Objects that request something of this unit.
    pub(crate) requesters: BTreeSet<ObjectKey>,
    /// The pod's name for messages.
    pub(crate) title: String,
    /// Routes, rules, neighbours and sysctls that are placed after the kernel was observed.
    pub(crate) routing: Vec<routing::RoutingRequest>,
    /// Default sysctls of Knit's interfaces: objects may override them.
    pub(crate) default_sysctls: BTreeSet<String>,
    /// Sysctls that get their original value back.
    pub(crate) restored_sysctls: BTreeSet<String>,
    /// New resources within the quota.
    pub(crate) granted: ResourceCounts,
    /// Requested resources beyond the quota.
    pub(crate) denied: ResourceCounts,
    /// Missing blocks.
    pub(crate) waits: BTreeMap<PoolKey, BlockWait>,
    /// Whether another change of the unit must follow this one.
    pub(crate) continues: bool,
    /// The origin of the last item.
    last_origin: Option<Arc<Provenance>>,
}

impl Resolved {
    pub(crate) fn add_origin(&mut self, scope: &Scope, item: ItemKey, origin: &Provenance) {
        if self.desired.default_origin.as_deref() == Some(origin) {
            return;
        }
        let origin = self.share(origin);
        self.desired.origins.entry((scope.clone(), item)).or_default().push(origin);
    }

    /// The origin, shared with the item before: most items of an object follow each other.
    fn share(&mut self, origin: &Provenance) -> Arc<Provenance> {
        match &self.last_origin {
            Some(last) if **last == *origin => Arc::clone(last),
            _ => Arc::clone(self.last_origin.insert(Arc::new(origin.clone()))),
        }
    }

    /// Sets the origin of the packet filter's elements in a scope.
    pub(crate) fn set_element_origin(&mut self, scope: &Scope, origin: &Provenance) {
        if self.desired.default_origin.as_deref() != Some(origin) {
            let origin = self.share(origin);
            self.desired.element_origins.insert(scope.clone(), origin);
        }
    }

    fn problem(
        &mut self,
        object: &ObjectKey,
        field: impl Into<String>,
        reason: Reason,
        message: impl Into<String>,
    ) {
        self.problems.push((object.clone(), Problem::new(field.into(), reason, message.into())));
    }
}

/// The MAC address of an interface whose object requests none.
pub(crate) fn default_mac(sandbox: &Sandbox, interface: &IfName) -> Mac {
    Mac::derived(&mac_seed(sandbox, interface))
}

fn mac_seed(sandbox: &Sandbox, interface: &IfName) -> String {
    format!("{}/{}/{interface}", sandbox.namespace, sandbox.pod)
}

/// Sets every attribute of Knit's links explicitly, so that an attribute removed from an object returns to its
/// default. Without `mtu` it is inherited from the lower device. `seed` determines a stable MAC address.
fn with_defaults(
    kind: &Kind,
    requested: &Attrs,
    mtu: Option<u32>,
    master: Option<IfName>,
    seed: &str,
) -> Attrs {
    if kind.moved_device().is_some() {
        // A NIC keeps its own attributes.
        let master = Some(master.map_or(Master::None, Master::Link));
        return Attrs { up: requested.up.or(Some(true)), master, ..requested.clone() };
    }
    let on_ethernet = kind.is_ethernet().then_some(true);
    let habits = kind.default_attrs();
    Attrs {
        mtu: requested.mtu.or(habits.mtu).or(mtu),
        mac: requested.mac.or_else(|| kind.has_own_mac().then(|| Mac::derived(seed))),
        txqueuelen: requested.txqueuelen.or(Some(DEFAULT_TXQUEUELEN)),
        alias: requested.alias.clone().or(Some(String::new())),
        group: requested.group.or(Some(0)),
        up: requested.up.or(Some(true)),
        promisc: requested.promisc.or(Some(false)),
        allmulticast: requested.allmulticast.or(Some(false)),
        multicast: requested.multicast.or(habits.multicast).or(on_ethernet),
        arp: requested.arp.or(habits.arp).or(on_ethernet),
        master: Some(master.map_or(Master::None, Master::Link)),
        vlans: requested.vlans.clone(),
        hairpin: requested.hairpin,
        limit: requested.limit.or(Some(RateLimit::Unlimited)),
    }
}
