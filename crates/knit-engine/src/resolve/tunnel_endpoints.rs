//! Tunnels to a pod: the addresses of both ends.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_ipam::{AttachmentId, LeaseKey};
use knit_model::link::Kind;
use knit_model::problem::Reason;
use knit_model::{IfName, Problems, Sandbox};

use super::interface::{Builder, RequestedInterface};
use crate::event::Unit;
use crate::state::State;

impl Builder<'_> {
    /// The requested kind. A tunnel to a pod gets the remote pod's address on a network that both share.
    pub(super) fn with_remote_end(&self, requested: &RequestedInterface) -> Result<Kind, (Reason, String)> {
        let kind = &requested.spec.kind;
        let Some(pod) = &requested.spec.remote_pod else { return Ok(kind.clone()) };
        let title = format!("{}/{pod}", self.sandbox.namespace);
        if *pod == self.sandbox.pod {
            let message =
                format!("pod {title} would be the remote end of its own tunnel: select another pod");
            return Err((Reason::InvalidValue, message));
        }
        let remote = pods_named(self.state, &self.sandbox.namespace, pod);
        if remote.is_empty() {
            return Err((Reason::NotFound, format!("there is no pod {title} on this node")));
        }
        let local_keys = self.local_ends(requested)?;
        let mut rejected = None;
        for (local, remote) in remote.iter().flat_map(|remote| pairs(self.state, remote, &local_keys)) {
            let mut candidate = kind.clone();
            candidate.set_endpoints(local, remote);
            let mut problems = Problems::default();
            candidate.check("spec", &mut problems);
            if problems.is_empty() {
                return Ok(candidate);
            }
            rejected = rejected.or(Some((Reason::InvalidValue, format!("pod {title}: {problems}"))));
        }
        Err(rejected.unwrap_or_else(|| {
            let message = format!(
                "pod {title} has no address on a network of pod {}: put both on one, or state an address",
                self.sandbox.title()
            );
            (Reason::NotFound, message)
        }))
    }

    /// The possible local addresses of a tunnel with their networks: those of its parent, or of all interfaces that
    /// are not tunnels.
    fn local_ends(&self, requested: &RequestedInterface) -> Result<Vec<LeaseKey>, (Reason, String)> {
        let interfaces: Vec<&IfName> = match requested.spec.parent.as_deref() {
            Some(parent) => {
                let interface = self.names.get(parent).ok_or_else(|| {
                    let message = format!(
                        "the addresses of pods on {parent} are unknown, because {parent} is not Knit's: state the remote address"
                    );
                    (Reason::NotFound, message)
                })?;
                vec![interface]
            }
            None => {
                let links = self.resolved.desired.state.scopes.get(&self.scope()).map(|scope| &scope.links);
                let plain = links.into_iter().flatten().filter(|(_, link)| link.kind.overhead() == 0);
                plain.map(|(name, _)| name).collect()
            }
        };
        let mut local_keys = Vec::new();
        for interface in interfaces {
            let owner = AttachmentId { sandbox: self.sandbox.id.clone(), interface: interface.clone() };
            local_keys.extend(self.state.leases.held_by(&owner).cloned());
        }
        Ok(local_keys)
    }
}

/// The sandboxes of a pod, the newest first: a terminating one may still exist.
fn pods_named<'a>(state: &'a State, namespace: &str, pod: &str) -> Vec<&'a Sandbox> {
    let is_it = |sandbox: &&Sandbox| sandbox.namespace == namespace && sandbox.pod == pod;
    let mut found: Vec<&Sandbox> = state.sandboxes.values().filter(is_it).collect();
    found.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.instance.cookie));
    found
}

/// The pairs of local and remote addresses on the same network, as applied.
fn pairs(state: &State, sandbox: &Sandbox, local_keys: &[LeaseKey]) -> Vec<(IpAddr, IpAddr)> {
    let unit_state = state.units.get(&Unit::Sandbox(sandbox.id.clone()));
    let interfaces: Vec<_> = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces).collect();
    let mut found = Vec::new();
    for local in local_keys {
        let on_it = |address: &IpAddr| {
            let lease = state.leases.get(&local.network, *address);
            let is_its = lease.is_some_and(|lease| lease.is_live() && lease.owner.sandbox == sandbox.id);
            is_its && address.is_ipv4() == local.address.is_ipv4()
        };
        let addresses = interfaces.iter().flat_map(|(_, interface)| &interface.addresses);
        found.extend(
            addresses.map(|address| address.addr()).filter(on_it).map(|remote| (local.address, remote)),
        );
    }
    found
}

/// The sandboxes with a tunnel to this pod.
pub(crate) fn tunnel_peers(state: &State, pod: &Sandbox) -> BTreeSet<Unit> {
    let specs = state.objects.of_namespace(&pod.namespace).flat_map(|(key, object)| {
        let specs = object.intents.iter().filter_map(|intent| intent.spec.interface());
        specs.map(move |spec| (key, spec))
    });
    let named = specs.filter(|(_, spec)| spec.remote_pod.as_deref() == Some(pod.pod.as_str()));
    let mut units = BTreeSet::new();
    for (key, spec) in named {
        let with_it = state.sandboxes.values().filter(|sandbox| spec.pods.matches(&key.namespace, sandbox));
        units.extend(with_it.map(|sandbox| Unit::Sandbox(sandbox.id.clone())));
    }
    units.remove(&Unit::Sandbox(pod.id.clone()));
    units
}
