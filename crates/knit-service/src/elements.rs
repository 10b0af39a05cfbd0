//! The elements of sets and maps that follow from one Service. No other Service has any of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::filter::field::IpFamily;
use knit_model::filter::{ElementData, ElementKey, KeyPart, TableFamily, outermost};

use crate::affinity::ids;
use crate::chain::Scope;
use crate::claims::Claim;
use crate::endpoints::NodeFacts;
use crate::evaluate::FrontendKind;
use crate::index::ServiceIndex;
use crate::names::{self, FrontendSets};
use crate::service::{Backend, Frontend, ServiceKey};
use crate::state::{PortState, ServiceState};

/// What connections to a frontend meet.
#[derive(Clone, Copy)]
enum Target {
    Backends(Scope),
    NoEndpoints,
    NoLocalEndpoints,
}

impl ServiceIndex {
    /// The elements of a Service. When several Services change, their elements have to change in one transaction: a frontend
    /// may move from one to the other.
    pub fn elements_of(&self, key: &ServiceKey) -> BTreeMap<ElementKey, ElementData> {
        let mut elements = Elements::default();
        if let Some(state) = self.state(key) {
            state.ports.iter().for_each(|port| elements.add_port(state, port, &self.node));
            for claim in &state.has {
                match claim {
                    Claim::Hairpin(address) => {
                        elements.add_of(*address, names::HAIRPIN, [*address; 2].map(KeyPart::from));
                    }
                    Claim::Address(address) if state.service.cluster_ips.contains(address) => {
                        elements.add_of(*address, names::CLUSTER_IPS, [KeyPart::from(*address)]);
                    }
                    Claim::Announced(address) => {
                        elements.add_of(*address, names::ANNOUNCED, [KeyPart::from(*address)]);
                    }
                    Claim::Address(_) | Claim::Frontend(_) => {}
                }
            }
        }
        elements.all
    }
}

#[derive(Default)]
struct Elements {
    all: BTreeMap<ElementKey, ElementData>,
}

impl Elements {
    fn add(&mut self, set: String, key: impl Into<Vec<KeyPart>>, data: ElementData) {
        self.all.insert(TableFamily::Inet.table().element(set, key.into()), data);
    }

    /// Adds an element to the set of an address's family.
    fn add_of(&mut self, address: IpAddr, set: &str, key: impl Into<Vec<KeyPart>>) {
        self.add(IpFamily::of(address).suffixed(set), key, ElementData::Key);
    }

    fn add_port(&mut self, state: &ServiceState, port: &PortState, node: &NodeFacts) {
        let ids = state.service.affinity.map(|seconds| ids(port.backends(), seconds));
        for (kind, frontend) in state.frontends(port) {
            let of = FrontendElements::new(port, &frontend);
            if let (FrontendKind::LoadBalancer, Frontend::Address { address, .. }) = (kind, frontend) {
                self.add_sources(state, address, &of.key, node);
            }
            let is_external = kind != FrontendKind::ClusterIp;
            let is_local =
                if is_external { state.service.external_local } else { state.service.internal_local };
            let mut scopes = Vec::new();
            match target(port, is_local) {
                Target::Backends(scope) => {
                    scopes.push(scope);
                    self.add_slots(&of, of.sets.slots, scope, port);
                    if is_external && !is_local {
                        self.add(of.set(of.sets.masquerade), of.key.clone(), ElementData::Key);
                    }
                }
                Target::NoEndpoints => {
                    self.add(of.set(of.sets.no_endpoints), of.key, ElementData::Key);
                    continue;
                }
                Target::NoLocalEndpoints => {
                    self.add(of.set(of.sets.no_local_endpoints), of.key.clone(), ElementData::Key);
                }
            }
            if is_external && is_local {
                scopes.push(Scope::Cluster);
                self.add_slots(&of, of.sets.internal_slots, Scope::Cluster, port);
                self.add(of.set(of.sets.masquerade_node), of.key.clone(), ElementData::Key);
            }
            for scope in scopes {
                self.add_backends(&of, scope, port, ids.as_ref());
            }
        }
    }

    /// Adds how many backends a frontend has.
    fn add_slots(&mut self, of: &FrontendElements, map: &str, scope: Scope, port: &PortState) {
        let slots = scope.number(port.slots(scope).len() as u32);
        self.add(of.set(map), of.key.clone(), ElementData::Values(vec![slots.into()]));
    }

    /// Adds the backends of a frontend by slot; with affinity by id, and the ids by slot.
    fn add_backends(
        &mut self,
        of: &FrontendElements,
        scope: Scope,
        port: &PortState,
        ids: Option<&BTreeMap<Backend, u32>>,
    ) {
        for (slot, backend) in (0u32..).zip(port.slots(scope)) {
            let mut number = scope.number(slot);
            if let Some(ids) = ids {
                let slot = of.numbered(number);
                number = ids[backend];
                self.add(of.set(of.sets.affinity_slots), slot, ElementData::Values(vec![number.into()]));
            }
            let values = vec![backend.address.into(), backend.port.into()];
            self.add(of.set(of.sets.backends), of.numbered(number), ElementData::Values(values));
        }
    }

    /// Adds the sources that may use a load balancer.
    fn add_sources(&mut self, state: &ServiceState, address: IpAddr, key: &[KeyPart], node: &NodeFacts) {
        let family = IpFamily::of(address);
        let ranges = state.service.source_ranges.iter().copied();
        let mut ranges: Vec<IpNet> = ranges.filter(|range| IpFamily::of(range.network()) == family).collect();
        if ranges.is_empty() {
            return;
        }
        if node.addresses.iter().any(|own| ranges.iter().any(|range| range.contains(own))) {
            ranges.extend(state.service.load_balancer_ips_of(family).into_iter().map(IpNet::from));
        }
        self.add(family.suffixed(names::RESTRICTED), key, ElementData::Key);
        for range in outermost(ranges) {
            let frontend = key.iter().map(|part| KeyPart::only(part.bounds().0.clone()));
            let key: Vec<KeyPart> = frontend.chain([KeyPart::range(range)]).collect();
            self.add(family.suffixed(names::ALLOWED_SOURCES), key, ElementData::Key);
        }
    }
}

/// What the elements about one frontend have in common.
struct FrontendElements {
    family: IpFamily,
    sets: FrontendSets,
    key: Vec<KeyPart>,
}

impl FrontendElements {
    fn new(port: &PortState, frontend: &Frontend) -> Self {
        let (sets, key) = match frontend {
            Frontend::Address { address, protocol, port } => {
                (names::IPS, vec![(*address).into(), protocol.value().into(), (*port).into()])
            }
            Frontend::NodePort { protocol, port, .. } => {
                (names::NODE_PORTS, vec![protocol.value().into(), (*port).into()])
            }
        };
        Self { family: port.identity.family(), sets, key }
    }

    fn set(&self, name: &str) -> String {
        self.family.suffixed(name)
    }

    /// Its key with a slot or an id.
    fn numbered(&self, number: u32) -> Vec<KeyPart> {
        self.key.iter().cloned().chain([KeyPart::from(number)]).collect()
    }
}

fn target(port: &PortState, is_local: bool) -> Target {
    match (port.has_endpoints, is_local) {
        (false, _) => Target::NoEndpoints,
        (true, false) => Target::Backends(Scope::Cluster),
        (true, true) if port.local.is_empty() => Target::NoLocalEndpoints,
        (true, true) => Target::Backends(Scope::Local),
    }
}
