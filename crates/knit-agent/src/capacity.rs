//! The address capacity of each network on this node, computed from the state.

use knit_engine::{State, cluster};
use knit_ipam::Pool;
use knit_model::intent::{IntentSpec, NetworkIntent};

/// The address capacity of a network in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddresses {
    /// The network's namespace.
    pub namespace: String,
    /// Its name.
    pub network: String,
    /// Whether these are IPv6 addresses.
    pub ipv6: bool,
    /// Addresses that can be allocated to pods.
    pub total: u128,
    /// Addresses in use.
    pub used: u128,
    /// Addresses that are available to the next attach.
    pub free: u128,
}

impl NetworkAddresses {
    /// Every network of the node, one entry for each of its families.
    pub fn all(state: &State) -> Vec<Self> {
        networks(state).flat_map(|(namespace, network)| Self::of(state, namespace, network)).collect()
    }

    /// One network, one entry for each of its families.
    pub fn of(state: &State, namespace: &str, network: &NetworkIntent) -> Vec<Self> {
        let id = format!("{namespace}/network/{}", network.name);
        let of_family = |ipv6: bool| {
            let ranges = network.ranges.iter().filter(move |range| range.addr().is_ipv6() == ipv6);
            let pools: Vec<Pool> = ranges.map(|range| Pool::with_gateway(&id, *range)).collect();
            let capacity = (!pools.is_empty()).then(|| state.leases.capacity_of(&id, &pools))?;
            let knit_ipam::Capacity { total, used, mut free, .. } = capacity;
            if state.is_shared_network(namespace, &network.name) {
                // A range shared by nodes: only this node's blocks and unclaimed blocks count.
                let pools: Vec<Pool> = pools.iter().map(|pool| state.reachable(pool)).collect();
                free = state.leases.capacity_of(&id, &pools).free;
            }
            if state.cluster().is_some_and(|cluster| cluster.is(namespace, &network.name)) {
                // Ranges reserved for some namespaces do not count; blocks that this node can still claim from pools do.
                let open = state.shared_ranges(&network.ranges);
                let pools: Vec<Pool> = pools.into_iter().filter(|pool| open.contains(&pool.range)).collect();
                free = state.leases.capacity_of(&id, &pools).free.saturating_add(state.unclaimed(ipv6));
            }
            let (namespace, network) = (namespace.to_owned(), network.name.clone());
            Some(Self { namespace, network, ipv6, total, used, free })
        };
        [of_family(false), of_family(true)].into_iter().flatten().collect()
    }

    /// The families of the cluster network without a free address. A new pod needs one address of each family.
    pub fn exhausted(state: &State) -> Vec<Self> {
        let Some(cluster) = state.cluster() else { return Vec::new() };
        let all = Self::of(state, cluster::NAMESPACE, cluster.network).into_iter();
        all.filter(|one| one.free == 0).collect()
    }
}

/// Every network that objects define, with its namespace.
pub fn networks(state: &State) -> impl Iterator<Item = (&str, &NetworkIntent)> {
    state.objects.iter().flat_map(|(key, object)| {
        object.intents.iter().filter_map(move |intent| match &intent.spec {
            IntentSpec::Network(network) => Some((key.namespace.as_str(), network)),
            _ => None,
        })
    })
}
