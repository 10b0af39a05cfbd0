//! Pod annotations: interfaces on networks defined in another namespace, and CNI plugin chains.

use knit_engine::plugin_chain::{ChainKey, CniCommand};
use knit_engine::{Effect, Event, State, StoredObject, pod_annotations, step};
use knit_ipam::Time;
use knit_model::intent::{
    IntentSpec, InterfaceIntent, NameRule, NetworkDefinition, PluginChainIntent, RejectedIntent, Selector,
    UplinkIntent,
};
use knit_model::link::{Kind, Macvlan, Veth};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::report::AppliedReport;
use knit_model::{Sandbox, SandboxId, Scope};

use crate::support::node::{Node, key, object, sandbox, veth, with_eth0};

/// The object that represents a pod's annotation.
fn annotation_of(pod: &Sandbox, intents: Vec<IntentSpec>) -> StoredObject {
    let mut stored = object(pod_annotations::KIND, &pod.namespace, &pod.pod, intents);
    stored.object.uid.clone_from(&pod.uid);
    for intent in &mut stored.intents {
        intent.origin.dialect = Dialect::Annotation;
        intent.origin.object = Some(stored.object.clone());
    }
    stored
}

/// Interface `net1` of one pod, on a network defined in namespace `lab`.
fn on_network(pod: &Sandbox, edit: impl FnOnce(&mut InterfaceIntent, &mut NetworkDefinition)) -> IntentSpec {
    let IntentSpec::Interface(mut intent) = veth("x", "unused", "br0", "10.9.0.0/24") else { unreachable!() };
    let mut defined = NetworkDefinition {
        namespace: "lab".to_owned(),
        name: "blue".to_owned(),
        ..NetworkDefinition::default()
    };
    intent.pods = Selector::pod(pod.uid.as_str());
    intent.name = NameRule::Exact("net1".parse().unwrap());
    intent.kind = Kind::Veth(Veth::default());
    edit(&mut intent, &mut defined);
    intent.definition = Some(Box::new(defined));
    IntentSpec::Interface(intent)
}

fn macvlan(intent: &mut InterfaceIntent, defined: &mut NetworkDefinition) {
    intent.kind = Kind::Macvlan(Macvlan { parent: None, mode: None });
    intent.master = None;
    defined.nic = Some("eno1".parse().unwrap());
}

fn uplink(namespaces: &[&str], kinds: &[&str]) -> StoredObject {
    let strings = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let intent = UplinkIntent {
        name: "net1".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: strings(namespaces),
        kinds: strings(kinds),
        vlans: Vec::new(),
        max_mtu: None,
    };
    object("Uplink", "", "net1", vec![IntentSpec::Uplink(intent)])
}

/// Sandboxes with one `eth0` each, on a host with a NIC.
fn node(pods: &[&Sandbox]) -> Node {
    let names: Vec<&str> = pods.iter().map(|pod| pod.id.0.as_str()).collect();
    let mut kernel = with_eth0(&names);
    let mut nic = knit_model::Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs.mtu = Some(1500);
    kernel.scope(&Scope::Host).add_link(nic);
    let mut node = Node::with_kernel(kernel);
    for pod in pods {
        node.handle(Event::SandboxUpdated((*pod).clone()));
    }
    node
}

/// The report on the pod's annotation.
fn report_of(state: &State, pod: &Sandbox) -> AppliedReport {
    let states = state.pod_states();
    let mine = states.into_iter().find(|one| one.sandbox.id == pod.id).expect("the pod has a report");
    mine.objects.into_iter().find(|one| one.object.kind == pod_annotations::KIND).unwrap()
}

fn addresses(state: &State, pod: &Sandbox) -> Vec<String> {
    report_of(state, pod).interfaces.iter().flat_map(|one| &one.addresses).map(ToString::to_string).collect()
}

#[test]
fn pods_of_two_namespaces_on_one_network_share_bridge_and_addresses() {
    let (cart, probe) = (sandbox("cart", 1, "shop", "x"), sandbox("probe", 2, "lab", "x"));
    let other = sandbox("other", 3, "shop", "x");
    let mut node = node(&[&cart, &probe, &other]);
    for pod in [&cart, &probe] {
        node.handle(Event::ObjectApplied(annotation_of(pod, vec![on_network(pod, |_, _| {})])));
    }
    assert_eq!(
        (addresses(&node.state, &cart), addresses(&node.state, &probe)),
        (vec!["10.9.0.2/24".to_owned()], vec!["10.9.0.3/24".to_owned()])
    );
    let bridges: Vec<String> =
        node.state.units.keys().map(ToString::to_string).filter(|unit| unit.contains("bridge")).collect();
    assert_eq!(bridges.len(), 1, "{bridges:?}");
    assert!(
        bridges[0].contains("lab/br0"),
        "the bridge belongs to the namespace of the definition: {bridges:?}"
    );
    assert!(node.link("other", "net1").is_none(), "pods without the annotation are not selected by labels");
    // The definition does not make the bridge a gateway.
    assert!(
        !node.kernel.observe().scopes[&Scope::Host].addresses.values().any(|one| one.link.as_str() == "br0")
    );
    // Deleting the last user deletes the bridge.
    for pod in [&cart, &probe] {
        node.handle(Event::ObjectDeleted(key(&annotation_of(pod, Vec::new()))));
    }
    assert!(node.host_link("br0").is_none());
    assert!(node.link("cart", "net1").is_none());
}

