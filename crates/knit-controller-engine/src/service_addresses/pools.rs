//! The pools, and what else uses addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use knit_crds::Object;
use knit_crds::kinds::AddressCounts;
use knit_engine::ObjectKey;
use knit_model::intent::{IntentSpec, ServiceAddressIntent};
use knit_model::provenance::Dialect;

use super::KIND;
use super::service::{CLASS, ServiceInfo};
use crate::state::{Name, State};

/// All pools by name, and what else uses addresses.
pub(super) struct Pools {
    all: Vec<Pool>,
    /// Addresses that no Service may have.
    reserved: BTreeSet<IpAddr>,
}

/// A pool.
pub(super) struct Pool {
    pub(super) spec: ServiceAddressIntent,
    /// What it overlaps. No new address is assigned from such a pool.
    pub(super) conflicts: Vec<String>,
}

impl Pool {
    pub(super) fn has_family(&self, ipv6: bool) -> bool {
        self.spec.ranges.iter().any(|range| range.addr().is_ipv6() == ipv6)
    }

    fn is_for_class(&self, service: &ServiceInfo) -> bool {
        service.class.as_deref().map_or(self.spec.without_class, |class| class == CLASS)
    }

    fn lists(&self, namespace: &str) -> bool {
        self.spec.namespaces.iter().any(|listed| listed == namespace)
    }
}

impl Pools {
    pub(super) fn of(state: &State) -> Self {
        let specs: Vec<ServiceAddressIntent> = specs(state).collect();
        let used = used_ranges(state);
        let pools = specs.iter().enumerate().map(|(number, spec)| {
            let overlaps =
                |range: &IpNet| spec.ranges.iter().any(|own| own.contains(range) || range.contains(own));
            let others = specs[..number].iter().filter(|other| other.ranges.iter().any(overlaps));
            let others = others.map(|other| format!("overlaps pool {}", other.name));
            let used = used.iter().filter(|(range, _)| overlaps(range));
            let used = used.map(|(range, what)| format!("overlaps {range}, {what}"));
            // The first of each: there may be thousands.
            let conflicts = others.take(1).chain(used.take(1)).collect();
            Pool { spec: spec.clone(), conflicts }
        });
        Self { all: pools.collect(), reserved: reserved(state) }
    }

    /// Whether Knit assigns the addresses of a Service, or reports why it does not.
    pub(super) fn are_for(&self, service: &ServiceInfo) -> bool {
        if !service.is_load_balancer || service.is_assigned_by_other() {
            return false;
        }
        service.class.as_deref() == Some(CLASS) || self.all.iter().any(|pool| pool.is_for_class(service))
    }

    /// The pools that a Service may use in a family, or why there is none.
    pub(super) fn permitted(
        &self,
        name: &Name,
        service: &ServiceInfo,
        ipv6: bool,
    ) -> Result<Vec<&Pool>, (&'static str, String)> {
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        let mut pools: Vec<&Pool> =
            self.all.iter().filter(|pool| pool.has_family(ipv6) && pool.is_for_class(service)).collect();
        if pools.is_empty() {
            return Err((
                "NoAddressPool",
                format!("there is no ServiceAddressPool with {family} addresses for it"),
            ));
        }
        let is_listed = pools.iter().any(|pool| pool.lists(&name.0));
        pools.retain(|pool| if is_listed { pool.lists(&name.0) } else { pool.spec.namespaces.is_empty() });
        let selects = |pool: &&Pool| {
            pool.spec.services.as_ref().is_none_or(|selector| selector.matches_labels(&service.labels))
        };
        pools.retain(selects);
        if let Some(requested) = &service.pool {
            pools.retain(|pool| pool.spec.name == *requested);
            if pools.is_empty() {
                let why =
                    format!("it may not use a pool {requested} with {family} addresses, or there is none");
                return Err(("PoolNotAllowed", why));
            }
        }
        if pools.is_empty() {
            let why =
                format!("no ServiceAddressPool with {family} addresses is for its namespace and labels");
            return Err(("PoolNotAllowed", why));
        }
        Ok(pools)
    }

