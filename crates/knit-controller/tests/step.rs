//! What the controller decides, without an API server.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use knit_controller::labels::Labels;
use knit_controller::{Effect, Event, HeldBlock, State, step};
use knit_crds::Object;
use knit_crds::states::{NodeNetworkStatus, PodNetworkStateStatus};
use knit_kube::Seen;
use serde_json::{Value, json};

const MINE: &str = "podconfig.finalizers.opdev.io";

/// A controller that has listed everything, with one node.
struct Controller {
    state: State,
    now: i64,
}

impl Controller {
    fn new() -> Self {
        let mut controller = Self { state: State::default(), now: 1_000_000 };
        for kind in Object::kinds() {
            controller.hear(Event::Objects(&kind.kind, Box::new(Seen::Listed(Vec::new()))));
        }
        controller.hear(Event::Pods(Seen::Listed(Vec::new())));
        controller.hear(Event::Nodes(Seen::Listed(Vec::new())));
        controller.hear(Event::Samples(Seen::Listed(Vec::new())));
        controller.hear(Event::Blocks(Seen::Listed(Vec::new())));
        assert_eq!(controller.look(0), [], "nothing is decided before nodes are known");
        controller.hear(Event::Alive(Seen::Listed(vec![node("node1"), node("node2")])));
        controller
    }

    fn hear(&mut self, event: Event) {
        assert_eq!(step(&mut self.state, event, self.now), []);
    }

    fn look(&mut self, later: i64) -> Vec<Effect> {
        self.now += later;
        step(&mut self.state, Event::Look, self.now)
    }

    fn apply(&mut self, object: Value) {
        let object = Object::from_manifest(&object).unwrap();
        let kind = Object::find_kind(object.kind()).unwrap();
        self.hear(Event::Objects(&kind.kind, Box::new(Seen::Applied(object))));
    }

    /// What an agent says about a pod.
    fn pod(&mut self, name: &str, node: &str, objects: Value) {
        let status = json!({"node": node, "podUID": name, "objects": objects});
        let status: PodNetworkStateStatus = serde_json::from_value(status).unwrap();
        self.hear(Event::Pods(Seen::Applied((("tenant".to_owned(), name.to_owned()), status))));
    }
}

fn config(generation: i64, metadata: Value, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "podconfig.opdev.io/v1alpha1",
        "kind": "PodConfig",
        "metadata": {"name": "a", "namespace": "tenant", "uid": "u", "generation": generation, "resourceVersion": "7",
            "finalizers": [MINE]},
        "spec": {"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.0/24"}]},
    });
    merge(&mut object["metadata"], metadata);
    merge(&mut object["spec"], spec);
    object
}

fn node(name: &str) -> (String, Labels) {
    (name.to_owned(), Labels::new())
}

fn merge(to: &mut Value, from: Value) {
    to.as_object_mut().unwrap().extend(from.as_object().unwrap().clone());
}

fn stands(generation: i64, number: u32, last: u32) -> Value {
    json!([{"kind": "PodConfig", "namespace": "tenant", "name": "a", "uid": "u", "generation": generation, "ready": true,
        "interfaces": [{"field": "spec.networkAttachments[0]", "name": format!("pc0{number}"), "linkType": "veth",
            "addresses": [format!("192.168.100.{last}/24")], "peer": format!("hpc0{number}"), "master": "pcbr0",
            "ready": true}]}])
}

fn status(effects: &[Effect]) -> Value {
    let written = effects.iter().find_map(|effect| match effect {
        Effect::WriteStatus(_, status) => Some(status.clone()),
        _ => None,
    });
    written.unwrap_or_else(|| panic!("no status in {effects:?}"))
}

fn ready(status: &Value) -> (&str, &str, &str) {
    let ready = &status["conditions"][0];
    let text = |field: &str| ready[field].as_str().unwrap();
    (text("status"), text("reason"), text("message"))
}

