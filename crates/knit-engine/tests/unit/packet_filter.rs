//! The packet filter of the node: who waits for its tables, the elements of pods, and the fast path.

mod namespaces;
mod policies;
mod repair;
mod services;
mod sources;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use knit_engine::call::{
    AttachmentMetadata, DetachRequest, DetachScope, InterfaceRequest, PortMapping, SandboxRequest,
};
use knit_engine::namespaces::{NamespaceEvent, NamespaceOptions, Namespaces};
use knit_engine::packet_filter::{FastPath, FastPathChange};
use knit_engine::services::StaleConnections;
use knit_engine::{
    ApplyFailure, AttachRequest, CallId, CallResult, Effect, Event, PlanResult, Record, State, StoredObject,
    Unit, cluster, step,
};
use knit_ipam::Time;
use knit_model::filter::{ElementData, ElementKey, FilterSet, FilterStep, TableFamily};
use knit_model::intent::{
    AddressPoolIntent, EncryptionIntent, Intent, IntentSpec, NodeRoutesIntent, NodeTunnelIntent, PeerNode,
    TunnelEndpoint,
};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::route::GatewayRoute;
use knit_model::{Plan, SandboxId, Scope, Step};

use crate::support::executor::{cluster_network, execute, new_sandboxes};
use crate::support::kernel::FakeKernel;
use crate::support::node::{self, object};
use crate::support::with_settings;

/// A node whose packet filter can be held back, or fail.
struct Node {
    state: State,
    kernel: FakeKernel,
    journal: Vec<Record>,
    pending: VecDeque<Effect>,
    /// Plans of this unit stay pending.
    held: Option<Unit>,
    /// Why plans of the tables fail.
    failure: Option<Problem>,
    /// Whether the kernel may reject plans. The engine repairs some of them by itself, so that no problem remains to be seen.
    expects_rejections: bool,
    /// Applied plans.
    plans: Vec<(Unit, Plan)>,
    /// Observed units, and whether their elements are observed only if they have a link.
    observations: Vec<(Unit, bool)>,
    fast_path_changes: Vec<FastPathChange>,
    results: Vec<(String, CallResult)>,
    /// The connections that were to be ended.
    ended: Vec<StaleConnections>,
}

