//! Interfaces of pods: those of their calls, objects and annotations, and no others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_engine::Unit;
use knit_model::problem::{Problem, Reason};
use knit_model::{SandboxId, Scope};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::node::Node;
use crate::scenario::pod_range;

impl Cluster {
    /// The primary interface of a pod has an address of its tenant's pool, or of the node's range.
    pub(crate) fn check_primary_addresses(&mut self, number: u32, addresses: &[IpAddr]) {
        let pod = &self.pods[number as usize];
        let node = pod.node;
        let is_right = |address: &IpAddr| match pod.tenant {
            Some(tenant) => self.tenants[tenant].allows(*address, node),
            None => pod_range(node).contains(address),
        };
        if addresses.is_empty() {
            return self.fail(&[node], format!("pod-{number} is attached without an address"));
        }
        if let Some(address) = addresses.iter().find(|address| !is_right(address)) {
            let what = format!("pod-{number} is attached with {address}, which is not of its pool or node");
            self.fail(&[node], what);
        }
    }

    /// The interfaces that a pod should have, with their MTU where a definition sets it.
    fn expected_interfaces(&self, number: u32) -> BTreeMap<String, Option<u64>> {
        let pod = &self.pods[number as usize];
        let mut expected = BTreeMap::from([("eth0".to_owned(), None)]);
        let Some(tenant) = pod.tenant else { return expected };
        expected.insert("net0".to_owned(), None);
        for (index, definition) in pod.annotation.definitions().iter().enumerate() {
            let config = self.api.definition(tenant, *definition);
            let config: Value = config.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            expected.insert(format!("net{}", index + 1), config["mtu"].as_u64());
        }
        expected
    }

    /// What is missing of a pod without a reported problem that explains it.
    pub(crate) fn missing_interfaces(&self, number: u32) -> Option<String> {
        let pod = &self.pods[number as usize];
        let unit = Unit::Sandbox(pod.sandbox.clone()?);
        let state = &self.nodes[pod.node].state;
        let has = state.units.get(&unit).map_or(0, |made| made.interfaces.len());
        let expected = 1 + usize::from(pod.tenant.is_some()) + pod.annotation.definitions().len();
        let mut problems = state.problems.get(&unit).into_iter().flatten().map(|(_, problem)| problem);
        // What remains after all faults is a lack of addresses or quota.
        let is_final =
            |problem: &Problem| [Reason::AddressesExhausted, Reason::QuotaExceeded].contains(&problem.reason);
        if let Some(problem) = problems.clone().find(|problem| !is_final(problem)) {
            return Some(format!("pod-{number} has a problem: {}", problem.message));
        }
        (has != expected && problems.next().is_none())
            .then(|| format!("pod-{number} has {has} of {expected} interfaces and no reported problem"))
    }

    /// The kernel has exactly the interfaces of a pod; fewer only with a reported problem.
    pub(crate) fn wrong_interfaces(&self) -> Option<(usize, String)> {
        self.live.iter().find_map(|number| {
            let pod = &self.pods[*number as usize];
            let (id, here) = (pod.sandbox.as_ref()?, &self.nodes[pod.node]);
            let existing = interfaces(here, id);
            let expected = self.expected_interfaces(*number);
            let is_short = here.state.problems.contains_key(&Unit::Sandbox(id.clone()));
            let foreign = existing.keys().find(|name| !expected.contains_key(*name));
            let missing = expected.keys().find(|name| !existing.contains_key(*name) && !is_short);
            let has_mtu = |(name, mtu): &(&String, &Option<u64>)| {
                mtu.is_none() || existing.get(*name).is_none_or(|existing| existing == *mtu)
            };
            let stale = expected.iter().find(|pair| !has_mtu(pair)).map(|(name, _)| name);
            let what = match (foreign, missing, stale) {
                (Some(name), ..) => format!("pod-{number} has interface {name}, which nothing requests"),
                (_, Some(name), _) => format!("pod-{number} lacks interface {name}"),
                (.., Some(name)) => format!("pod-{number}: {name} has another MTU than its definition"),
                _ => return None,
            };
            Some((pod.node, what))
        })
    }
}

/// The interfaces of a sandbox in the kernel, each with its MTU.
pub(crate) fn interfaces(node: &Node, id: &SandboxId) -> BTreeMap<String, Option<u64>> {
    let scope = Scope::Sandbox(id.clone());
    let mut observed = node.kernel.observe_in(|other| *other == scope);
    let links = std::mem::take(&mut observed.scope(&scope).links);
    let links = links.into_values().filter(|link| link.name.as_str() != "lo");
    links.map(|link| (link.name.to_string(), link.attrs.mtu.map(u64::from))).collect()
}