#[test]
fn two_nodes_pods_make_one_status_in_the_predecessors_words() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    controller.pod("b", "node2", stands(1, 28, 2));
    controller.pod("a", "node1", stands(1, 27, 2));
    let effects = controller.look(0);
    let status = status(&effects);
    assert_eq!(status["phase"], "configured");
    assert_eq!(
        status["podConfigurations"],
        json!([
            {"podName": "a", "configList": ["{podVethName:pc027 podIPAddr:192.168.100.2/24 peerVethName:hpc027 bridge:pcbr0}"]},
            {"podName": "b", "configList": ["{podVethName:pc028 podIPAddr:192.168.100.2/24 peerVethName:hpc028 bridge:pcbr0}"]},
        ])
    );
    assert_eq!(ready(&status), ("True", "Configured", "2 pods configured"));
    assert!(matches!(&effects[1], Effect::Tell { reason, .. } if reason == "Configured"), "{effects:?}");
    // What was written is not written again, also before the watch brings it back.
    controller.pod("a", "node1", stands(1, 27, 2));
    assert_eq!(controller.look(0), []);
}

#[test]
fn a_status_waits_for_agents_but_not_forever() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    assert_eq!(controller.look(0), [], "agents have had no time yet");
    assert_eq!(ready(&status(&controller.look(1_000))).1, "NoPods");
    controller.pod("a", "node1", stands(1, 27, 2));
    assert_eq!(ready(&status(&controller.look(0))).0, "True");
    controller.apply(config(2, json!({}), json!({})));
    assert_eq!(controller.look(500), [], "the agent speaks of the generation before");
    let late = status(&controller.look(500));
    assert_eq!((ready(&late).0, late["observedGeneration"].as_i64()), ("False", Some(2)));
    controller.pod("a", "node1", stands(2, 27, 2));
    assert_eq!(ready(&status(&controller.look(0))).0, "True");
}

#[test]
fn a_problem_on_any_node_is_in_the_status_and_told_once() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    let problem = json!({"reason": "NotOwned", "message": "link pcbr0 exists, and Knit did not make it"});
    let object = json!({"kind": "PodConfig", "namespace": "tenant", "name": "a", "uid": "u", "generation": 1,
        "ready": false, "problems": [problem]});
    let node: NodeNetworkStatus = serde_json::from_value(json!({"objects": [object]})).unwrap();
    for name in ["node1", "node2"] {
        controller.hear(Event::Nodes(Seen::Applied((name.to_owned(), node.clone()))));
    }
    let effects = controller.look(0);
    assert_eq!(
        ready(&status(&effects)),
        ("False", "NotOwned", "link pcbr0 exists, and Knit did not make it")
    );
    assert!(matches!(&effects[1], Effect::Tell { reason, .. } if reason == "NotOwned"), "{effects:?}");
}

#[test]
fn a_gateways_status_follows_the_node_that_says_it_has_the_address() {
    let mut controller = Controller::new();
    controller.apply(json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "EgressGateway",
        "metadata": {"name": "shop", "uid": "g", "generation": 1, "resourceVersion": "7"},
        "spec": {"namespaces": ["shop"], "addresses": ["192.0.2.10"], "nodes": ["node1", "node2"]},
    }));
    let item = json!({"field": "spec.addresses[0]", "what": "192.0.2.10 on eth0", "ready": true});
    let object = json!({"kind": "EgressGateway", "name": "shop", "uid": "g", "generation": 1, "ready": true, "items": [item]});
    let says = |objects: &[&Value]| -> NodeNetworkStatus {
        serde_json::from_value(json!({"objects": objects})).unwrap()
    };
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(&[&object])))));
    assert_eq!(status(&controller.look(0))["activeNode"], "node1");
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(&[])))));
    controller.hear(Event::Nodes(Seen::Applied(("node2".to_owned(), says(&[&object])))));
    let status = status(&controller.look(0));
    assert_eq!((&status["activeNode"], &status["held"]), (&json!("node2"), &json!(["192.0.2.10 on eth0"])));
}

#[test]
fn an_object_that_cannot_be_says_so_in_its_status() {
    let mut controller = Controller::new();
    let bad = json!({"networkAttachments": [{"name": "pc0", "master": "pcbr0", "cidr": "192.168.100.7/24"}]});
    controller.apply(config(1, json!({}), bad));
    let status = status(&controller.look(0));
    assert_eq!(ready(&status).1, "InvalidValue");
    assert!(ready(&status).2.contains("spec.networkAttachments[0].cidr"), "{status}");
}