    /// Whether no Service may have an address, whatever pool it is in.
    pub(super) fn is_reserved(&self, address: IpAddr) -> bool {
        self.reserved.contains(&address)
    }

    /// The pool of an address.
    pub(super) fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.all.iter().find(|pool| pool.spec.contains(address)).map(|pool| pool.spec.name.as_str())
    }

    /// The addresses of each pool.
    pub(super) fn counts(&self, assigned: &BTreeSet<IpAddr>) -> BTreeMap<String, AddressCounts> {
        let count = |pool: &Pool| {
            let total = pool.spec.capacity(false).saturating_add(pool.spec.capacity(true));
            let total = i64::try_from(total).unwrap_or(i64::MAX);
            let inside =
                |all: &BTreeSet<IpAddr>| all.iter().filter(|one| pool.spec.contains(**one)).count() as i64;
            let used = inside(assigned);
            let taken = inside(&assigned.union(&self.reserved).copied().collect());
            (pool.spec.name.clone(), AddressCounts { total, used, free: (total - taken).max(0) })
        };
        self.all.iter().map(count).collect()
    }

    /// What each pool overlaps.
    pub(super) fn conflicts(&self) -> BTreeMap<String, Vec<String>> {
        let with = self.all.iter().filter(|pool| !pool.conflicts.is_empty());
        with.map(|pool| (pool.spec.name.clone(), pool.conflicts.clone())).collect()
    }
}

/// Valid pools that are not being deleted, by name.
fn specs(state: &State) -> impl Iterator<Item = ServiceAddressIntent> {
    objects(state, KIND).filter(|object| object.metadata().deletion_timestamp.is_none()).filter_map(
        |object| {
            let intents = object.intents(Dialect::Kubernetes).ok()?.intents;
            intents.into_iter().find_map(|intent| match intent.spec {
                IntentSpec::ServiceAddresses(spec) => Some(spec),
                _ => None,
            })
        },
    )
}

fn objects<'a>(state: &'a State, kind: &'a str) -> impl Iterator<Item = &'a Object> {
    let from = ObjectKey { kind: kind.to_owned(), namespace: String::new(), name: String::new() };
    let all = state.objects.range(from..).take_while(move |(key, _)| key.kind == kind);
    all.map(|(_, tracked)| &tracked.object)
}

fn intents<'a>(state: &'a State, kind: &'a str) -> impl Iterator<Item = IntentSpec> {
    let translated = objects(state, kind).filter_map(|object| object.intents(Dialect::Kubernetes).ok());
    translated.flat_map(|translation| translation.intents).map(|intent| intent.spec)
}

/// Ranges of pods, and cluster IPs, which show where the ranges of Services are.
fn used_ranges(state: &State) -> Vec<(IpNet, String)> {
    let pools = intents(state, "PodAddressPool").filter_map(|spec| match spec {
        IntentSpec::AddressPool(pool) => {
            Some((pool.range, format!("the range of PodAddressPool {}", pool.name)))
        }
        _ => None,
    });
    let all = &state.service_addresses;
    let nodes = all.nodes.iter().flat_map(|(name, node)| {
        node.pod_ranges.iter().map(move |range| (*range, format!("the pods of node {name}")))
    });
    let services = all.services.iter().flat_map(|((namespace, name), service)| {
        let addresses = service.info.cluster_ips.iter();
        addresses.map(move |address| {
            (IpNet::from(*address), format!("the cluster IP of Service {namespace}/{name}"))
        })
    });
    pools.chain(nodes).chain(services).collect()
}

/// Addresses of nodes and egress gateways, and those of Services that Knit did not assign.
fn reserved(state: &State) -> BTreeSet<IpAddr> {
    let all = &state.service_addresses;
    let mut reserved: BTreeSet<IpAddr> =
        all.nodes.values().flat_map(|node| &node.addresses).copied().collect();
    for spec in intents(state, "EgressGateway") {
        if let IntentSpec::EgressGateway(gateway) = spec {
            reserved.extend(gateway.addresses);
        }
    }
    for service in all.services.values().map(|service| &service.info) {
        reserved.extend(&service.external_ips);
        if service.is_assigned_by_other() {
            reserved.extend(&service.ingress);
        }
    }
    reserved
}
