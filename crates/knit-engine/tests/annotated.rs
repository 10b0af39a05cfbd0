//! What pods ask for by their own annotations: interfaces on networks that are defined elsewhere, and chains of plugins.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #![allow(dead_code, reason = "each test file uses a part of it")]
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    pub mod kernel;
    pub mod node;
}

use knit_engine::chain::{ChainKey, Verb};
use knit_engine::{Effect, Event, State, StoredObject, annotated, step};
use knit_ipam::Time;
use knit_model::intent::{
    Defined, IntentSpec, InterfaceIntent, NameRule, PluginChainIntent, RejectedIntent, Selector, UplinkIntent,
};
use knit_model::link::{Kind, Macvlan, Veth};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::report::AppliedReport;
use knit_model::{Sandbox, SandboxId, Scope};
use support::node::{Node, key, object, sandbox, veth, with_eth0};

/// What a pod's annotation asks for.
fn of_pod(pod: &Sandbox, wants: Vec<IntentSpec>) -> StoredObject {
    let mut stored = object(annotated::KIND, &pod.namespace, &pod.pod, wants);
    stored.object.uid.clone_from(&pod.uid);
    for intent in &mut stored.intents {
        intent.origin.dialect = Dialect::Annotation;
        intent.origin.object = Some(stored.object.clone());
    }
    stored
}

/// An interface `net1` of one pod, on a network that the namespace `lab` defines.
fn on_network(pod: &Sandbox, edit: impl FnOnce(&mut InterfaceIntent, &mut Defined)) -> IntentSpec {
    let IntentSpec::Interface(mut want) = veth("x", "unused", "br0", "10.9.0.0/24") else { unreachable!() };
    let mut defined = Defined { namespace: "lab".to_owned(), name: "blue".to_owned(), ..Defined::default() };
    want.pods = Selector::pod(pod.uid.as_str());
    want.name = NameRule::Exact("net1".parse().unwrap());
    want.kind = Kind::Veth(Veth::default());
    edit(&mut want, &mut defined);
    want.defined = Some(Box::new(defined));
    IntentSpec::Interface(want)
}

fn macvlan(want: &mut InterfaceIntent, defined: &mut Defined) {
    want.kind = Kind::Macvlan(Macvlan { parent: None, mode: None });
    want.master = None;
    defined.nic = Some("eno1".parse().unwrap());
}

fn uplink(namespaces: &[&str], kinds: &[&str]) -> StoredObject {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let want = UplinkIntent {
        name: "net1".to_owned(),
        link: "eno1".parse().unwrap(),
        namespaces: words(namespaces),
        kinds: words(kinds),
        vlans: Vec::new(),
        max_mtu: None,
    };
    object("Uplink", "", "net1", vec![IntentSpec::Uplink(want)])
}

/// Sandboxes with a `eth0` each; the host has a NIC.
fn node(pods: &[&Sandbox]) -> Node {
    let names: Vec<&str> = pods.iter().map(|pod| pod.id.0.as_str()).collect();
    let mut kernel = with_eth0(&names);
    let mut nic = knit_model::Link::new("eno1".parse().unwrap(), Kind::Other { name: String::new() });
    nic.attrs.mtu = Some(1500);
    kernel.scope(&Scope::Host).add_link(nic);
    let mut node = Node::holding(kernel);
    for pod in pods {
        node.hear(Event::SandboxSeen((*pod).clone()));
    }
    node
}

/// What became of what the pod asks for.
fn told(state: &State, pod: &Sandbox) -> AppliedReport {
    let states = state.pod_states();
    let mine =
        states.into_iter().find(|one| one.sandbox.id == pod.id).expect("something is said about the pod");
    mine.objects.into_iter().find(|one| one.object.kind == annotated::KIND).unwrap()
}

fn addresses(state: &State, pod: &Sandbox) -> Vec<String> {
    told(state, pod).interfaces.iter().flat_map(|one| &one.addresses).map(ToString::to_string).collect()
}

#[test]
fn pods_of_two_namespaces_on_one_network_are_on_one_bridge_and_share_its_addresses() {
    let (cart, probe) = (sandbox("cart", 1, "shop", "x"), sandbox("probe", 2, "lab", "x"));
    let other = sandbox("other", 3, "shop", "x");
    let mut node = node(&[&cart, &probe, &other]);
    for pod in [&cart, &probe] {
        node.hear(Event::ObjectApplied(of_pod(pod, vec![on_network(pod, |_, _| {})])));
    }
    assert_eq!(
        (addresses(&node.state, &cart), addresses(&node.state, &probe)),
        (vec!["10.9.0.2/24".to_owned()], vec!["10.9.0.3/24".to_owned()])
    );
    let bridges: Vec<String> =
        node.state.made.keys().map(ToString::to_string).filter(|unit| unit.contains("bridge")).collect();
    assert_eq!(bridges.len(), 1, "{bridges:?}");
    assert!(bridges[0].contains("lab/br0"), "it is the definition's namespace's: {bridges:?}");
    assert!(node.link("other", "net1").is_none(), "the same labels mean nothing");
    // Nobody said that the bridge is the router.
    assert!(
        !node.kernel.observe().scopes[&Scope::Host].addresses.values().any(|one| one.link.as_str() == "br0")
    );
    // With the last one the bridge goes.
    for pod in [&cart, &probe] {
        node.hear(Event::ObjectDeleted(key(&of_pod(pod, Vec::new()))));
    }
    assert!(node.host_link("br0").is_none());
    assert!(node.link("cart", "net1").is_none());
}