#[test]
fn a_finalizer_comes_at_once_and_goes_when_no_node_has_anything() {
    let mut controller = Controller::new();
    let set = |finalizers: &[&str], version: &str| Effect::SetFinalizers {
        key: knit_engine::ObjectKey {
            kind: "PodConfig".to_owned(),
            namespace: "tenant".to_owned(),
            name: "a".to_owned(),
        },
        finalizers: finalizers.iter().map(ToString::to_string).collect(),
        version: version.to_owned(),
    };
    controller.apply(config(1, json!({"finalizers": ["other"]}), json!({})));
    assert_eq!(controller.look(0), [set(&["other", MINE], "7")]);
    controller.apply(config(1, json!({"finalizers": ["other"]}), json!({})));
    assert_eq!(controller.look(0), [], "it was asked for already");
    controller.pod("a", "node1", stands(1, 27, 2));
    let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "8", "finalizers": ["other", MINE]});
    controller.apply(config(1, going, json!({})));
    assert_eq!(controller.look(0), [], "a pod still has it");
    controller.pod("a", "node1", json!([]));
    assert_eq!(controller.look(0), [set(&["other"], "8")]);
}

#[test]
fn an_object_without_pods_goes_at_once() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({})));
    assert!(
        matches!(&controller.look(0)[..], [Effect::SetFinalizers { finalizers, .. }] if finalizers.is_empty())
    );
}

#[test]
fn neither_a_node_that_is_gone_nor_an_agent_that_is_silent_holds_an_object_forever() {
    let going = || config(1, json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!({}));
    let mut controller = Controller::new();
    controller.pod("a", "node1", stands(1, 27, 2));
    controller.apply(going());
    assert_eq!(controller.look(0), []);
    controller.hear(Event::Alive(Seen::Deleted(node("node1"))));
    assert!(matches!(&controller.look(0)[..], [Effect::SetFinalizers { .. }]));

    let mut controller = Controller::new();
    controller.pod("a", "node1", stands(1, 27, 2));
    controller.apply(going());
    assert!(controller.look(29_999).is_empty());
    let effects = controller.look(30_000);
    assert!(matches!(&effects[..], [Effect::Tell { .. }, Effect::SetFinalizers { .. }]), "{effects:?}");
}

#[test]
fn what_a_node_said_goes_with_it() {
    let mut controller = Controller::new();
    controller.hear(Event::Nodes(Seen::Applied(("old".to_owned(), NodeNetworkStatus::default()))));
    assert_eq!(controller.look(0), [Effect::DeleteNodeState("old".to_owned())]);
}

#[test]
fn a_sample_deployment_is_made_once_and_deleted_when_it_is_not_asked_for() {
    let mut controller = Controller::new();
    let made = |effects: Vec<Effect>| {
        effects.into_iter().find_map(|effect| match effect {
            Effect::MakeSample { name, .. } => Some(format!("+{name}")),
            Effect::DeleteSample(_, (_, name)) => Some(format!("-{name}")),
            _ => None,
        })
    };
    controller.apply(config(1, json!({}), json!({"sampleDeployment": {"create": true, "name": "cnf"}})));
    assert_eq!(made(controller.look(0)), Some("+cnf".to_owned()));
    let sample = (("tenant".to_owned(), "cnf".to_owned()), "a".to_owned());
    controller.hear(Event::Samples(Seen::Applied(sample)));
    assert_eq!(made(controller.look(0)), None);
    controller.apply(config(2, json!({}), json!({"sampleDeployment": {"create": false, "name": "cnf"}})));
    assert_eq!(made(controller.look(0)), Some("-cnf".to_owned()));
}

#[test]
fn a_write_that_failed_is_tried_again() {
    let mut controller = Controller::new();
    controller.apply(config(1, json!({}), json!({})));
    controller.pod("a", "node1", stands(1, 27, 2));
    let effects = controller.look(0);
    let Effect::WriteStatus(key, first) = &effects[0] else { panic!("{effects:?}") };
    controller.hear(Event::Failed(key.clone()));
    assert_eq!(status(&controller.look(0)), *first);
}

