//! The packet filter of the cluster network: anti-spoofing, masquerade, and when it is applied.

use std::collections::VecDeque;

use knit_engine::call::{AttachmentMetadata, DetachRequest, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::namespaces::{NamespaceOptions, Namespaces};
use knit_engine::packet_filter::{GuardedPort, Masquerade, PacketFilter};
use knit_engine::{AttachRequest, CallId, CallResult, Effect, Event, State, StoredObject, cluster, step};
use knit_ipam::Time;
use knit_model::intent::{
    AddressPoolIntent, EncryptionIntent, Intent, IntentSpec, NodeRoutesIntent, NodeTunnelIntent, PeerNode,
    TunnelEndpoint,
};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::route::GatewayRoute;
use knit_model::{Mac, SandboxId};

use crate::support::executor::{cluster_network, execute, new_sandboxes};
use crate::support::kernel::FakeKernel;
use crate::support::node::object;

/// A node whose packet filter completes only when the test completes it.
struct Node {
    state: State,
    kernel: FakeKernel,
    pending: VecDeque<Effect>,
    filter_updates: Vec<PacketFilter>,
    results: Vec<(String, CallResult)>,
}

impl Node {
    fn new(anti_spoofing: bool) -> Self {
        let mut node = Self {
            state: State::default(),
            kernel: FakeKernel::with_state(new_sandboxes(&["a", "b", "c"])),
            pending: VecDeque::new(),
            filter_updates: Vec::new(),
            results: Vec::new(),
        };
        node.handle(Event::ObjectApplied(network(anti_spoofing)));
        if anti_spoofing {
            assert_eq!(node.complete_ports(Ok(())), []);
        }
        node
    }

    /// Handles an event and all its effects except packet filter updates.
    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in step(&mut self.state, event, Time(1)) {
                match effect {
                    Effect::Journal(_) | Effect::ObjectsChanged(_) => {}
                    Effect::Respond { call, result: answer } => self.results.push((call.0, answer)),
                    Effect::ApplyPacketFilter(update) => self.filter_updates.push(update),
                    effect => self.pending.push_back(effect),
                }
            }
            if let Some(effect) = self.pending.pop_front() {
                events.push_back(execute(&mut self.kernel, effect, false).unwrap());
            }
        }
    }

    /// Completes the one pending packet filter update and returns its guarded ports.
    fn complete_ports(&mut self, result: Result<(), Problem>) -> Vec<GuardedPort> {
        self.complete_filter(result).guarded_ports
    }

    /// The same, and returns the whole update.
    fn complete_filter(&mut self, result: Result<(), Problem>) -> PacketFilter {
        let update = self.filter_updates.remove(0);
        assert_eq!(self.filter_updates, [], "one update at a time");
        self.handle(Event::PacketFilterApplied(result));
        update
    }

    /// The masquerade rules after one update.
    fn masquerade(&mut self) -> Option<Masquerade> {
        self.complete_filter(Ok(())).masquerade
    }

    fn attach(&mut self, id: &str) {
        self.attach_in("", id);
    }

    fn attach_in(&mut self, namespace: &str, id: &str) {
        let namespace = namespace.to_owned();
        let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        self.handle(Event::AttachRequested(Box::new(AttachRequest {
            call: CallId(id.to_owned()),
            dialect: Dialect::Kni,
            sandbox: SandboxRequest {
                id: id.to_owned(),
                netns: format!("/{id}"),
                namespace,
                ..SandboxRequest::default()
            },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: 7,
            started_at: 0,
        })));
    }

    fn detach(&mut self, id: &str) {
        let (call, sandbox) = (CallId(format!("detach {id}")), SandboxId(id.to_owned()));
        let which = DetachScope::All;
        let netns = String::new();
        self.handle(Event::DetachRequested(DetachRequest {
            call,
            sandbox,
            netns,
            scope: which,
            forget_sandbox: false,
            started_at: 0,
        }));
    }

    /// Calls that were answered, and whether they attached.
    fn attach_results(&mut self) -> Vec<(String, bool)> {
        let results = self.results.drain(..);
        results.map(|(call, answer)| (call, matches!(answer, CallResult::Attached { .. }))).collect()
    }
}

/// The cluster network.
fn network(anti_spoofing: bool) -> StoredObject {
    let mut object = cluster_network("10.75.0.0/29");
    let origin = object.intents[0].origin.clone();
    let intent = IntentSpec::NodeRoutes(NodeRoutesIntent { anti_spoofing, ..NodeRoutesIntent::default() });
    object.intents.push(Intent { origin, spec: intent });
    object
}

fn addresses(ports: &[GuardedPort]) -> Vec<String> {
    ports.iter().flat_map(|port| &port.addresses).map(ToString::to_string).collect()
}

