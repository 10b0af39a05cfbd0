//! Which endpoints of a Service's port are used on this node, as kube-proxy chooses them.
//!
//! Ready endpoints are used; if there is none, those that terminate but still serve. Hints of EndpointSlices narrow the
//! choice to endpoints for this node or its zone, if all ready endpoints have such hints and at least one matches. The
//! endpoints of the Local traffic policy are chosen separately, among those of this node, without hints.

use std::collections::{BTreeMap, BTreeSet};

use crate::endpoints::{Endpoint, NodeFacts, PortEndpoint};
use crate::service::Backend;

/// The endpoints in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Those of the Cluster traffic policy.
    pub(crate) cluster: BTreeSet<Backend>,
    /// Those of the Local traffic policy.
    pub(crate) local: BTreeSet<Backend>,
}

impl Choice {
    /// The first of them, up to a number.
    pub(crate) fn limited(self, max: usize) -> Self {
        let first = |backends: BTreeSet<Backend>| backends.into_iter().take(max).collect();
        Self { cluster: first(self.cluster), local: first(self.local) }
    }
}

/// Chooses among all endpoints of a port. If there is any to choose in the cluster, the choice for the Cluster traffic policy
/// is not empty.
pub(crate) fn choose(all: &BTreeMap<Backend, PortEndpoint<'_>>, node: &NodeFacts) -> Choice {
    let matches = topology(all, node);
    let pick = |is_used: &dyn Fn(&PortEndpoint<'_>) -> bool| -> BTreeSet<Backend> {
        all.iter().filter(|(_, one)| is_used(one)).map(|(backend, _)| *backend).collect()
    };
    let or_terminating = |ready: BTreeSet<Backend>, is_there: &dyn Fn(&PortEndpoint<'_>) -> bool| {
        let is_used = |one: &PortEndpoint<'_>| is_there(one) && one.is_serving_terminating();
        if ready.is_empty() { pick(&is_used) } else { ready }
    };
    let cluster = pick(&|one| one.endpoint.ready && matches.is_match(one.endpoint, node));
    let local = pick(&|one| one.endpoint.ready && one.is_local);
    Choice { cluster: or_terminating(cluster, &|_| true), local: or_terminating(local, &|one| one.is_local) }
}

/// Which hints count.
enum Topology {
    None,
    Node,
    Zone,
}

fn topology(all: &BTreeMap<Backend, PortEndpoint<'_>>, node: &NodeFacts) -> Topology {
    let ready = || all.values().map(|one| one.endpoint).filter(|endpoint| endpoint.ready);
    let is_usable = |hints: fn(&Endpoint) -> &[String], topology: &Topology| {
        ready().all(|endpoint| !hints(endpoint).is_empty())
            && ready().any(|endpoint| topology.is_match(endpoint, node))
    };
    if is_usable(|endpoint| &endpoint.node_hints, &Topology::Node) {
        Topology::Node
    } else if is_usable(|endpoint| &endpoint.zone_hints, &Topology::Zone) {
        Topology::Zone
    } else {
        Topology::None
    }
}

impl Topology {
    fn is_match(&self, endpoint: &Endpoint, node: &NodeFacts) -> bool {
        match self {
            Self::None => true,
            Self::Node => endpoint.node_hints.contains(&node.name),
            Self::Zone => node.zone.as_ref().is_some_and(|zone| endpoint.zone_hints.contains(zone)),
        }
    }
}
