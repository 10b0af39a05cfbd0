//! Random Services, endpoints and clients.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use knit_model::filter::field::{IpFamily, Value};
use knit_model::filter::{ElementData, ElementKey, KeyPart};
use knit_service::{
    Connection, Endpoint, EndpointSlice, FrontendKind, NodeFacts, Protocol, Service, ServiceIndex,
    ServiceKey, ServicePort, SliceKey, SlicePort, SourceClass,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use crate::naive::Cluster;
use crate::packets::Tables;
use crate::support::*;

const SERVICES: u8 = 4;
const PORTS: [(Protocol, u16); 3] = [(Protocol::Tcp, 80), (Protocol::Udp, 80), (Protocol::Tcp, 443)];
const NAMES: [&str; 2] = ["", "web"];
/// Also a cluster IP, and an address of the node.
const EXTERNAL: [&str; 5] = [EXTERNAL_IP, BALANCER, CLUSTER_IP, NODE, "2001:db8::80"];
const NODE_PORTS: [u16; 2] = [30080, 30443];
const RANGES: [&str; 5] =
    ["198.51.100.0/24", "198.51.100.0/25", "192.0.2.0/24", "0.0.0.0/0", "2001:db8:1::/48"];

/// The bit of slots of backends on this node.
const LOCAL: u32 = 0x8000_0000;
/// The bit of ids of backends.
const ID: u32 = 0x4000_0000;

/// Endpoints with the nodes where they are: the first ones here, the last one on the host network.
const ENDPOINTS: [(&str, &str, &str); 6] = [
    ("10.75.0.1", "fd75::1", "a"),
    ("10.75.0.2", "fd75::2", "a"),
    ("10.75.1.1", "fd75:1::1", "b"),
    ("10.75.1.2", "fd75:1::2", "b"),
    ("10.75.2.1", "fd75:2::1", "c"),
    (NODE, "fd02::1", "a"),
];
const SOURCES: [&str; 11] = [
    "10.75.0.1",
    "10.75.0.2",
    "10.75.1.1",
    NODE,
    OUTSIDE,
    BALANCER,
    "203.0.113.77",
    "fd75::1",
    "fd75:1::1",
    "fd02::1",
    "2001:db8:1::1",
];

fn cluster_ip(service: u8, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => ip(&format!("10.96.0.{}", service + 1)),
        IpFamily::V6 => ip(&format!("fd96::{}", service + 1)),
    }
}

/// They are in two namespaces.
fn service_key(number: u8) -> ServiceKey {
    let namespace = if number.is_multiple_of(2) { "blue" } else { "green" };
    ServiceKey { namespace: namespace.to_owned(), name: format!("s{number}") }
}

fn port() -> impl Strategy<Value = ServicePort> {
    (select(&NAMES[..]), select(&PORTS[..]), proptest::option::of(select(&NODE_PORTS[..]))).prop_map(
        |(name, (protocol, port), node_port)| ServicePort {
            name: name.to_owned(),
            protocol,
            port,
            node_port,
        },
    )
}

/// The API server accepts no two ports with the same number, nor two with the same node port.
fn distinct(ports: Vec<ServicePort>) -> Vec<ServicePort> {
    let mut kept: Vec<ServicePort> = Vec::new();
    for port in ports {
        let is_same = |other: &ServicePort| {
            let is_node_port = port.node_port.is_some() && port.node_port == other.node_port;
            port.protocol == other.protocol && (port.port == other.port || is_node_port)
        };
        if !kept.iter().any(is_same) {
            kept.push(port);
        }
    }
    kept
}

fn any_service() -> impl Strategy<Value = Service> {
    let addresses = (
        0..SERVICES,
        // Rarely the cluster IP of another one.
        prop_oneof![9 => Just(0u8), 1 => Just(1)],
        subsequence(IpFamily::ALL.to_vec(), 1..=2),
        subsequence(EXTERNAL.to_vec(), 0..=2),
        subsequence(EXTERNAL.to_vec(), 0..=2),
        subsequence(RANGES.to_vec(), 0..=2),
    );
    let affinity = select(vec![None, None, Some(60), Some(10_800)]);
    let policies = (any::<bool>(), any::<bool>(), any::<bool>(), affinity, 0..3i64);
    let ports = proptest::collection::vec(port(), 1..=3);
    (addresses, ports, policies).prop_map(|(addresses, ports, policies)| {
        let (number, other, families, external, balanced, ranges) = addresses;
        let (announced, internal_local, external_local, affinity, created) = policies;
        let ips = |all: Vec<&str>| all.into_iter().map(ip).collect();
        Service {
            key: service_key(number),
            cluster_ips: families.into_iter().map(|family| cluster_ip(number ^ other, family)).collect(),
            external_ips: ips(external),
            load_balancer_ips: ips(balanced),
            announced,
            source_ranges: ranges.into_iter().map(|range| range.parse().unwrap()).collect(),
            ports: distinct(ports),
            affinity,
            internal_local,
            external_local,
            health_check_node_port: external_local.then_some(30999),
            created,
        }
    })
}

