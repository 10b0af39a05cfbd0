//! In whose name a pod of the cluster's network may speak, also outside of the cluster, and when that is asked of the kernel.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[path = "../../../knit-model/tests/support/kernel.rs"]
    #[allow(dead_code, reason = "shared with the plans' own tests")]
    pub mod kernel;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod node;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod tasks;
}

use std::collections::VecDeque;

use knit_engine::call::{Asked, Detach, Notes, Which, Wished};
use knit_engine::forward::{Forwarding, Outside, Port};
use knit_engine::namespaces::{Namespaces, Terms};
use knit_engine::{Answer, Attach, CallId, Effect, Event, State, StoredObject, cluster, step};
use knit_ipam::Time;
use knit_model::intent::{
    AddressPoolIntent, EncryptionIntent, Intent, IntentSpec, NodeRoutesIntent, NodeTunnelIntent, PeerNode,
    TunnelEndpoint,
};
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::route::Through;
use knit_model::{Mac, SandboxId};
use support::kernel::Kernel;
use support::node::object;
use support::tasks::{carry_out, cluster_network, newborn};

/// A node whose packet filter answers only when the test says so.
struct Node {
    state: State,
    kernel: Kernel,
    tasks: VecDeque<Effect>,
    asked: Vec<Forwarding>,
    answers: Vec<(String, Answer)>,
}

impl Node {
    fn new(anti_spoofing: bool) -> Self {
        let mut node = Self {
            state: State::default(),
            kernel: Kernel::holding(newborn(&["a", "b", "c"])),
            tasks: VecDeque::new(),
            asked: Vec::new(),
            answers: Vec::new(),
        };
        node.tell(Event::ObjectApplied(network(anti_spoofing)));
        if anti_spoofing {
            assert_eq!(node.filtered(Ok(())), []);
        }
        node
    }

    /// Tells something, and does all that follows but what the packet filter has to do.
    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in step(&mut self.state, event, Time(1)) {
                match effect {
                    Effect::Journal(_) | Effect::Changed(_) => {}
                    Effect::Answer { call, answer } => self.answers.push((call.0, answer)),
                    Effect::Forward(asked) => self.asked.push(asked),
                    task => self.tasks.push_back(task),
                }
            }
            if let Some(task) = self.tasks.pop_front() {
                events.push_back(carry_out(&mut self.kernel, task, false).unwrap());
            }
        }
    }

    /// The packet filter has done, or not, the one thing that it was asked. Says which ports it guards now.
    fn filtered(&mut self, result: Result<(), Problem>) -> Vec<Port> {
        self.done(result).guarded
    }

    /// The same, and says all that it was asked.
    fn done(&mut self, result: Result<(), Problem>) -> Forwarding {
        let asked = self.asked.remove(0);
        assert_eq!(self.asked, [], "one change at a time");
        self.tell(Event::Forwarded(result));
        asked
    }

    /// What leaves the cluster with the node's address, after one change.
    fn outside(&mut self) -> Option<Outside> {
        self.done(Ok(())).outside
    }

    fn attach(&mut self, id: &str) {
        self.attach_in("", id);
    }

    fn attach_in(&mut self, namespace: &str, id: &str) {
        let namespace = namespace.to_owned();
        let asked = Asked { default_route: true, ..Asked::default() };
        self.tell(Event::AttachRequested(Box::new(Attach {
            call: CallId(id.to_owned()),
            dialect: Dialect::Kni,
            sandbox: Wished { id: id.to_owned(), netns: format!("/{id}"), namespace, ..Wished::default() },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), asked)],
            notes: Notes::default(),
            fail_if_present: false,
            ticket: 7,
            began: 0,
        })));
    }

    fn detach(&mut self, id: &str) {
        let (call, sandbox) = (CallId(format!("{id} goes")), SandboxId(id.to_owned()));
        let which = Which::All;
        let netns = String::new();
        self.tell(Event::DetachRequested(Detach { call, sandbox, netns, which, forget: false, began: 0 }));
    }

    /// Who was told, and whether it is attached.
    fn told(&mut self) -> Vec<(String, bool)> {
        let answers = self.answers.drain(..);
        answers.map(|(call, answer)| (call, matches!(answer, Answer::Attached { .. }))).collect()
    }
}

/// The cluster's network.
fn network(anti_spoofing: bool) -> StoredObject {
    let mut object = cluster_network("10.75.0.0/29");
    let origin = object.intents[0].origin.clone();
    let want = IntentSpec::NodeRoutes(NodeRoutesIntent { anti_spoofing, ..NodeRoutesIntent::default() });
    object.intents.push(Intent { origin, spec: want });
    object
}

fn addresses(ports: &[Port]) -> Vec<String> {
    ports.iter().flat_map(|port| &port.addresses).map(ToString::to_string).collect()
}

