//! An API server with Services and pools, and the controller that watches it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_controller_engine::{
    AddressCondition, CLASS, Effect, Event, NodeAddresses, ServiceInfo, State, step,
};
use knit_crds::{Object, WatchUpdate};
use serde_json::{Value, json};

use crate::node;

pub type Service = ServiceInfo;
type Name = (String, String);

const START: i64 = 1_000_000;
/// More rounds than any change needs.
const MAX_ROUNDS: usize = 50;

/// A Service of Knit's class.
pub fn service() -> Service {
    Service {
        is_load_balancer: true,
        class: Some(CLASS.to_owned()),
        families: vec![false],
        ..Service::default()
    }
}

pub fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn name(namespace: &str, name: &str) -> Name {
    (namespace.to_owned(), name.to_owned())
}

pub struct ApiServer {
    pub services: BTreeMap<Name, Service>,
    pub pools: BTreeMap<String, Value>,
    nodes: BTreeMap<String, NodeAddresses>,
    gateways: Vec<Value>,
    version: u64,
    pub pool_status: BTreeMap<String, Value>,
    pub last_manifest: Value,
    controller: State,
    enabled: bool,
    pub now: i64,
}

impl ApiServer {
    pub fn new() -> Self {
        Self::with(true)
    }

    pub fn without_service_proxy() -> Self {
        Self::with(false)
    }

    fn with(enabled: bool) -> Self {
        let mut api = Self {
            services: BTreeMap::new(),
            pools: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gateways: Vec::new(),
            version: 0,
            pool_status: BTreeMap::new(),
            last_manifest: Value::Null,
            controller: State::default(),
            enabled,
            now: START,
        };
        api.restart();
        api
    }

    /// A new leader, which lists everything.
    pub fn restart(&mut self) {
        self.controller =
            if self.enabled { State::default().with_service_addresses() } else { State::default() };
        for kind in Object::kinds() {
            let objects = match kind.kind.as_str() {
                "ServiceAddressPool" => self.pools.values().map(parsed).collect(),
                "EgressGateway" => self.gateways.iter().map(parsed).collect(),
                _ => Vec::new(),
            };
            self.handle(Event::Objects(&kind.kind, Box::new(WatchUpdate::Listed(objects))));
        }
        self.handle(Event::PodStates(WatchUpdate::Listed(Vec::new())));
        self.handle(Event::NodeNetworks(WatchUpdate::Listed(Vec::new())));
        self.handle(Event::Samples(WatchUpdate::Listed(Vec::new())));
        self.handle(Event::Blocks(WatchUpdate::Listed(Vec::new())));
        self.handle(Event::ClusterNodes(WatchUpdate::Listed(vec![node("node1")])));
        if self.enabled {
            assert_eq!(
                step(&mut self.controller, Event::Reconcile, self.now),
                [],
                "Services have not synced"
            );
            let services = self.services.clone().into_iter().collect();
            self.handle(Event::Services(WatchUpdate::Listed(services)));
            let nodes = self.nodes.clone().into_iter().collect();
            self.handle(Event::NodeAddresses(WatchUpdate::Listed(nodes)));
        }
    }

    fn handle(&mut self, event: Event) {
        assert_eq!(step(&mut self.controller, event, self.now), []);
    }