impl Node {
    fn empty() -> Self {
        Self {
            state: with_settings(State::default()),
            kernel: FakeKernel::with_state(new_sandboxes(&["a", "b", "c"])),
            journal: Vec::new(),
            pending: VecDeque::new(),
            held: None,
            failure: None,
            expects_rejections: false,
            plans: Vec::new(),
            observations: Vec::new(),
            fast_path_changes: Vec::new(),
            results: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn new(anti_spoofing: bool) -> Self {
        let mut node = Self::empty();
        node.handle(Event::ObjectApplied(network(anti_spoofing)));
        node
    }

    /// Handles an event and all its effects, except plans that are held back.
    fn handle(&mut self, event: Event) {
        let mut events = node::with_its_peers(event);
        loop {
            while let Some(event) = events.pop_front() {
                for effect in step(&mut self.state, event, Time(1)) {
                    match effect {
                        Effect::Journal(record) => self.journal.push(record),
                        Effect::ObjectsChanged(_) | Effect::RerouteConnections(_) => {}
                        Effect::EndConnections(stale) => self.ended.push(stale),
                        Effect::UpdateFastPath(change) => self.fast_path_changes.push(change),
                        Effect::Respond { call, result: answer } => self.results.push((call.0, answer)),
                        effect => self.pending.push_back(effect),
                    }
                }
            }
            let held = |effect: &Effect| matches!(effect, Effect::Apply { unit, .. } if self.held.as_ref() == Some(unit));
            let Some(at) = self.pending.iter().position(|effect| !held(effect)) else { return };
            let effect = self.pending.remove(at).unwrap();
            events.push_back(self.execute(effect));
        }
    }

    fn execute(&mut self, effect: Effect) -> Event {
        if let Effect::Observe { unit, request } = &effect {
            self.observations.push((unit.clone(), request.elements_if_owned));
        }
        if let Effect::Apply { unit, plan } = &effect {
            if let (Unit::PacketFilter, Some(problem)) = (unit, self.failure.clone()) {
                let failure =
                    ApplyFailure { problem, rolled_back: true, missing_tables: false, unsupported: None };
                return Event::PlanApplied(PlanResult { unit: unit.clone(), result: Err(failure) });
            }
            self.plans.push((unit.clone(), (**plan).clone()));
        }
        let event = execute(&mut self.kernel, effect, false).unwrap();
        if let Event::PlanApplied(PlanResult { unit, result: Err(failure) }) = &event {
            assert!(self.expects_rejections, "{unit}: {}", failure.problem);
        }
        event
    }

    /// Applies the plan that was held back.
    fn release(&mut self) {
        self.held = None;
        let effect = self.pending.pop_front().expect("a plan is held back");
        assert_eq!(self.pending.len(), 0);
        let event = self.execute(effect);
        self.handle(event);
    }

    /// The kernel rejects the plan that was held back, for lack of tables or another reason.
    fn reject_held(&mut self, missing_tables: bool) {
        let Some(Effect::Apply { unit, .. }) = self.pending.pop_front() else {
            panic!("a plan is held back")
        };
        assert_eq!(self.held.take(), Some(unit.clone()));
        let problem = Problem::new(String::new(), Reason::KernelError, "no memory".to_owned());
        let failure = ApplyFailure { problem, rolled_back: true, missing_tables, unsupported: None };
        self.handle(Event::PlanApplied(PlanResult { unit, result: Err(failure) }));
    }

    /// The state that a restart reads from the journal.
    fn replayed(&self) -> State {
        let mut state = State::default();
        self.journal.iter().for_each(|record| state.record(record));
        state
    }

    fn restart(&mut self) {
        self.state = with_settings(self.replayed());
        self.handle(Event::Restarted);
        self.handle(Event::Resync);
    }

    fn attach(&mut self, id: &str) {
        self.attach_in("", id);
    }

    fn attach_in(&mut self, namespace: &str, id: &str) {
        self.attach_with_ports(namespace, id, Vec::new());
    }

    fn attach_with_ports(&mut self, namespace: &str, id: &str, ports: Vec<PortMapping>) {
        let namespace = namespace.to_owned();
        let options = InterfaceRequest { default_route: true, ports, ..InterfaceRequest::default() };
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

    /// The elements of a set in the kernel.
    fn elements(&self, set: &str) -> Vec<String> {
        let filter = self.kernel.filter(&Scope::Host);
        let all = filter.elements.iter().filter(|(key, _)| key.set == set);
        all.map(|(key, data)| format!("{}{data}", key_text(key))).collect()
    }

    /// The IPv4 addresses that ports may use.
    fn guarded_addresses(&self) -> Vec<String> {
        let all = self.elements("port_addresses4").into_iter();
        let mut all: Vec<String> = all.map(|text| text.rsplit(' ').next().unwrap().to_owned()).collect();
        all.sort();
        all
    }

    /// Each element in the kernel has one owner. Sets of ranges belong to the tables as a whole.
    fn check_owners(&self) {
        let mut owned: BTreeMap<ElementKey, ElementData> = BTreeMap::new();
        for (unit, unit_state) in self.state.units.iter() {
            for (key, data) in &unit_state.filter {
                assert_eq!(owned.insert(key.clone(), data.clone()), None, "{unit}: {key} has two owners");
            }
        }
        let mut filter = self.kernel.filter(&Scope::Host).clone();
        let tables = &filter.tables;
        filter.elements.retain(|key, _| !tables[&key.table].sets[&key.set].intervals);
        assert_eq!(filter.elements, owned);
    }

    /// The last complete update of the fast path.
    fn fast_path(&self) -> FastPath {
        let all = self.fast_path_changes.iter().rev();
        let mut complete = all.filter_map(|change| match change {
            FastPathChange::All(fast_path) => Some(fast_path.clone()),
            FastPathChange::Add(_) => None,
        });
        complete.next().unwrap()
    }

    /// The addresses of the ports on the fast path, after all changes.
    fn fast_path_addresses(&self) -> BTreeSet<String> {
        let mut ports = BTreeMap::new();
        for change in &self.fast_path_changes {
            let changed = match change {
                FastPathChange::All(fast_path) => {
                    ports.clear();
                    &fast_path.ports
                }
                FastPathChange::Add(added) => added,
            };
            ports.extend(changed.iter().map(|port| (port.link.clone(), port.addresses.clone())));
        }
        ports.into_values().flatten().map(|address| address.to_string()).collect()
    }

    /// Plans of a unit since the last call, as text.
    fn take_plans(&mut self) -> Vec<(Unit, Plan)> {
        std::mem::take(&mut self.plans)
    }
}

fn key_text(key: &ElementKey) -> String {
    let parts: Vec<String> = key.key.iter().map(ToString::to_string).collect();
    parts.join(" . ")
}

fn sandbox(id: &str) -> Unit {
    Unit::Sandbox(SandboxId(id.to_owned()))
}

/// The positions of the steps that match.
fn positions(plan: &Plan, is_it: impl Fn(&Step) -> bool) -> Vec<usize> {
    let steps = plan.steps.iter().enumerate();
    steps.filter(|(_, planned)| is_it(&planned.step)).map(|(at, _)| at).collect()
}

/// The cluster network.
fn network(anti_spoofing: bool) -> StoredObject {
    let mut object = cluster_network("10.75.0.0/29");
    let origin = object.intents[0].origin.clone();
    let intent = IntentSpec::NodeRoutes(NodeRoutesIntent { anti_spoofing, ..NodeRoutesIntent::default() });
    object.intents.push(Intent { origin, spec: intent });
    object
}

fn namespace_options(name: &str, terms: NamespaceOptions) -> Event {
    Event::Namespaces(NamespaceEvent::Listed(Namespaces::from([(name.to_owned(), terms)])))
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

/// Whether there is a table for masquerading.
fn has_nat(node: &Node) -> bool {
    node.kernel.filter(&Scope::Host).tables.contains_key(&TableFamily::Inet.table())
}

#[test]
fn pods_and_bridges_wait_until_the_tables_exist() {
    let mut node = Node::empty();
    node.held = Some(Unit::PacketFilter);
    node.handle(Event::ObjectApplied(network(true)));
    node.attach("a");
    assert_eq!((node.attach_results(), node.take_plans()), (vec![], vec![]), "no port without anti-spoofing");
    node.release();
    assert_eq!(node.attach_results(), [("a".to_owned(), true)]);
    let units: Vec<Unit> = node.take_plans().into_iter().map(|(unit, _)| unit).collect();
    let position = |unit: &Unit| units.iter().position(|other| other == unit).unwrap();
    assert_eq!(position(&Unit::PacketFilter), 0);
    assert!(units.iter().position(|unit| matches!(unit, Unit::Bridge(_))).unwrap() < position(&sandbox("a")));
    assert_eq!(node.guarded_addresses(), ["10.75.0.2"]);
    assert_eq!((node.elements("guarded_ports").len(), node.elements("port_macs").len()), (1, 1));
    assert!(!node.elements("port_macs")[0].contains("00:00:00:00:00:00"));
    node.check_owners();
}

#[test]
fn elements_of_a_pod_are_added_before_its_link_and_removed_after_it() {
    let mut node = Node::new(true);
    node.take_plans();
    node.attach("a");
    let is_link = |step: &Step| matches!(step, Step::CreateLink { .. } | Step::DeleteLink { .. });
    let is_filter = |step: &Step| matches!(step, Step::Filter(_));
    let plans = node.take_plans();
    let [(unit, plan)] = &plans[..] else { panic!("{plans:?}") };
    assert_eq!(*unit, sandbox("a"));
    assert!(positions(plan, is_filter).last() < positions(plan, is_link).first(), "{plan:?}");
    let adds = |step: &Step| matches!(step, Step::Filter(FilterStep::AddElement(..)));
    assert_eq!(positions(plan, is_filter), positions(plan, adds), "a pod adds elements and no rule");
    node.attach("b");
    node.attach("c");
    assert_eq!(node.guarded_addresses(), ["10.75.0.2", "10.75.0.3", "10.75.0.4"]);
    node.take_plans();
    node.detach("b");
    let plans = node.take_plans();
    let [(unit, plan)] = &plans[..] else { panic!("{plans:?}") };
    assert_eq!(*unit, sandbox("b"));
    assert!(positions(plan, is_link).last() < positions(plan, is_filter).first(), "{plan:?}");
    assert_eq!(node.guarded_addresses(), ["10.75.0.2", "10.75.0.4"]);
    node.check_owners();
    // The tables end with the last bridge.
    node.detach("a");
    node.detach("c");
    node.handle(Event::ObjectDeleted(cluster::key()));
    assert!(node.kernel.filter(&Scope::Host).is_empty());
    assert_eq!(node.state.units.keys().collect::<Vec<_>>(), [&Unit::PacketFilter; 0]);
}

#[test]
fn attach_fails_with_the_problem_of_the_packet_filter_and_is_retried() {
    let mut node = Node::empty();
    let message = "this kernel has no nftables on bridges".to_owned();
    let problem = Problem::new("", Reason::KernelUnsupported, message);
    node.failure = Some(problem.clone());
    node.handle(Event::ObjectApplied(network(true)));
    assert_eq!(node.state.report(&cluster::key()).unwrap().problems, std::slice::from_ref(&problem));
    for _ in 0..2 {
        node.attach("a");
        let (id, result) = node.results.pop().unwrap();
        let CallResult::Failed(failure) = result else { panic!("{result:?}") };
        assert_eq!((id.as_str(), failure.message.ends_with(&problem.message)), ("a", true), "{failure}");
    }
    let creates_link = |step: &Step| matches!(step, Step::CreateLink { .. });
    assert!(node.take_plans().iter().all(|(_, plan)| positions(plan, creates_link).is_empty()));
    assert!(node.state.leases.iter().all(|(_, _, lease)| !lease.is_live()), "nothing is left behind");
    assert_eq!(node.replayed(), node.state.persistent());
    // The failed attach starts another attempt, so a later one finds the tables.
    node.failure = None;
    node.attach("a");
    node.attach_results();
    node.attach("a");
    assert_eq!(node.attach_results(), [("a".to_owned(), true)]);
    assert_eq!(node.guarded_addresses(), ["10.75.0.2"]);
    assert_eq!(node.state.report(&cluster::key()).unwrap().problems, []);
    node.check_owners();
}

#[test]
fn pods_get_their_interfaces_when_the_tables_can_be_applied_again() {
    let mut node = Node::empty();
    node.failure = Some(Problem::new("", Reason::KernelError, "out of memory".to_owned()));
    let range = "10.9.0.0/24";
    let spec = vec![node::bridge("br0", range), node::veth("x", "net", "br0", range)];
    node.handle(Event::ObjectApplied(object("Veth", "shop", "net", spec)));
    node.handle(Event::SandboxUpdated(node::sandbox("a", 1, "shop", "x")));
    let key = node.state.objects.keys().next().unwrap().clone();
    assert_eq!(node.state.report(&key).unwrap().problems[0].message, "out of memory");
    node.failure = None;
    node.handle(Event::ResyncUnits([sandbox("a")].into()));
    assert_eq!(node.state.report(&key).unwrap().problems, []);
    assert_eq!(node.guarded_addresses(), ["10.9.0.2"]);
    node.check_owners();
}

#[test]
fn tables_that_change_during_their_own_update_are_awaited() {
    let mut node = Node::empty();
    node.held = Some(Unit::PacketFilter);
    node.handle(Event::ObjectApplied(network(true)));
    // Host ports need another set.
    node.attach_with_ports("", "a", vec![host_port(8080)]);
    node.release();
    assert_eq!(node.attach_results(), [("a".to_owned(), true)]);
    assert_eq!(node.elements("host_ports4"), ["6 . 8080 : 10.75.0.2 . 80"]);
    let of_tables = node.take_plans().into_iter().filter(|(unit, _)| *unit == Unit::PacketFilter);
    assert!(of_tables.count() > 1);
    node.check_owners();
}

#[test]
fn sets_are_not_removed_while_their_elements_change() {
    let mut node = Node::new(true);
    for (id, port) in [("a", 8080), ("b", 8081)] {
        node.attach_with_ports("", id, vec![host_port(port)]);
    }
    node.results.clear();
    node.held = Some(sandbox("a"));
    node.detach("a");
    node.take_plans();
    // No pod has host ports any more, but the plan of the first one removes elements.
    node.detach("b");
    assert_eq!(node.take_plans(), [], "both wait");
    node.release();
    assert_eq!(node.results.len(), 2);
    assert!(node.results.iter().all(|(_, result)| *result == CallResult::Detached), "{:?}", node.results);
    assert!(!has_nat(&node));
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    node.check_owners();
}

fn host_port(host_port: u16) -> PortMapping {
    PortMapping { host_port, container_port: 80, protocol: "tcp".to_owned(), host_ip: None }
}

#[test]
fn host_ports_have_elements_and_open_the_loopback_of_the_bridge() {
    let mut node = Node::new(true);
    let loopback = |node: &Node| {
        let host = &node.kernel.observe().scopes[&Scope::Host];
        host.sysctls.get("net/ipv4/conf/knit0/route_localnet").cloned()
    };
    assert_eq!(loopback(&node), None, "left as it is until there is a host port");
    node.attach_with_ports("", "a", vec![host_port(8080)]);
    node.attach_with_ports("", "b", vec![host_port(8081)]);
    assert_eq!(node.elements("host_ports4"), ["6 . 8080 : 10.75.0.2 . 80", "6 . 8081 : 10.75.0.3 . 80"]);
    assert_eq!(node.elements("host_port_pods4"), ["6 . 10.75.0.2 . 80", "6 . 10.75.0.3 . 80"]);
    assert_eq!(loopback(&node).as_deref(), Some("1"));
    node.attach_results();
    node.attach_with_ports("", "c", vec![host_port(8080)]);
    assert_eq!(node.attach_results(), [("c".to_owned(), false)], "the port is taken");
    node.restart();
    node.check_owners();
    node.detach("a");
    assert_eq!(node.elements("host_ports4"), ["6 . 8081 : 10.75.0.3 . 80"]);
    node.detach("b");
    assert_eq!(loopback(&node).as_deref(), Some("0"));
    assert!(!node.kernel.filter(&Scope::Host).tables.contains_key(&TableFamily::Inet.table()));
    node.check_owners();
}

#[test]
fn elements_are_observed_unless_they_are_those_of_a_new_pod_without_data() {
    let mut node = Node::new(true);
    let observations = |node: &mut Node, id: &str| -> Vec<bool> {
        let of_sandboxes = node.observations.drain(..).filter(|(unit, _)| *unit == sandbox(id));
        of_sandboxes.map(|(_, if_owned)| if_owned).collect()
    };
    node.attach("a");
    assert_eq!(observations(&mut node, "a"), [true]);
    node.handle(Event::Resync);
    assert_eq!(observations(&mut node, "a"), [false]);
    // A host port is an element of a map, which another pod may have left behind.
    node.attach_with_ports("default", "b", vec![host_port(8080)]);
    assert_eq!(observations(&mut node, "b"), [false]);
}

#[test]
fn anti_spoofing_of_the_cluster_network_switches_while_pods_run() {
    let mut node = Node::new(false);
    node.attach("a");
    assert_eq!(node.attach_results(), [("a".to_owned(), true)]);
    assert_eq!((node.guarded_addresses(), node.fast_path_addresses().len()), (vec![], 0));
    node.handle(Event::ObjectApplied(network(true)));
    assert_eq!(node.guarded_addresses(), ["10.75.0.2"]);
    assert_eq!(node.fast_path_addresses(), ["10.75.0.2".to_owned()].into());
    node.handle(Event::ObjectApplied(network(false)));
    assert_eq!((node.guarded_addresses(), node.fast_path_addresses().len()), (vec![], 0));
    node.check_owners();
}

#[test]
fn ports_of_all_other_bridges_are_guarded_and_never_on_the_fast_path() {
    let mut node = Node::new(false);
    let range = "10.9.0.0/24";
    let spec = vec![node::bridge("br0", range), node::veth("x", "net", "br0", range)];
    node.handle(Event::ObjectApplied(object("Veth", "shop", "net", spec)));
    node.handle(Event::SandboxUpdated(node::sandbox("a", 1, "shop", "x")));
    assert_eq!(node.guarded_addresses(), ["10.9.0.2"]);
    assert_eq!(node.fast_path_addresses().len(), 0);
    node.handle(namespace_options("shop", NamespaceOptions { allow_spoofing: true, masquerade: None }));
    assert_eq!(node.guarded_addresses(), [""; 0]);
    node.check_owners();
}

#[test]
fn routes_to_directly_reachable_nodes_are_on_the_fast_path_with_anti_spoofing_only() {
    let object = |change: fn(&mut NodeRoutesIntent)| {
        let mut object = network(true);
        let IntentSpec::NodeRoutes(node_routes) = &mut object.intents.last_mut().unwrap().spec else {
            panic!("no node routes")
        };
        let end = TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 };
        let node = "a".to_owned();
        node_routes.tunnel =
            Some(NodeTunnelIntent { node, vni: 1, port: 2, always: false, endpoints: vec![end] });
        change(node_routes);
        let peers = [
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
        Event::ObjectApplied(node::with_peers(object, &peers))
    };
    let mut node = Node::new(true);
    // There is no eth0.
    node.expects_rejections = true;
    node.handle(object(|_| ()));
    let near = GatewayRoute {
        to: "10.75.1.0/24".parse().unwrap(),
        gateway: "192.0.2.2".parse().unwrap(),
        link: "eth0".parse().unwrap(),
    };
    assert_eq!(*node.fast_path().node_routes, *std::slice::from_ref(&near));
    node.handle(object(|node_routes| node_routes.tunnel.as_mut().unwrap().always = true));
    assert_eq!(*node.fast_path().node_routes, []);
    node.handle(object(|_| ()));
    assert_eq!(*node.fast_path().node_routes, [near]);
    node.handle(object(|node_routes| {
        node_routes.encryption = Some(EncryptionIntent { port: 1, endpoints: vec![] })
    }));
    assert_eq!(*node.fast_path().node_routes, [], "the fast path must not bypass encryption");
    node.handle(object(|_| ()));
    assert_ne!(*node.fast_path().node_routes, []);
    node.handle(object(|node_routes| node_routes.anti_spoofing = false));
    assert_eq!(*node.fast_path().node_routes, []);
}

#[test]
fn resync_updates_the_whole_fast_path_and_a_pod_adds_its_port() {
    let mut node = Node::new(true);
    node.attach("a");
    assert_eq!(node.fast_path().ports.len(), 1, "the first port loads the program");
    node.attach("b");
    let [.., FastPathChange::Add(added)] = &node.fast_path_changes[..] else {
        panic!("{:?}", node.fast_path_changes)
    };
    assert_eq!(added.len(), 1);
    node.fast_path_changes.clear();
    node.handle(Event::Resync);
    assert_eq!(node.fast_path().ports.len(), 2);
    node.fast_path_changes.clear();
    node.detach("a");
    assert_eq!(node.fast_path_changes, [], "the kernel removes the port with its link");
    node.detach("b");
    assert_eq!(node.fast_path().ports.len(), 0, "the last port unloads the program");
}

#[test]
fn a_range_replaces_those_that_it_overlaps() {
    let mut node = Node::new(false);
    node.attach("a");
    let with = |range: &str| {
        let mut object = network_with_masquerade(true);
        let IntentSpec::NodeRoutes(node_routes) = &mut object.intents.last_mut().unwrap().spec else {
            panic!("{object:?}")
        };
        node_routes.no_masquerade_ranges = vec![range.parse().unwrap()];
        Event::ObjectApplied(object)
    };
    for range in ["172.16.0.0/12", "172.16.0.0/16", "172.0.0.0/8", "172.16.5.0/24"] {
        node.handle(with(range));
        assert_eq!(node.elements("no_masquerade4"), ["10.75.0.0/29", range]);
    }
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}