#[test]
fn a_pod_is_told_to_be_attached_once_it_can_only_speak_for_itself() {
    let mut node = Node::new(true);
    node.attach("a");
    assert_eq!(node.told(), [], "the packet filter has not answered yet");
    // These come while it works, and wait for the change that has them.
    node.attach("b");
    node.attach("c");
    let guarded = node.filtered(Ok(()));
    assert_eq!(addresses(&guarded), ["10.75.0.2"]);
    assert_eq!(guarded[0].macs.len(), 1);
    assert_ne!(guarded[0].macs, [Mac::from_bytes([0; 6])].into());
    assert_eq!(node.told(), [("a".to_owned(), true)]);
    assert_eq!(addresses(&node.filtered(Ok(()))), ["10.75.0.2", "10.75.0.3", "10.75.0.4"]);
    assert_eq!(node.told(), [("b".to_owned(), true), ("c".to_owned(), true)]);
    node.detach("b");
    assert_eq!(node.told().len(), 1, "nobody waits for what goes");
    assert_eq!(addresses(&node.filtered(Ok(()))), ["10.75.0.2", "10.75.0.4"]);
}

#[test]
fn a_pod_that_could_speak_for_others_does_not_come() {
    let mut node = Node::new(true);
    node.attach("a");
    let message = "this kernel has no nftables on bridges".to_owned();
    let why = Problem { field: String::new(), reason: Reason::KernelLacks, message };
    node.filtered(Err(why.clone()));
    assert_eq!(node.answers.pop().unwrap(), ("a".to_owned(), Answer::Failed(why)));
    assert_eq!(node.filtered(Ok(())), []);
}

#[test]
fn what_is_not_asked_for_costs_nothing_and_can_be_switched_while_pods_run() {
    let mut node = Node::new(false);
    node.attach("a");
    assert_eq!((node.told(), node.asked.len()), (vec![("a".to_owned(), true)], 0));
    node.tell(Event::ObjectApplied(network(true)));
    assert_eq!(addresses(&node.filtered(Ok(()))), ["10.75.0.2"]);
    node.tell(Event::ObjectApplied(network(false)));
    assert_eq!(node.filtered(Ok(())), []);
}

/// One namespace about which something is said.
#[test]
fn pods_of_other_nodes_are_told_of_where_ports_are_guarded_and_no_tunnel_leads_there() {
    let object = |change: fn(&mut NodeRoutesIntent)| {
        let mut object = network(true);
        let IntentSpec::NodeRoutes(ways) = &mut object.intents.last_mut().unwrap().spec else {
            panic!("no ways")
        };
        let end = TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 };
        let node = "a".to_owned();
        ways.tunnel = Some(NodeTunnelIntent { node, vni: 1, port: 2, always: false, ends: vec![end] });
        ways.nodes = vec![
            PeerNode {
                name: "near".to_owned(),
                ranges: vec!["10.75.1.0/24".parse().unwrap()],
                addresses: vec![("192.0.2.2".parse().unwrap(), "eth0".parse().unwrap())],
                far: vec![],
                key: None,
            },
            PeerNode {
                name: "far".to_owned(),
                ranges: vec!["10.75.2.0/24".parse().unwrap()],
                addresses: vec![],
                far: vec!["198.51.100.2".parse().unwrap()],
                key: None,
            },
        ];
        change(ways);
        Event::ObjectApplied(object)
    };
    let mut node = Node::new(true);
    node.tell(object(|_| ()));
    let near = Through {
        to: "10.75.1.0/24".parse().unwrap(),
        gateway: "192.0.2.2".parse().unwrap(),
        link: "eth0".parse().unwrap(),
    };
    assert_eq!(*node.done(Ok(())).beyond, *std::slice::from_ref(&near));
    node.tell(object(|ways| ways.tunnel.as_mut().unwrap().always = true));
    assert_eq!(*node.done(Ok(())).beyond, []);
    node.tell(object(|_| ()));
    assert_eq!(*node.done(Ok(())).beyond, [near]);
    node.tell(object(|ways| ways.encryption = Some(EncryptionIntent { port: 1, ends: vec![] })));
    assert_eq!(*node.done(Ok(())).beyond, [], "nothing passes by what encrypts");
    node.tell(object(|_| ()));
    assert_ne!(*node.done(Ok(())).beyond, []);
    node.tell(object(|ways| ways.anti_spoofing = false));
    assert_eq!(*node.done(Ok(())).beyond, []);
}

#[test]
fn the_packet_filter_is_told_what_differs_until_all_is_compared() {
    let mut node = Node::new(true);
    node.attach_in("lab", "a");
    assert!(!node.done(Ok(())).anew);
    // While one is under way it is kept in mind, for the next one alone.
    node.attach_in("lab", "b");
    node.tell(Event::Reforward);
    assert!(!node.done(Ok(())).anew);
    assert!(node.done(Ok(())).anew);
    node.attach_in("lab", "c");
    assert!(!node.done(Ok(())).anew);
}

