//! What a tunnel needs to know of others: the address of the pod at its far end.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_ipam::{AttachmentId, Key};
use knit_model::link::Kind;
use knit_model::problem::Reason;
use knit_model::{IfName, Problems, Sandbox};

use super::interface::{Builder, Wanted};
use crate::event::Unit;
use crate::state::State;

impl Builder<'_> {
    /// The wanted kind. A tunnel to a pod gets the address that this pod has on a network that both are on.
    pub(super) fn with_far_end(&self, wanted: &Wanted) -> Result<Kind, (Reason, String)> {
        let kind = &wanted.want.kind;
        let Some(pod) = &wanted.want.remote_pod else { return Ok(kind.clone()) };
        let title = format!("{}/{pod}", self.sandbox.namespace);
        if *pod == self.sandbox.pod {
            let message = format!("pod {title} would be the far end of its own tunnel: select another pod");
            return Err((Reason::InvalidValue, message));
        }
        let far = pods_named(self.state, &self.sandbox.namespace, pod);
        if far.is_empty() {
            return Err((Reason::NotFound, format!("there is no pod {title} on this node")));
        }
        let mine = self.possible_near_ends(wanted)?;
        let mut refused = None;
        for (local, remote) in far.iter().flat_map(|far| pairs(self.state, far, &mine)) {
            let mut candidate = kind.clone();
            candidate.set_ends(local, remote);
            let mut problems = Problems::default();
            candidate.check("spec", &mut problems);
            if problems.is_empty() {
                return Ok(candidate);
            }
            refused = refused.or(Some((Reason::InvalidValue, format!("pod {title}: {problems}"))));
        }
        Err(refused.unwrap_or_else(|| {
            let message = format!(
                "pod {title} has no address on a network of pod {}: put both on one, or state an address",
                self.sandbox.title()
            );
            (Reason::NotFound, message)
        }))
    }

    /// The addresses that a tunnel may go out from, each with its network: those of its parent, or of all interfaces
    /// that are no tunnels.
    fn possible_near_ends(&self, wanted: &Wanted) -> Result<Vec<Key>, (Reason, String)> {
        let interfaces: Vec<&IfName> = match wanted.want.parent.as_deref() {
            Some(parent) => {
                let inside = self.names.get(parent).ok_or_else(|| {
                    let message = format!(
                        "what addresses pods have on {parent} is not known, because {parent} is not Knit's: state the far end's address"
                    );
                    (Reason::NotFound, message)
                })?;
                vec![inside]
            }
            None => {
                let links = self.resolved.desired.state.scopes.get(&self.scope()).map(|scope| &scope.links);
                let plain = links.into_iter().flatten().filter(|(_, link)| link.kind.overhead() == 0);
                plain.map(|(name, _)| name).collect()
            }
        };
        let mut mine = Vec::new();
        for interface in interfaces {
            let owner = AttachmentId { sandbox: self.sandbox.id.clone(), interface: interface.clone() };
            mine.extend(self.state.leases.held_by(&owner).cloned());
        }
        Ok(mine)
    }
}

/// The sandboxes of a pod, the newest first: one that is on its way out may still be there.
fn pods_named<'a>(state: &'a State, namespace: &str, pod: &str) -> Vec<&'a Sandbox> {
    let is_it = |sandbox: &&Sandbox| sandbox.namespace == namespace && sandbox.pod == pod;
    let mut found: Vec<&Sandbox> = state.sandboxes.values().filter(is_it).collect();
    found.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.instance.cookie));
    found
}

/// For each near end the addresses on its network that a sandbox has, not what it is about to get.
fn pairs(state: &State, sandbox: &Sandbox, mine: &[Key]) -> Vec<(IpAddr, IpAddr)> {
    let made = state.made.get(&Unit::Sandbox(sandbox.id.clone()));
    let interfaces: Vec<_> = made.into_iter().flat_map(|made| &made.interfaces).collect();
    let mut found = Vec::new();
    for near in mine {
        let on_it = |address: &IpAddr| {
            let lease = state.leases.get(&near.network, *address);
            let is_its = lease.is_some_and(|lease| lease.is_live() && lease.owner.sandbox == sandbox.id);
            is_its && address.is_ipv4() == near.address.is_ipv4()
        };
        let addresses = interfaces.iter().flat_map(|(_, interface)| &interface.addresses);
        found.extend(addresses.map(|address| address.addr()).filter(on_it).map(|far| (near.address, far)));
    }
    found
}

/// The sandboxes with a tunnel whose far end is this pod: they follow it.
pub(crate) fn followers(state: &State, pod: &Sandbox) -> BTreeSet<Unit> {
    let wants = state.objects.iter().flat_map(|(key, object)| {
        let wants = object.intents.iter().filter_map(|intent| intent.spec.interface());
        wants.map(move |want| (key, want))
    });
    let named = wants.filter(|(key, want)| {
        key.namespace == pod.namespace && want.remote_pod.as_deref() == Some(pod.pod.as_str())
    });
    let mut units = BTreeSet::new();
    for (key, want) in named {
        let with_it = state.sandboxes.values().filter(|sandbox| want.pods.matches(&key.namespace, sandbox));
        units.extend(with_it.map(|sandbox| Unit::Sandbox(sandbox.id.clone())));
    }
    units.remove(&Unit::Sandbox(pod.id.clone()));
    units
}