#[test]
fn bridge_is_the_gateway_and_reserved_addresses_are_not_allocated() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = node(&[&cart]);
    let intent = on_network(&cart, |_, defined| {
        defined.gateway = true;
        defined.reserved = vec!["10.9.0.0/28".parse().unwrap()];
    });
    node.handle(Event::ObjectApplied(annotation_of(&cart, vec![intent])));
    assert_eq!(addresses(&node.state, &cart), ["10.9.0.16/24"]);
    let host = &node.kernel.observe().scopes[&Scope::Host];
    assert!(host.addresses.values().any(|one| one.address.to_string() == "10.9.0.1/24"), "{host:?}");
    // A fixed address replaces the one allocated from its range.
    let intent = on_network(&cart, |intent, defined| {
        defined.gateway = true;
        intent.fixed = vec!["10.9.0.77/24".parse().unwrap()];
    });
    node.handle(Event::ObjectApplied(annotation_of(&cart, vec![intent])));
    assert_eq!(addresses(&node.state, &cart), ["10.9.0.77/24"]);
}

#[test]
fn nic_needs_an_uplink_open_to_the_pods_namespace_and_is_never_a_pod_interface() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = node(&[&cart]);
    node.handle(Event::ObjectApplied(annotation_of(&cart, vec![on_network(&cart, macvlan)])));
    let problem = |node: &Node| {
        let report = report_of(&node.state, &cart);
        (report.problems.first().map(|problem| problem.message.clone()), report.ready)
    };
    let closed =
        "NIC eno1 is not open to macvlan links of namespace shop: no Uplink of it allows that".to_owned();
    assert_eq!(problem(&node), (Some(closed.clone()), false));
    for (namespaces, kinds) in [(&["lab"][..], &[][..]), (&["shop"], &["vlan"])] {
        node.handle(Event::ObjectApplied(uplink(namespaces, kinds)));
        assert_eq!(problem(&node), (Some(closed.clone()), false));
    }
    // The Uplink is named like the pod's interface; the interface must not be used as parent.
    node.handle(Event::ObjectApplied(uplink(&["shop"], &["macvlan"])));
    assert_eq!(problem(&node), (None, true));
    let link = node.link("cart", "net1").unwrap();
    assert_eq!(link.kind.parent().unwrap().as_str(), "eno1");
    // Two pods on one network get different addresses, with or without a bridge.
    let web = sandbox("web", 2, "shop", "x");
    node.handle(Event::SandboxUpdated(web.clone()));
    node.handle(Event::ObjectApplied(annotation_of(&web, vec![on_network(&web, macvlan)])));
    assert_eq!(
        (addresses(&node.state, &cart), addresses(&node.state, &web)),
        (vec!["10.9.0.2/24".to_owned()], vec!["10.9.0.3/24".to_owned()])
    );
}

#[test]
fn rejected_interface_is_reported_and_the_others_are_configured() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = node(&[&cart]);
    let problem = Problem::new("f", Reason::NotFound, "not found");
    let rejected = RejectedIntent { pods: Selector::pod(cart.uid.as_str()), problem };
    let intents = vec![IntentSpec::Rejected(Box::new(rejected)), on_network(&cart, |_, _| {})];
    let mut object = annotation_of(&cart, intents);
    object.warnings = vec!["deprecated field".to_owned()];
    node.handle(Event::ObjectApplied(object));
    let report = report_of(&node.state, &cart);
    assert_eq!((report.problems[0].message.as_str(), report.ready), ("not found", false));
    assert_eq!((report.interfaces.len(), report.warnings), (1, vec!["deprecated field".to_owned()]));
    assert_eq!(node.replayed().objects, node.state.objects);
}

/// An engine whose CNI plugin runs are completed by the test.
#[derive(Default)]
struct PluginNode {
    state: State,
    running: Vec<(ChainKey, CniCommand)>,
}

impl PluginNode {
    fn handle(&mut self, event: Event) {
        let mut next = Vec::new();
        for effect in step(&mut self.state, event, Time(1)) {
            match effect {
                Effect::RunPluginChain { command: verb, interface: chained } => {
                    self.running.push((chained.key(), verb))
                }
                Effect::Observe { unit, .. } => {
                    next.push(Event::Observed {
                        unit,
                        observed: Default::default(),
                        keys: Default::default(),
                    });
                }
                _ => {}
            }
        }
        next.into_iter().for_each(|event| self.handle(event));
    }