#[test]
fn what_a_gone_node_claimed_of_a_quota_is_free_again_and_claims_are_the_agents_to_write() {
    let mut controller = Controller::new();
    let claims =
        json!({"node1": {"interfaces": 2, "addresses": 3}, "node9": {"interfaces": 5, "bridges": 1}});
    controller.apply(json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1", "kind": "NetworkQuota",
        "metadata": {"name": "most", "namespace": "tenant", "uid": "u", "generation": 1, "resourceVersion": "7"},
        "spec": {"interfaces": 9},
        "status": {"claims": claims, "used": {"interfaces": 7, "addresses": 3, "bridges": 1}},
    }));
    let effects = controller.look(0);
    let dropped = effects.iter().find_map(|effect| match effect {
        Effect::DropClaims { nodes, used, version, .. } => Some((nodes.clone(), *used, version.clone())),
        _ => None,
    });
    let (nodes, used, version) = dropped.unwrap();
    assert_eq!((nodes, version.as_str()), (vec!["node9".to_owned()], "7"));
    assert_eq!((used.interfaces, used.addresses, used.bridges), (2, 3, 0));
    let status = status(&effects);
    assert_eq!(ready(&status).0, "True");
    assert!(status.get("claims").is_none() && status.get("used").is_none(), "{status}");
}

#[test]
fn blocks_of_a_node_go_when_it_has_been_gone_for_long_and_never_before() {
    let mut controller = Controller::new();
    for (name, node) in [("a-0", "node1"), ("a-1", "node2"), ("b-0", "node2")] {
        let block = HeldBlock { uid: format!("uid-{name}"), node: node.to_owned() };
        controller.hear(Event::Blocks(Seen::Applied((name.to_owned(), block))));
    }
    let minute = 60_000;
    assert_eq!(controller.look(60 * minute), []);
    assert!(!controller.state.waits_for_nodes());
    controller.hear(Event::Alive(Seen::Deleted(node("node2"))));
    assert_eq!(controller.look(0), []);
    assert!(controller.state.waits_for_nodes());
    assert_eq!(controller.look(4 * minute), []);
    // It is back: its time begins anew.
    controller.hear(Event::Alive(Seen::Applied(node("node2"))));
    assert_eq!(controller.look(0), []);
    controller.hear(Event::Alive(Seen::Deleted(node("node2"))));
    assert_eq!(controller.look(2 * minute), []);
    assert_eq!(controller.look(4 * minute), []);
    let delete = |name: &str| Effect::DeleteBlock { name: name.to_owned(), uid: format!("uid-{name}") };
    assert_eq!(controller.look(minute), [delete("a-1"), delete("b-0")]);
    for name in ["a-1", "b-0"] {
        let block = HeldBlock { uid: format!("uid-{name}"), node: "node2".to_owned() };
        controller.hear(Event::Blocks(Seen::Deleted((name.to_owned(), block))));
    }
    assert_eq!(controller.look(60 * minute), []);
    assert!(!controller.state.waits_for_nodes());
}

#[test]
fn a_clock_that_was_put_back_does_not_keep_blocks_of_a_node_that_is_gone() {
    let mut controller = Controller::new();
    let block = HeldBlock { uid: "uid-a".to_owned(), node: "node2".to_owned() };
    controller.hear(Event::Blocks(Seen::Applied(("a".to_owned(), block))));
    controller.hear(Event::Alive(Seen::Deleted(node("node2"))));
    let minute = 60_000;
    assert_eq!(controller.look(0), []);
    assert_eq!(controller.look(-600 * minute), []);
    assert_eq!(controller.look(4 * minute), []);
    assert_eq!(
        controller.look(minute),
        [Effect::DeleteBlock { name: "a".to_owned(), uid: "uid-a".to_owned() }]
    );
}

/// What an agent says about its node: its kernel has this kind of link or not, and these are its NICs.
fn says(has_vlan: bool, nics: &[&str]) -> NodeNetworkStatus {
    let nics: Vec<Value> = nics.iter().map(|name| json!({"name": name, "mtu": 1500, "up": true})).collect();
    let status = json!({
        "agent": "1",
        "kernel": {"release": "6", "links": [{"kind": "vlan", "present": has_vlan}]},
        "uplinks": nics,
    });
    serde_json::from_value(status).unwrap()
}