fn any_endpoint(family: IpFamily) -> impl Strategy<Value = Endpoint> {
    let hints =
        |all: &'static [&'static str]| prop_oneof![1 => Just(Vec::new()), 3 => subsequence(all.to_vec(), 1)];
    let state = prop_oneof![3 => Just((true, true, false)), 2 => Just((false, true, true)), 1 => Just((false, false, true)), 1 => Just((false, false, false))];
    (select(&ENDPOINTS[..]), state, hints(&["east", "west"]), hints(&["a", "b"])).prop_map(
        move |((v4, v6, node), (ready, serving, terminating), zones, nodes)| {
            let owned = |all: Vec<&str>| all.into_iter().map(str::to_owned).collect();
            Endpoint {
                addresses: vec![ip(if family == IpFamily::V4 { v4 } else { v6 })],
                ready,
                serving,
                terminating,
                node: Some(node.to_owned()),
                zone_hints: owned(zones),
                node_hints: owned(nodes),
            }
        },
    )
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let family = prop_oneof![2 => Just(IpFamily::V4), 1 => Just(IpFamily::V6)];
    (0..6u8, 0..SERVICES, family).prop_flat_map(|(number, service, family)| {
        let port =
            (select(&NAMES[..]), select(vec![Protocol::Tcp, Protocol::Udp]), select(vec![8080u16, 30080]));
        let ports = proptest::collection::vec(port, 1..=3);
        (ports, proptest::collection::vec(any_endpoint(family), 0..=4)).prop_map(move |(ports, endpoints)| {
            let ports = ports.into_iter().map(|(name, protocol, port)| SlicePort {
                name: name.to_owned(),
                protocol,
                port,
            });
            EndpointSlice {
                key: SliceKey { namespace: "blue".to_owned(), name: format!("slice{number}") },
                service: service_key(service),
                family,
                ports: ports.collect(),
                endpoints,
            }
        })
    })
}

#[derive(Clone, Debug)]
enum Change {
    Apply(Service),
    Remove(u8),
    ApplySlice(EndpointSlice),
    RemoveSlice(u8),
    Node(Option<&'static str>, Vec<&'static str>),
    SetServices(Vec<Service>),
    SetSlices(Vec<EndpointSlice>),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => any_service().prop_map(Change::Apply),
        1 => (0..SERVICES).prop_map(Change::Remove),
        8 => any_slice().prop_map(Change::ApplySlice),
        1 => (0..6u8).prop_map(Change::RemoveSlice),
        1 => (proptest::option::of(select(vec!["east", "west"])), subsequence(vec![NODE, "fd02::1"], 0..=2))
            .prop_map(|(zone, addresses)| Change::Node(zone, addresses)),
        1 => proptest::collection::vec(any_service(), 0..=3).prop_map(Change::SetServices),
        1 => proptest::collection::vec(any_slice(), 0..=3).prop_map(Change::SetSlices),
    ]
}

/// The objects that an index was given.
#[derive(Default)]
struct Objects {
    node: NodeFacts,
    services: BTreeMap<ServiceKey, Service>,
    slices: BTreeMap<SliceKey, EndpointSlice>,
}

impl Objects {
    fn apply(&mut self, index: &mut ServiceIndex, change: Change) -> BTreeSet<ServiceKey> {
        match change {
            Change::Apply(service) => {
                self.services.insert(service.key.clone(), service.clone());
                index.apply_service(service)
            }
            Change::Remove(number) => {
                self.services.remove(&service_key(number));
                index.remove_service(&service_key(number))
            }
            Change::ApplySlice(slice) => {
                self.slices.insert(slice.key.clone(), slice.clone());
                index.apply_slice(slice)
            }
            Change::RemoveSlice(number) => {
                let key = SliceKey { namespace: "blue".to_owned(), name: format!("slice{number}") };
                self.slices.remove(&key);
                index.remove_slice(&key)
            }
            Change::Node(zone, addresses) => {
                self.node = NodeFacts {
                    name: "a".to_owned(),
                    zone: zone.map(str::to_owned),
                    addresses: addresses.into_iter().map(ip).collect(),
                };
                index.set_node(self.node.clone())
            }
            Change::SetServices(services) => {
                self.services = services.iter().map(|one| (one.key.clone(), one.clone())).collect();
                index.set_services(self.services.values().cloned().collect())
            }
            Change::SetSlices(slices) => {
                self.slices = slices.iter().map(|one| (one.key.clone(), one.clone())).collect();
                index.set_slices(self.slices.values().cloned().collect())
            }
        }
    }

    fn cluster(&self) -> Cluster<'_> {
        Cluster {
            node: &self.node,
            services: self.services.values().collect(),
            slices: self.slices.values().collect(),
        }
    }

    fn fresh(&self) -> ServiceIndex {
        let mut index = ServiceIndex::default();
        index.set_node(self.node.clone());
        index.set_slices(self.slices.values().cloned().collect());
        index.set_services(self.services.values().cloned().collect());
        index
    }
}