fn said(name: &str, terms: Terms) -> Event {
    Event::Namespaces(Namespaces::from([(name.to_owned(), terms)]))
}

#[test]
fn a_namespace_is_let_off_and_held_to_it_again_while_its_pods_run() {
    let mut node = Node::new(true);
    for (namespace, id) in [("lab", "a"), ("shop", "b")] {
        node.attach_in(namespace, id);
        node.filtered(Ok(()));
    }
    let grant = Terms { unguarded: true, masquerade: None };
    node.tell(said("lab", grant));
    assert_eq!(addresses(&node.filtered(Ok(()))), ["10.75.0.3"], "the other namespace is guarded as before");
    let warnings = node.state.report(&cluster::key()).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("namespace lab may speak in the name of others"), "{warnings:?}");
    // A pod that comes later needs nothing of the packet filter.
    node.told();
    node.attach_in("lab", "c");
    assert_eq!((node.told(), node.asked.len()), (vec![("c".to_owned(), true)], 0));
    // The same again is no news, and nothing is lost with the program.
    node.tell(said("lab", grant));
    assert_eq!(node.asked, []);
    node.tell(Event::Restarted);
    node.tell(Event::Reforward);
    assert_eq!(addresses(&node.filtered(Ok(()))), ["10.75.0.3"]);
    node.tell(Event::Namespaces(Namespaces::new()));
    assert_eq!(addresses(&node.filtered(Ok(()))), ["10.75.0.2", "10.75.0.3", "10.75.0.4"]);
}

/// The cluster's network, on which pods have their node's address outside, or not.
fn leaving(masquerade: bool) -> StoredObject {
    let mut object = network(false);
    let IntentSpec::NodeRoutes(ways) = &mut object.intents.last_mut().unwrap().spec else {
        panic!("{object:?}")
    };
    ways.masquerade = masquerade;
    ways.inside = vec!["192.0.2.0/24".parse().unwrap(), "172.16.0.0/12".parse().unwrap()];
    object
}

fn texts<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn a_namespace_chooses_the_address_of_its_pods_outside() {
    let mut node = Node::new(false);
    node.attach_in("lab", "a");
    node.attach_in("shop", "b");
    let on = said("lab", Terms { masquerade: Some(true), ..Terms::default() });
    node.tell(on.clone());
    let outside = node.outside().unwrap();
    assert_eq!((texts(&outside.pods), outside.kept), (vec!["10.75.0.2/32".to_owned()], vec![]));
    let inside = texts(&outside.inside);
    assert_eq!(inside, ["10.75.0.0/29"], "never to other pods");
    node.tell(Event::ObjectApplied(leaving(true)));
    let outside = node.outside().unwrap();
    assert_eq!((texts(&outside.pods), outside.kept), (vec!["10.75.0.0/29".to_owned()], vec![]));
    assert_eq!(texts(&outside.inside), ["10.75.0.0/29", "172.16.0.0/12", "192.0.2.0/24"], "in order");
    node.tell(said("lab", Terms { masquerade: Some(false), ..Terms::default() }));
    let outside = node.outside().unwrap();
    assert_eq!(
        (texts(&outside.pods), texts(&outside.kept)),
        (vec!["10.75.0.0/29".to_owned()], vec!["10.75.0.2".to_owned()])
    );
    node.detach("a");
    assert!(node.outside().unwrap().kept.is_empty());
    node.tell(Event::ObjectApplied(leaving(false)));
    assert_eq!(node.outside(), None);
}

#[test]
fn a_pool_chooses_before_the_agent_and_after_a_namespace() {
    let pool = |masquerade| {
        let range = "10.75.0.0/24".parse().unwrap();
        let want = IntentSpec::AddressPool(AddressPoolIntent {
            name: "p".to_owned(),
            range,
            block: 29,
            namespaces: Vec::new(),
            masquerade,
        });
        Event::ObjectApplied(object("PodAddressPool", "", "p", vec![want]))
    };
    let mut node = Node::new(false);
    node.attach_in("lab", "a");
    node.tell(Event::ObjectApplied(leaving(true)));
    assert_eq!(texts(&node.outside().unwrap().pods), ["10.75.0.0/29"]);
    node.tell(pool(None));
    assert_eq!(node.asked, [], "it says nothing");
    node.tell(pool(Some(false)));
    assert_eq!(node.outside(), None);
    node.tell(said("lab", Terms { masquerade: Some(true), ..Terms::default() }));
    assert_eq!(texts(&node.outside().unwrap().pods), ["10.75.0.2/32"]);
    node.tell(Event::Namespaces(Namespaces::new()));
    assert_eq!(node.outside(), None);
    node.tell(Event::ObjectApplied(leaving(false)));
    node.tell(pool(Some(true)));
    assert_eq!(texts(&node.outside().unwrap().pods), ["10.75.0.0/29"]);
}