    pub fn apply_pool(&mut self, name: &str, spec: Value) {
        self.version += 1;
        let pool = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "ServiceAddressPool",
            "metadata": {"name": name, "uid": name, "generation": self.version, "resourceVersion": self.version.to_string()},
            "spec": spec,
        });
        self.pools.insert(name.to_owned(), pool.clone());
        let update = WatchUpdate::Applied(parsed(&pool));
        self.handle(Event::Objects("ServiceAddressPool", Box::new(update)));
    }

    pub fn delete_pool(&mut self, name: &str) {
        let Some(pool) = self.pools.remove(name) else { return };
        let update = WatchUpdate::Deleted(parsed(&pool));
        self.handle(Event::Objects("ServiceAddressPool", Box::new(update)));
    }

    pub fn apply_gateway(&mut self, address: &str) {
        let gateway = json!({
            "apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "EgressGateway",
            "metadata": {"name": "shop", "uid": "g", "generation": 1, "resourceVersion": "1"},
            "spec": {"namespaces": ["shop"], "addresses": [address], "nodes": ["node1"]},
        });
        self.gateways.push(gateway.clone());
        self.handle(Event::Objects("EgressGateway", Box::new(WatchUpdate::Applied(parsed(&gateway)))));
    }

    pub fn set_node(&mut self, name: &str, addresses: NodeAddresses) {
        self.nodes.insert(name.to_owned(), addresses.clone());
        self.handle(Event::NodeAddresses(WatchUpdate::Applied((name.to_owned(), addresses))));
    }

    /// Creates or replaces a Service.
    pub fn put(&mut self, namespace: &str, service: &str, mut spec: Service) {
        self.version += 1;
        spec.version = self.version.to_string();
        let name = name(namespace, service);
        spec.uid = match self.services.get(&name) {
            Some(before) => before.uid.clone(),
            None => spec.version.clone(),
        };
        self.services.insert(name.clone(), spec.clone());
        if self.enabled {
            self.handle(Event::Services(WatchUpdate::Applied((name, spec))));
        }
    }

    pub fn change(&mut self, namespace: &str, service: &str, change: impl FnOnce(&mut Service)) {
        let mut spec = self.services[&name(namespace, service)].clone();
        change(&mut spec);
        self.put(namespace, service, spec);
    }

    pub fn delete(&mut self, namespace: &str, service: &str) {
        let name = name(namespace, service);
        if let Some(gone) = self.services.remove(&name)
            && self.enabled
        {
            self.handle(Event::Services(WatchUpdate::Deleted((name, gone))));
        }
    }

    /// Another program sets the address of a Service.
    pub fn set_foreign_ingress(&mut self, namespace: &str, service: &str, address: &str) {
        self.change(namespace, service, |service| service.ingress = addresses(&[address]));
    }

    /// The status is as if Knit had assigned this address.
    pub fn set_own_ingress(&mut self, namespace: &str, service: &str, address: &str) {
        self.change(namespace, service, |service| {
            service.ingress = addresses(&[address]);
            let (reason, message) = ("AddressAssigned".to_owned(), String::new());
            let since = String::new();
            service.condition = Some(AddressCondition { is_assigned: true, reason, message, since });
        });
    }

    /// Reconciles, and returns the effects without any result.
    pub fn reconcile_without_writes(&mut self) -> Vec<Effect> {
        let effects = step(&mut self.controller, Event::Reconcile, self.now);
        for effect in &effects {
            if let Effect::WriteServiceStatus { manifest, .. } = effect {
                self.last_manifest = manifest.clone();
            }
        }
        effects
    }

    pub fn write_failed(&mut self, namespace: &str, service: &str) {
        self.handle(Event::ServiceWriteFailed(name(namespace, service)));
    }

    /// The API server executes writes until there are none. Returns the Events about Services.
    pub fn settle(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let effects = self.reconcile_without_writes();
            if effects.is_empty() {
                return events;
            }
            for effect in effects {
                match effect {
                    Effect::WriteServiceStatus { manifest, .. } => drop(self.write(&manifest)),
                    Effect::PublishEvent { object, severity, reason, note } if object.kind == "Service" => {
                        events.push(format!(
                            "{severity:?} {reason} {}/{} {note}",
                            object.namespace, object.name
                        ));
                    }
                    Effect::WriteStatus(key, status) => drop(self.pool_status.insert(key.name, status)),
                    _ => {}
                }
            }
        }
        panic!("it never settles");
    }

    /// A write of the status, which fails if the Service has changed since. Returns whether it had an effect.
    pub fn write(&mut self, manifest: &Value) -> bool {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &manifest["metadata"];
        let name = (text(&metadata["namespace"]), text(&metadata["name"]));
        let Some(service) = self.services.get(&name) else { return false };
        if service.version != text(&metadata["resourceVersion"]) {
            return false;
        }
        let mut service = service.clone();
        let ingress = manifest["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default();
        let is_own = service.condition.as_ref().is_some_and(|condition| condition.is_assigned);
        // Fields of other programs stay.
        if is_own || !ingress.is_empty() {
            service.ingress =
                ingress.iter().map(|one| one["ip"].as_str().unwrap().parse().unwrap()).collect();
        }
        let condition = manifest["status"]["conditions"].get(0);
        service.condition = condition.map(|condition| AddressCondition {
            is_assigned: condition["status"] == "True",
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
            since: text(&condition["lastTransitionTime"]),
        });
        self.put(&name.0, &name.1, service);
        true
    }

    /// The addresses and the reason of the condition.
    pub fn status(&self, namespace: &str, service: &str) -> (BTreeSet<IpAddr>, Option<String>) {
        let service = &self.services[&name(namespace, service)];
        (service.ingress.clone(), service.condition.as_ref().map(|condition| condition.reason.clone()))
    }

    pub fn reason(&self, namespace: &str, service: &str) -> String {
        self.status(namespace, service).1.unwrap_or_default()
    }

    /// The reason in the last manifest, which is about this Service.
    pub fn reason_written(&self, service: &str) -> String {
        assert_eq!(self.last_manifest["metadata"]["name"], service);
        self.last_manifest["status"]["conditions"][0]["reason"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn only_address(&self, namespace: &str, service: &str) -> IpAddr {
        let (addresses, reason) = self.status(namespace, service);
        assert_eq!(
            (addresses.len(), reason.as_deref()),
            (1, Some("AddressAssigned")),
            "{namespace}/{service}"
        );
        addresses.into_iter().next().unwrap()
    }

    pub fn all_addresses(&self) -> BTreeSet<IpAddr> {
        self.services.values().flat_map(|service| &service.ingress).copied().collect()
    }

    /// Total, used and free addresses in the status of a pool.
    pub fn counts(&self, pool: &str) -> Option<(i64, i64, i64)> {
        let counts = self.pool_status.get(pool)?.get("addresses")?;
        let count = |field: &str| counts[field].as_i64();
        Some((count("total")?, count("used")?, count("free")?))
    }
}

fn parsed(manifest: &Value) -> Object {
    Object::from_manifest(manifest).unwrap()
}