#[test]
fn attach_is_answered_once_anti_spoofing_is_applied() {
    let mut node = Node::new(true);
    node.attach("a");
    assert_eq!(node.attach_results(), [], "the packet filter is not applied yet");
    // These arrive during the update and wait for the next one.
    node.attach("b");
    node.attach("c");
    let guarded = node.complete_ports(Ok(()));
    assert_eq!(addresses(&guarded), ["10.75.0.2"]);
    assert_eq!(guarded[0].macs.len(), 1);
    assert_ne!(guarded[0].macs, [Mac::from_bytes([0; 6])].into());
    assert_eq!(node.attach_results(), [("a".to_owned(), true)]);
    assert_eq!(addresses(&node.complete_ports(Ok(()))), ["10.75.0.2", "10.75.0.3", "10.75.0.4"]);
    assert_eq!(node.attach_results(), [("b".to_owned(), true), ("c".to_owned(), true)]);
    node.detach("b");
    assert_eq!(node.attach_results().len(), 1, "detach does not wait");
    assert_eq!(addresses(&node.complete_ports(Ok(()))), ["10.75.0.2", "10.75.0.4"]);
}

#[test]
fn attach_fails_if_anti_spoofing_cannot_be_applied() {
    let mut node = Node::new(true);
    node.attach("a");
    let message = "this kernel has no nftables on bridges".to_owned();
    let problem = Problem::new("", Reason::KernelUnsupported, message);
    node.complete_ports(Err(problem.clone()));
    assert_eq!(node.results.pop().unwrap(), ("a".to_owned(), CallResult::Failed(problem)));
    assert_eq!(node.complete_ports(Ok(())), []);
}

#[test]
fn anti_spoofing_costs_nothing_when_off_and_switches_while_pods_run() {
    let mut node = Node::new(false);
    node.attach("a");
    assert_eq!((node.attach_results(), node.filter_updates.len()), (vec![("a".to_owned(), true)], 0));
    node.handle(Event::ObjectApplied(network(true)));
    assert_eq!(addresses(&node.complete_ports(Ok(()))), ["10.75.0.2"]);
    node.handle(Event::ObjectApplied(network(false)));
    assert_eq!(node.complete_ports(Ok(())), []);
}

#[test]
fn routes_to_directly_reachable_nodes_are_in_the_packet_filter_with_anti_spoofing_only() {
    let object = |change: fn(&mut NodeRoutesIntent)| {
        let mut object = network(true);
        let IntentSpec::NodeRoutes(node_routes) = &mut object.intents.last_mut().unwrap().spec else {
            panic!("no node routes")
        };
        let end = TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 };
        let node = "a".to_owned();
        node_routes.tunnel =
            Some(NodeTunnelIntent { node, vni: 1, port: 2, always: false, endpoints: vec![end] });
        node_routes.nodes = vec![
            PeerNode {
                name: "near".to_owned(),
                ranges: vec!["10.75.1.0/24".parse().unwrap()],
                addresses: vec![("192.0.2.2".parse().unwrap(), "eth0".parse().unwrap())],
                off_link_addresses: vec![],
                key: None,
            },
            PeerNode {
                name: "far".to_owned(),
                ranges: vec!["10.75.2.0/24".parse().unwrap()],
                addresses: vec![],
                off_link_addresses: vec!["198.51.100.2".parse().unwrap()],
                key: None,
            },
        ];
        change(node_routes);
        Event::ObjectApplied(object)
    };
    let mut node = Node::new(true);
    node.handle(object(|_| ()));
    let near = GatewayRoute {
        to: "10.75.1.0/24".parse().unwrap(),
        gateway: "192.0.2.2".parse().unwrap(),
        link: "eth0".parse().unwrap(),
    };
    assert_eq!(*node.complete_filter(Ok(())).node_routes, *std::slice::from_ref(&near));
    node.handle(object(|node_routes| node_routes.tunnel.as_mut().unwrap().always = true));
    assert_eq!(*node.complete_filter(Ok(())).node_routes, []);
    node.handle(object(|_| ()));
    assert_eq!(*node.complete_filter(Ok(())).node_routes, [near]);
    node.handle(object(|node_routes| {
        node_routes.encryption = Some(EncryptionIntent { port: 1, endpoints: vec![] })
    }));
    assert_eq!(*node.complete_filter(Ok(())).node_routes, [], "the fast path must not bypass encryption");
    node.handle(object(|_| ()));
    assert_ne!(*node.complete_filter(Ok(())).node_routes, []);
    node.handle(object(|node_routes| node_routes.anti_spoofing = false));
    assert_eq!(*node.complete_filter(Ok(())).node_routes, []);
}

#[test]
fn full_packet_filter_update_only_on_resync() {
    let mut node = Node::new(true);
    node.attach_in("lab", "a");
    assert!(!node.complete_filter(Ok(())).force);
    // A resync during an update applies to the next update only.
    node.attach_in("lab", "b");
    node.handle(Event::PacketFilterResync);
    assert!(!node.complete_filter(Ok(())).force);
    assert!(node.complete_filter(Ok(())).force);
    node.attach_in("lab", "c");
    assert!(!node.complete_filter(Ok(())).force);
}

fn namespace_terms(name: &str, terms: NamespaceOptions) -> Event {
    Event::Namespaces(Namespaces::from([(name.to_owned(), terms)]))
}