#[test]
fn a_router_is_the_bridge_itself_and_what_is_kept_back_is_nobodys() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = node(&[&cart]);
    let want = on_network(&cart, |_, defined| {
        defined.gateway = true;
        defined.reserved = vec!["10.9.0.0/28".parse().unwrap()];
    });
    node.hear(Event::ObjectApplied(of_pod(&cart, vec![want])));
    assert_eq!(addresses(&node.state, &cart), ["10.9.0.16/24"]);
    let host = &node.kernel.observe().scopes[&Scope::Host];
    assert!(host.addresses.values().any(|one| one.address.to_string() == "10.9.0.1/24"), "{host:?}");
    // An address by value stands for that of its range.
    let want = on_network(&cart, |want, defined| {
        defined.gateway = true;
        want.fixed = vec!["10.9.0.77/24".parse().unwrap()];
    });
    node.hear(Event::ObjectApplied(of_pod(&cart, vec![want])));
    assert_eq!(addresses(&node.state, &cart), ["10.9.0.77/24"]);
}

#[test]
fn a_nic_needs_an_uplink_that_is_open_to_the_pod_and_never_means_something_of_the_pod() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = node(&[&cart]);
    node.hear(Event::ObjectApplied(of_pod(&cart, vec![on_network(&cart, macvlan)])));
    let problem = |node: &Node| {
        let told = told(&node.state, &cart);
        (told.problems.first().map(|problem| problem.message.clone()), told.ready)
    };
    let closed =
        "NIC eno1 is not open to macvlan links of namespace shop: no Uplink of it says so".to_owned();
    assert_eq!(problem(&node), (Some(closed.clone()), false));
    for (namespaces, kinds) in [(&["lab"][..], &[][..]), (&["shop"], &["vlan"])] {
        node.hear(Event::ObjectApplied(uplink(namespaces, kinds)));
        assert_eq!(problem(&node), (Some(closed.clone()), false));
    }
    // Its name is that of the interface itself, which is not what is meant.
    node.hear(Event::ObjectApplied(uplink(&["shop"], &["macvlan"])));
    assert_eq!(problem(&node), (None, true));
    let link = node.link("cart", "net1").unwrap();
    assert_eq!(link.kind.parent().unwrap().as_str(), "eno1");
    // Two pods of one network never have one address, also where there is no bridge.
    let web = sandbox("web", 2, "shop", "x");
    node.hear(Event::SandboxSeen(web.clone()));
    node.hear(Event::ObjectApplied(of_pod(&web, vec![on_network(&web, macvlan)])));
    assert_eq!(
        (addresses(&node.state, &cart), addresses(&node.state, &web)),
        (vec!["10.9.0.2/24".to_owned()], vec!["10.9.0.3/24".to_owned()])
    );
}

#[test]
fn what_cannot_be_is_told_and_the_rest_stands() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = node(&[&cart]);
    let problem =
        Problem { field: "f".to_owned(), reason: Reason::NotFound, message: "there is none".to_owned() };
    let refused = RejectedIntent { pods: Selector::pod(cart.uid.as_str()), problem };
    let wants = vec![IntentSpec::Rejected(Box::new(refused)), on_network(&cart, |_, _| {})];
    let mut object = of_pod(&cart, wants);
    object.warnings = vec!["mind this".to_owned()];
    node.hear(Event::ObjectApplied(object));
    let told = told(&node.state, &cart);
    assert_eq!((told.problems[0].message.as_str(), told.ready), ("there is none", false));
    assert_eq!((told.interfaces.len(), told.warnings), (1, vec!["mind this".to_owned()]));
    assert_eq!(node.replayed().objects, node.state.objects);
}

/// An engine whose plugins are run by hand.
#[derive(Default)]
struct Plugins {
    state: State,
    running: Vec<(ChainKey, Verb)>,
}

