//! How much room each network has on this node, read from the state.

use knit_engine::{State, cluster};
use knit_ipam::Pool;
use knit_model::intent::{IntentSpec, NetworkIntent};

/// How much room a network has, in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The network's namespace.
    pub namespace: String,
    /// Its name.
    pub network: String,
    /// Whether this is about IPv6.
    pub ipv6: bool,
    /// Addresses that pods can have.
    pub total: u128,
    /// Addresses in use.
    pub used: u128,
    /// Addresses that the next attach can have.
    pub free: u128,
}

impl Capacity {
    /// Every network of the node, one entry for each family that it has.
    pub fn of_all(state: &State) -> Vec<Self> {
        networks(state).flat_map(|(namespace, network)| Self::of(state, namespace, network)).collect()
    }

    /// One network, one entry for each family that it has.
    pub fn of(state: &State, namespace: &str, network: &NetworkIntent) -> Vec<Self> {
        let id = format!("{namespace}/network/{}", network.name);
        let of_family = |ipv6: bool| {
            let ranges = network.ranges.iter().filter(move |range| range.addr().is_ipv6() == ipv6);
            let pools: Vec<Pool> = ranges.map(|range| Pool::with_gateway(&id, *range)).collect();
            let capacity = (!pools.is_empty()).then(|| state.leases.capacity_of(&id, &pools))?;
            let knit_ipam::Capacity { total, used, mut free, .. } = capacity;
            if state.is_shared_network(namespace, &network.name) {
                // Of a range that nodes share, what is left in this node's blocks and in those that nobody holds.
                let pools: Vec<Pool> = pools.iter().map(|pool| state.reachable(pool)).collect();
                free = state.leases.capacity_of(&id, &pools).free;
            }
            if state.cluster().is_some_and(|cluster| cluster.is(namespace, &network.name)) {
                // What is some namespaces' alone is of no use to the others; what this node can still take from pools is as good
                // as its own.
                let open = state.open_ranges(&network.ranges);
                let pools: Vec<Pool> = pools.into_iter().filter(|pool| open.contains(&pool.range)).collect();
                free = state.leases.capacity_of(&id, &pools).free.saturating_add(state.untaken(ipv6));
            }
            let (namespace, network) = (namespace.to_owned(), network.name.clone());
            Some(Self { namespace, network, ipv6, total, used, free })
        };
        [of_family(false), of_family(true)].into_iter().flatten().collect()
    }

    /// Whether the cluster's network has no address left in one of its families: then no new pod can be given one of each.
    pub fn is_exhausted(state: &State) -> Vec<Self> {
        let Some(cluster) = state.cluster() else { return Vec::new() };
        let all = Self::of(state, cluster::NAMESPACE, cluster.network).into_iter();
        all.filter(|one| one.free == 0).collect()
    }
}

/// Every network that objects name, with its namespace.
pub fn networks(state: &State) -> impl Iterator<Item = (&str, &NetworkIntent)> {
    state.objects.iter().flat_map(|(key, object)| {
        object.intents.iter().filter_map(move |intent| match &intent.spec {
            IntentSpec::Network(network) => Some((key.namespace.as_str(), network)),
            _ => None,
        })
    })
}