#[test]
fn namespace_can_be_exempt_from_anti_spoofing_while_its_pods_run() {
    let mut node = Node::new(true);
    for (namespace, id) in [("lab", "a"), ("shop", "b")] {
        node.attach_in(namespace, id);
        node.complete_ports(Ok(()));
    }
    let exempt = NamespaceOptions { allow_spoofing: true, masquerade: None };
    node.handle(namespace_terms("lab", exempt));
    assert_eq!(addresses(&node.complete_ports(Ok(()))), ["10.75.0.3"], "the other namespace stays guarded");
    let warnings = node.state.report(&cluster::key()).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("namespace lab may spoof source addresses"), "{warnings:?}");
    // A pod attached later needs no packet filter update.
    node.attach_results();
    node.attach_in("lab", "c");
    assert_eq!((node.attach_results(), node.filter_updates.len()), (vec![("c".to_owned(), true)], 0));
    // A repeated event changes nothing, and the exemption survives a restart.
    node.handle(namespace_terms("lab", exempt));
    assert_eq!(node.filter_updates, []);
    node.handle(Event::Restarted);
    node.handle(Event::PacketFilterResync);
    assert_eq!(addresses(&node.complete_ports(Ok(()))), ["10.75.0.3"]);
    node.handle(Event::Namespaces(Namespaces::new()));
    assert_eq!(addresses(&node.complete_ports(Ok(()))), ["10.75.0.2", "10.75.0.3", "10.75.0.4"]);
}

/// The cluster network with or without masquerade.
fn network_with_masquerade(masquerade: bool) -> StoredObject {
    let mut object = network(false);
    let IntentSpec::NodeRoutes(node_routes) = &mut object.intents.last_mut().unwrap().spec else {
        panic!("{object:?}")
    };
    node_routes.masquerade = masquerade;
    node_routes.no_masquerade_ranges =
        vec!["192.0.2.0/24".parse().unwrap(), "172.16.0.0/12".parse().unwrap()];
    object
}

fn texts<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn namespace_overrides_masquerade() {
    let mut node = Node::new(false);
    node.attach_in("lab", "a");
    node.attach_in("shop", "b");
    let on =
        namespace_terms("lab", NamespaceOptions { masquerade: Some(true), ..NamespaceOptions::default() });
    node.handle(on.clone());
    let masquerade = node.masquerade().unwrap();
    assert_eq!((texts(&masquerade.pods), masquerade.excluded), (vec!["10.75.0.2/32".to_owned()], vec![]));
    let inside = texts(&masquerade.no_masquerade_ranges);
    assert_eq!(inside, ["10.75.0.0/29"], "never between pods");
    node.handle(Event::ObjectApplied(network_with_masquerade(true)));
    let masquerade = node.masquerade().unwrap();
    assert_eq!((texts(&masquerade.pods), masquerade.excluded), (vec!["10.75.0.0/29".to_owned()], vec![]));
    assert_eq!(
        texts(&masquerade.no_masquerade_ranges),
        ["10.75.0.0/29", "172.16.0.0/12", "192.0.2.0/24"],
        "sorted"
    );
    node.handle(namespace_terms(
        "lab",
        NamespaceOptions { masquerade: Some(false), ..NamespaceOptions::default() },
    ));
    let masquerade = node.masquerade().unwrap();
    assert_eq!(
        (texts(&masquerade.pods), texts(&masquerade.excluded)),
        (vec!["10.75.0.0/29".to_owned()], vec!["10.75.0.2".to_owned()])
    );
    node.detach("a");
    assert!(node.masquerade().unwrap().excluded.is_empty());
    node.handle(Event::ObjectApplied(network_with_masquerade(false)));
    assert_eq!(node.masquerade(), None);
}

#[test]
fn pool_overrides_the_agent_and_namespace_overrides_the_pool() {
    let pool = |masquerade| {
        let range = "10.75.0.0/24".parse().unwrap();
        let intent = IntentSpec::AddressPool(AddressPoolIntent {
            name: "p".to_owned(),
            range,
            block: 29,
            namespaces: Vec::new(),
            masquerade,
        });
        Event::ObjectApplied(object("PodAddressPool", "", "p", vec![intent]))
    };
    let mut node = Node::new(false);
    node.attach_in("lab", "a");
    node.handle(Event::ObjectApplied(network_with_masquerade(true)));
    assert_eq!(texts(&node.masquerade().unwrap().pods), ["10.75.0.0/29"]);
    node.handle(pool(None));
    assert_eq!(node.filter_updates, [], "a pool without a setting changes nothing");
    node.handle(pool(Some(false)));
    assert_eq!(node.masquerade(), None);
    node.handle(namespace_terms(
        "lab",
        NamespaceOptions { masquerade: Some(true), ..NamespaceOptions::default() },
    ));
    assert_eq!(texts(&node.masquerade().unwrap().pods), ["10.75.0.2/32"]);
    node.handle(Event::Namespaces(Namespaces::new()));
    assert_eq!(node.masquerade(), None);
    node.handle(Event::ObjectApplied(network_with_masquerade(false)));
    node.handle(pool(Some(true)));
    assert_eq!(texts(&node.masquerade().unwrap().pods), ["10.75.0.0/29"]);
}