impl Plugins {
    fn tell(&mut self, event: Event) {
        let mut next = Vec::new();
        for effect in step(&mut self.state, event, Time(1)) {
            match effect {
                Effect::RunChain { verb, chained } => self.running.push((chained.key(), verb)),
                Effect::Observe { unit, .. } => {
                    next.push(Event::Observed { unit, seen: Default::default(), keys: Default::default() });
                }
                _ => {}
            }
        }
        next.into_iter().for_each(|event| self.tell(event));
    }

    fn end(&mut self, expected: Verb, result: Result<&str, &str>) {
        let (key, verb) = self.running.pop().expect("plugins run");
        assert_eq!((verb, self.running.len()), (expected, 0));
        let failed = |message: &str| Problem {
            field: String::new(),
            reason: Reason::KernelRefused,
            message: message.to_owned(),
        };
        self.tell(Event::ChainDone { key, verb, result: result.map(str::to_owned).map_err(failed) });
    }
}

fn chain(pod: &Sandbox, conflist: &str) -> IntentSpec {
    IntentSpec::PluginChain(Box::new(PluginChainIntent {
        pods: Selector::pod(pod.uid.as_str()),
        name: "net1".parse().unwrap(),
        network: "lab/blue".to_owned(),
        conflist: conflist.to_owned(),
        plugin_dirs: Vec::new(),
        timeout_seconds: 1,
    }))
}

const MINE: &str = r#"{"plugins": [{"type": "mine"}]}"#;
const STANDS: &str = r#"{"interfaces": [{"name": "net1", "mac": "02:00:00:00:00:07", "sandbox": "/s", "mtu": 1400}],
    "ips": [{"address": "10.7.0.2/24"}]}"#;

#[test]
fn plugins_are_run_when_the_annotation_names_them_and_again_when_it_does_not() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = Plugins::default();
    node.tell(Event::ObjectApplied(of_pod(&cart, vec![chain(&cart, MINE)])));
    assert!(node.running.is_empty(), "there is no sandbox yet");
    node.tell(Event::SandboxSeen(cart.clone()));
    assert!(!told(&node.state, &cart).ready);
    node.end(Verb::Add, Ok(STANDS));
    let report = told(&node.state, &cart);
    let [interface] = &report.interfaces[..] else { panic!("{report:?}") };
    assert!(report.ready && interface.ready);
    assert_eq!((interface.kind.as_str(), interface.mtu), ("mine", Some(1400)));
    assert_eq!(interface.mac.unwrap().to_string(), "02:00:00:00:00:07");
    assert_eq!(addresses(&node.state, &cart), ["10.7.0.2/24"]);
    // Another configuration: what made it takes it away first.
    node.tell(Event::ObjectApplied(of_pod(&cart, vec![chain(&cart, "{}")])));
    node.end(Verb::Del, Ok(""));
    node.end(Verb::Add, Ok(STANDS));
    node.tell(Event::ObjectApplied(of_pod(&cart, Vec::new())));
    node.end(Verb::Del, Ok(""));
    assert!(node.running.is_empty() && node.state.called.all_chained().next().is_none());
    assert!(node.state.sandboxes.contains_key(&cart.id), "the pod is still there");
}

#[test]
fn a_chain_that_fails_is_told_taken_back_and_tried_again_when_everything_is_compared() {
    let cart = sandbox("cart", 1, "shop", "x");
    let mut node = Plugins::default();
    node.tell(Event::SandboxSeen(cart.clone()));
    node.tell(Event::ObjectApplied(of_pod(&cart, vec![chain(&cart, MINE)])));
    node.end(Verb::Add, Err("no luck"));
    node.end(Verb::Del, Ok(""));
    assert!(node.running.is_empty(), "not again and again");
    let report = told(&node.state, &cart);
    assert_eq!((report.problems[0].message.as_str(), report.ready), ("no luck", false));
    node.tell(Event::Resync);
    node.end(Verb::Add, Ok(STANDS));
    assert!(told(&node.state, &cart).ready);
    node.tell(Event::SandboxGone(SandboxId("cart".to_owned())));
    node.end(Verb::Del, Ok(""));
    assert!(node.running.is_empty());
}

#[test]
fn a_restart_finishes_what_it_began() {
    for stands in [true, false] {
        let cart = sandbox("cart", 1, "shop", "x");
        let mut node = Plugins::default();
        node.tell(Event::SandboxSeen(cart.clone()));
        node.tell(Event::ObjectApplied(of_pod(&cart, vec![chain(&cart, MINE)])));
        if stands {
            node.end(Verb::Add, Ok(STANDS));
        }
        let mut again = Plugins { state: node.state.remembered(), ..Plugins::default() };
        again.tell(Event::Restarted);
        if !stands {
            again.end(Verb::Del, Ok(""));
            again.end(Verb::Add, Ok(STANDS));
        }
        assert!(again.running.is_empty());
        assert!(told(&again.state, &cart).ready);
    }
}