    fn complete(&mut self, expected: CniCommand, result: Result<&str, &str>) {
        let (key, verb) = self.running.pop().expect("a plugin chain is running");
        assert_eq!((verb, self.running.len()), (expected, 0));
        let failed = |message: &str| Problem::new("", Reason::KernelError, message.to_owned());
        self.handle(Event::PluginChainDone {
            key,
            command: verb,
            result: result.map(str::to_owned).map_err(failed),
        });
    }
}

fn plugin_chain(pod: &Sandbox, conflist: &str) -> IntentSpec {
    IntentSpec::PluginChain(Box::new(PluginChainIntent {
        pods: Selector::pod(pod.uid.as_str()),
        name: "net1".parse().unwrap(),
        network: "lab/blue".to_owned(),
        conflist: conflist.to_owned(),
        plugin_dirs: Vec::new(),
        timeout_seconds: 1,
    }))
}

const CONFLIST: &str = r#"{"plugins": [{"type": "mine"}]}"#;
const RESULT: &str = r#"{"interfaces": [{"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/s", "mtu": 1400}],
    "ips": [{"address": "10.7.0.2/24"}]}"#;

#[test]
fn plugin_chain_runs_when_the_annotation_adds_changes_or_removes_it() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = PluginNode::default();
    node.handle(Event::ObjectApplied(annotation_of(&cart, vec![plugin_chain(&cart, CONFLIST)])));
    assert!(node.running.is_empty(), "the sandbox does not exist yet");
    node.handle(Event::SandboxUpdated(cart.clone()));
    assert!(!report_of(&node.state, &cart).ready);
    node.complete(CniCommand::Add, Ok(RESULT));
    let report = report_of(&node.state, &cart);
    let [interface] = &report.interfaces[..] else { panic!("{report:?}") };
    assert!(report.ready && interface.ready);
    assert_eq!((interface.kind.as_str(), interface.mtu), ("mine", Some(1400)));
    assert_eq!(interface.mac.unwrap().to_string(), "02:00:00:00:00:07");
    assert_eq!(addresses(&node.state, &cart), ["10.7.0.2/24"]);
    // A changed configuration runs DEL of the old one first.
    node.handle(Event::ObjectApplied(annotation_of(&cart, vec![plugin_chain(&cart, "{}")])));
    node.complete(CniCommand::Del, Ok(""));
    node.complete(CniCommand::Add, Ok(RESULT));
    node.handle(Event::ObjectApplied(annotation_of(&cart, Vec::new())));
    node.complete(CniCommand::Del, Ok(""));
    assert!(node.running.is_empty() && node.state.attachments.all_chained().next().is_none());
    assert!(node.state.sandboxes.contains_key(&cart.id), "the sandbox is kept");
}

#[test]
fn failed_chain_is_reported_rolled_back_and_retried_on_resync() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = PluginNode::default();
    node.handle(Event::SandboxUpdated(cart.clone()));
    node.handle(Event::ObjectApplied(annotation_of(&cart, vec![plugin_chain(&cart, CONFLIST)])));
    node.complete(CniCommand::Add, Err("plugin failed"));
    node.complete(CniCommand::Del, Ok(""));
    assert!(node.running.is_empty(), "no retry before the next resync");
    let report = report_of(&node.state, &cart);
    assert_eq!((report.problems[0].message.as_str(), report.ready), ("plugin failed", false));
    node.handle(Event::Resync);
    node.complete(CniCommand::Add, Ok(RESULT));
    assert!(report_of(&node.state, &cart).ready);
    node.handle(Event::SandboxRemoved(SandboxId("cart".to_owned())));
    node.complete(CniCommand::Del, Ok(""));
    assert!(node.running.is_empty());
}

#[test]
fn restart_finishes_an_interrupted_add() {
    for is_done in [true, false] {
        let cart = sandbox("cart", 1, "shop", "x");
        let mut node = PluginNode::default();
        node.handle(Event::SandboxUpdated(cart.clone()));
        node.handle(Event::ObjectApplied(annotation_of(&cart, vec![plugin_chain(&cart, CONFLIST)])));
        if is_done {
            node.complete(CniCommand::Add, Ok(RESULT));
        }
        let mut restarted = PluginNode { state: node.state.persistent(), ..PluginNode::default() };
        restarted.handle(Event::Restarted);
        if !is_done {
            restarted.complete(CniCommand::Del, Ok(""));
            restarted.complete(CniCommand::Add, Ok(RESULT));
        }
        assert!(restarted.running.is_empty());
        assert!(report_of(&restarted.state, &cart).ready);
    }
}