fn uplink(name: &str, link: &str) -> Value {
    json!({
        "apiVersion": "podnetwork.opdev.io/v1alpha1",
        "kind": "Uplink",
        "metadata": {"name": name, "uid": name, "generation": 1},
        "spec": {"link": link},
    })
}

fn labelled(effects: &[Effect]) -> Vec<String> {
    let labels = effects.iter().filter_map(|effect| match effect {
        Effect::LabelNode { node, labels } => Some(labels.iter().map(move |(key, value)| match value {
            Some(value) => format!("{node} {key}={value}"),
            None => format!("{node} {key}-"),
        })),
        _ => None,
    });
    labels.flatten().collect()
}

#[test]
fn a_node_is_labelled_with_what_its_agent_says_and_every_uplink() {
    let mut controller = Controller::new();
    assert_eq!(labelled(&controller.look(0)), [""; 0], "without an agent's word a node offers nothing");
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(true, &["eth1"])))));
    controller.hear(Event::Nodes(Seen::Applied(("node2".to_owned(), says(false, &["eth9"])))));
    controller.apply(uplink("fabric", "eth1"));
    let expected = [
        "node1 link.knit.opdev.io/vlan=true",
        "node1 uplink.knit.opdev.io/fabric=true",
        "node2 link.knit.opdev.io/vlan=false",
        "node2 uplink.knit.opdev.io/fabric=false",
    ];
    assert_eq!(labelled(&controller.look(0)), expected);
    assert_eq!(labelled(&controller.look(0)), [""; 0], "once");
    // The API server tells of what was written, and then someone takes a label away.
    let labels = |vlan: &[(&str, &str)]| {
        vlan.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Labels>()
    };
    let all = [("link.knit.opdev.io/vlan", "true"), ("uplink.knit.opdev.io/fabric", "true")];
    controller.hear(Event::Alive(Seen::Applied(("node1".to_owned(), labels(&all)))));
    assert_eq!(labelled(&controller.look(0)), [""; 0]);
    controller.hear(Event::Alive(Seen::Applied(("node1".to_owned(), labels(&all[1..])))));
    assert_eq!(labelled(&controller.look(0)), ["node1 link.knit.opdev.io/vlan=true"]);
}

#[test]
fn labels_follow_nics_uplinks_and_agents() {
    let mut controller = Controller::new();
    controller.apply(uplink("fabric", "eth1"));
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(true, &["eth1"])))));
    assert_eq!(labelled(&controller.look(0)).len(), 2);
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(true, &[])))));
    assert_eq!(labelled(&controller.look(0)), ["node1 uplink.knit.opdev.io/fabric=false"], "its NIC is gone");
    let fabric = Object::from_manifest(&uplink("fabric", "eth1")).unwrap();
    controller.hear(Event::Objects("Uplink", Box::new(Seen::Deleted(fabric))));
    assert_eq!(labelled(&controller.look(0)), ["node1 uplink.knit.opdev.io/fabric-"], "nobody opens it");
    let gone = ("node1".to_owned(), NodeNetworkStatus::default());
    controller.hear(Event::Nodes(Seen::Deleted(gone)));
    assert_eq!(labelled(&controller.look(0)), ["node1 link.knit.opdev.io/vlan-"], "no agent speaks for it");
}

#[test]
fn labels_that_could_not_be_written_are_tried_again() {
    let mut controller = Controller::new();
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(true, &[])))));
    let first = labelled(&controller.look(0));
    assert_eq!(first, ["node1 link.knit.opdev.io/vlan=true"]);
    controller.hear(Event::Unlabelled("node1".to_owned()));
    assert!(controller.state.is_waiting());
    assert_eq!(labelled(&controller.look(0)), first);
}

#[test]
fn an_uplink_with_a_name_that_no_label_can_have_is_left_out() {
    let mut controller = Controller::new();
    controller.apply(uplink(&"u".repeat(64), "eth1"));
    controller.hear(Event::Nodes(Seen::Applied(("node1".to_owned(), says(true, &["eth1"])))));
    assert_eq!(labelled(&controller.look(0)), ["node1 link.knit.opdev.io/vlan=true"]);
}