fn connections() -> Vec<Connection> {
    let cluster_ips = (0..SERVICES).flat_map(|number| IpFamily::ALL.map(|family| cluster_ip(number, family)));
    let others = ["fd02::1", "203.0.113.9", "192.0.2.10"].into_iter().chain(EXTERNAL).map(ip);
    let destinations: BTreeSet<IpAddr> = cluster_ips.chain(others).collect();
    let mut ports: Vec<(Protocol, u16)> = PORTS.to_vec();
    ports.extend([(Protocol::Tcp, 30080), (Protocol::Udp, 30443), (Protocol::Sctp, 80)]);
    let mut all = Vec::new();
    for source in SOURCES.map(ip) {
        for destination in destinations.iter().filter(|one| one.is_ipv4() == source.is_ipv4()) {
            let of_port = |(protocol, port)| connection_to(source, *destination, protocol, port);
            all.extend(ports.iter().copied().map(of_port));
        }
    }
    all
}

/// Whether such packets come through this node: those of pods of other nodes to cluster IPs do not.
fn is_possible(index: &ServiceIndex, connection: &Connection) -> bool {
    let is_remote = ["10.75.1.1", "fd75:1::1"].map(ip).contains(&connection.source);
    let is_cluster_ip = |to: &knit_service::ServiceMatch| to.frontend == FrontendKind::ClusterIp;
    match index.evaluate(connection) {
        knit_service::Decision::Translated { to, .. } => !(is_remote && is_cluster_ip(&to)),
        _ => true,
    }
}

/// The elements of all Services. The slots of backends depend on history: only that there are no holes is compared.
fn elements(index: &ServiceIndex) -> BTreeMap<ServiceKey, BTreeSet<(ElementKey, String)>> {
    let of_service = |key: &ServiceKey| {
        let mut slots: BTreeMap<ElementKey, BTreeSet<u32>> = BTreeMap::new();
        let all = index.elements_of(key).into_iter().map(|(mut key, data): (_, ElementData)| {
            if let KeyPart::One(Value::Number(number)) = *key.key.last().unwrap()
                && number & ID == 0
            {
                *key.key.last_mut().unwrap() = (number & LOCAL).into();
                assert!(slots.entry(key.clone()).or_default().insert(number & !LOCAL));
            }
            (key, data.to_string())
        });
        let all: BTreeSet<_> = all.collect();
        for (key, slots) in slots {
            assert!(slots.iter().copied().eq(0..slots.len() as u32), "{key}: {slots:?}");
        }
        all
    };
    index.services().map(|service| (service.key.clone(), of_service(&service.key))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn rules_decision_and_documentation_agree(changes in proptest::collection::vec(change(), 4..24)) {
        let (mut index, mut objects) = (ServiceIndex::default(), Objects::default());
        objects.apply(&mut index, Change::Node(Some("east"), vec![NODE, "fd02::1"]));
        for change in changes {
            objects.apply(&mut index, change);
        }
        let (mut tables, cluster) = (Tables::of(&index), objects.cluster());
        for connection in connections() {
            prop_assert_eq!(index.evaluate(&connection), cluster.evaluate(&connection), "{:?}", connection);
            if is_possible(&index, &connection) {
                compare(&index, &mut tables, &connection);
            }
        }
    }

    #[test]
    fn changes_lead_to_what_a_fresh_index_has(changes in proptest::collection::vec(change(), 1..24)) {
        let (mut index, mut objects) = (ServiceIndex::default(), Objects::default());
        for change in changes {
            let before: BTreeMap<ServiceKey, _> = (0..SERVICES)
                .map(|number| (service_key(number), index.elements_of(&service_key(number))))
                .collect();
            let udp = |index: &ServiceIndex| {
                (0..SERVICES).map(|number| index.udp_frontends(&service_key(number))).collect::<Vec<_>>()
            };
            let (health_before, udp_before) = (index.health_checks(), udp(&index));
            let changed = objects.apply(&mut index, change);
            for (key, elements) in &before {
                prop_assert!(changed.contains(key) || index.elements_of(key) == *elements, "{}", key);
            }
            if changed.is_empty() {
                prop_assert_eq!(index.health_checks(), health_before);
                prop_assert_eq!(udp(&index), udp_before);
            }
            let fresh = objects.fresh();
            prop_assert_eq!(elements(&index), elements(&fresh));
            prop_assert_eq!(index.chains(), fresh.chains());
            prop_assert_eq!(index.health_checks(), fresh.health_checks());
            prop_assert_eq!(udp(&index), udp(&fresh));
        }
        // Nothing is left of what was removed.
        index.set_services(Vec::new());
        index.set_slices(Vec::new());
        index.set_node(NodeFacts::default());
        prop_assert_eq!(index, ServiceIndex::default());
    }
}

#[test]
fn random_clients_are_of_every_class() {
    let classes: BTreeSet<SourceClass> = connections().iter().map(|one| one.source_class).collect();
    assert_eq!(classes, [SourceClass::Pod, SourceClass::Node, SourceClass::External].into());
}
