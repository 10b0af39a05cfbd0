//! Random clusters and policies: the compiled rules, the decision, and a naive reading of the NetworkPolicies agree on every
//! connection, also after changes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_policy::{Flow, LabelSelector, Labels, LocalPod, PolicyIndex, Verdict};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::packets::Tables;
use crate::support::{TestPod, apply, tables, tcp};

const NAMESPACES: [&str; 3] = ["blue", "green", "red"];
const OUTSIDE: [&str; 3] = ["10.75.0.200", "192.0.2.9", "2001:db8::9"];

fn selector() -> impl Strategy<Value = Value> {
    let value = || prop::sample::select(vec!["a", "b"]);
    prop_oneof![
        2 => Just(json!({})),
        3 => value().prop_map(|value| json!({"matchLabels": {"app": value}})),
        1 => (value(), prop::sample::select(vec!["In", "NotIn"])).prop_map(|(value, operator)| {
            json!({"matchExpressions": [{"key": "app", "operator": operator, "values": [value]}]})
        }),
        1 => prop::sample::select(vec!["Exists", "DoesNotExist"])
            .prop_map(|operator| json!({"matchExpressions": [{"key": "app", "operator": operator}]})),
    ]
}

fn peer() -> impl Strategy<Value = Value> {
    let range = prop::sample::select(vec![
        json!({"cidr": "10.75.0.0/24", "except": ["10.75.0.2/31", "10.75.0.200/32"]}),
        json!({"cidr": "10.75.0.3/32"}),
        json!({"cidr": "0.0.0.0/0"}),
        json!({"cidr": "192.0.2.0/24"}),
        json!({"cidr": "fd75::/126", "except": ["fd75::2/128"]}),
        json!({"cidr": "2001:db8::/32"}),
    ]);
    prop_oneof![
        selector().prop_map(|pods| json!({"podSelector": pods})),
        selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (selector(), selector())
            .prop_map(|(namespaces, pods)| json!({"namespaceSelector": namespaces, "podSelector": pods})),
        range.prop_map(|range| json!({"ipBlock": range})),
    ]
}

fn port() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({"port": 80}),
        json!({"port": 80, "endPort": 90}),
        json!({"port": 85, "endPort": 100}),
        json!({"port": "web"}),
        json!({"protocol": "UDP"}),
        json!({"protocol": "UDP", "port": 80}),
        json!({"protocol": "TCP", "port": 8080}),
    ])
}

fn rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let rule = (prop::collection::vec(peer(), 0..3), prop::collection::vec(port(), 0..3));
    let rule = rule.prop_map(move |(all, ports)| json!({peers: all, "ports": ports}));
    prop::collection::vec(rule, 0..3).prop_map(Value::from)
}

fn spec() -> impl Strategy<Value = Value> {
    let types = prop::sample::select(vec![
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
        json!([]),
    ]);
    (selector(), types, rules("from"), rules("to")).prop_map(|(pods, types, ingress, egress)| {
        json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
    })
}

fn pods() -> impl Strategy<Value = Vec<TestPod>> {
    let app = prop::option::of(prop::sample::select(vec!["a", "b"]));
    let web = prop::option::of(prop::sample::select(vec![80u16, 8080]));
    let pod = (prop::sample::select(NAMESPACES.to_vec()), app, web);
    prop::collection::vec(pod, 2..6).prop_map(|pods| {
        let pod = |(at, (namespace, app, web)): (usize, (&str, Option<&str>, Option<u16>))| TestPod {
            namespace: namespace.to_owned(),
            name: format!("pod{at}"),
            labels: app.into_iter().map(|app| ("app".to_owned(), app.to_owned())).collect(),
            number: at as u8 + 1,
            web,
        };
        pods.into_iter().enumerate().map(pod).collect()
    })
}

/// Namespace `blue` has the label `app: a`, `green` has `app: b`, `red` has none.
fn namespaces() -> BTreeMap<String, Labels> {
    let labels = |value: &str| Labels::from([("app".to_owned(), value.to_owned())]);
    [("blue", labels("a")), ("green", labels("b")), ("red", Labels::new())]
        .map(|(name, labels)| (name.to_owned(), labels))
        .into()
}

fn flows(pods: &[TestPod]) -> Vec<Flow> {
    let outside = OUTSIDE.iter().map(|text| text.parse::<IpAddr>().unwrap());
    let ends: Vec<IpAddr> = pods.iter().flat_map(|pod| [pod.v4(), pod.v6()]).chain(outside).collect();
    let mut flows = Vec::new();
    for source in &ends {
        for destination in ends.iter().filter(|one| one.is_ipv4() == source.is_ipv4()) {
            for port in [79, 80, 88, 100, 8080] {
                flows.push(tcp(*source, *destination, port));
            }
            flows.push(Flow { protocol: 17, ..tcp(*source, *destination, 80) });
            flows.push(Flow { protocol: 1, ..tcp(*source, *destination, 0) });
        }
    }
    flows
}

/// Reads the NetworkPolicies as their documentation does, without the form that Knit translates them to.
struct Naive<'a> {
    pods: &'a [TestPod],
    policies: &'a [(String, Value)],
}

impl Naive<'_> {
    fn is_allowed(&self, flow: &Flow) -> bool {
        flow.source == flow.destination || self.allows(flow, "Egress") && self.allows(flow, "Ingress")
    }

    fn at(&self, address: IpAddr) -> Option<&TestPod> {
        self.pods.iter().find(|pod| pod.v4() == address || pod.v6() == address)
    }

    fn allows(&self, flow: &Flow, direction: &str) -> bool {
        let is_ingress = direction == "Ingress";
        let (subject, peer) =
            if is_ingress { (flow.destination, flow.source) } else { (flow.source, flow.destination) };
        let Some(subject) = self.at(subject) else { return true };
        let applies = |(namespace, spec): &&(String, Value)| {
            let types = spec["policyTypes"].as_array().unwrap();
            // In these tests, every policy has a list of egress rules.
            *namespace == subject.namespace
                && selects(&spec["podSelector"], &subject.labels)
                && (types.is_empty() || types.contains(&json!(direction)))
        };
        let mut applicable = self.policies.iter().filter(applies).peekable();
        if applicable.peek().is_none() {
            return true;
        }
        let (rules, peers) = if is_ingress { ("ingress", "from") } else { ("egress", "to") };
        applicable.any(|(namespace, spec)| {
            spec[rules].as_array().unwrap().iter().any(|rule| {
                let (peers, ports) = (rule[peers].as_array().unwrap(), rule["ports"].as_array().unwrap());
                (peers.is_empty() || peers.iter().any(|one| self.is_peer(one, namespace, peer)))
                    && (ports.is_empty() || ports.iter().any(|one| self.is_port(one, flow)))
            })
        })
    }

    fn is_peer(&self, peer: &Value, namespace: &str, address: IpAddr) -> bool {
        if let Some(block) = peer.get("ipBlock") {
            let within = |text: &Value| text.as_str().unwrap().parse::<IpNet>().unwrap().contains(&address);
            let except = block.get("except").and_then(Value::as_array).cloned().unwrap_or_default();
            return within(&block["cidr"]) && !except.iter().any(within);
        }
        let Some(pod) = self.at(address) else { return false };
        let in_namespace = match peer.get("namespaceSelector") {
            None => pod.namespace == namespace,
            Some(selector) => {
                let labels: Vec<(String, String)> =
                    namespaces()[&pod.namespace].clone().into_iter().collect();
                selects(selector, &labels)
            }
        };
        in_namespace && peer.get("podSelector").is_none_or(|selector| selects(selector, &pod.labels))
    }

    fn is_port(&self, port: &Value, flow: &Flow) -> bool {
        let number = match port.get("protocol").and_then(Value::as_str).unwrap_or("TCP") {
            "TCP" => 6,
            _ => 17,
        };
        if flow.protocol != number {
            return false;
        }
        match &port["port"] {
            Value::Null => true,
            Value::String(_) => {
                number == 6 && self.at(flow.destination).is_some_and(|pod| pod.web == Some(flow.port))
            }
            first => {
                let last = port.get("endPort").unwrap_or(first).as_u64().unwrap();
                (first.as_u64().unwrap()..=last).contains(&u64::from(flow.port))
            }
        }
    }
}

fn selects(selector: &Value, labels: &[(String, String)]) -> bool {
    let app = labels.iter().find(|(key, _)| key == "app").map(|(_, value)| json!(value));
    let is_labelled = selector["matchLabels"].get("app").is_none_or(|value| app.as_ref() == Some(value));
    let expressions = selector["matchExpressions"].as_array().cloned().unwrap_or_default();
    is_labelled
        && expressions.iter().all(|one| {
            let is_listed =
                app.as_ref().is_some_and(|app| one["values"].as_array().is_some_and(|all| all.contains(app)));
            match one["operator"].as_str().unwrap() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => app.is_some(),
                _ => app.is_none(),
            }
        })
}

fn compare(index: &mut PolicyIndex, pods: &[TestPod], policies: &[(String, Value)]) -> Tables {
    let tables = tables(index, pods);
    let naive = Naive { pods, policies };
    for flow in flows(pods) {
        let decision = index.evaluate(&flow);
        assert_eq!(decision.is_allowed(), naive.is_allowed(&flow), "{flow:?}: {decision:?}");
        assert_eq!(tables.accept(&flow), decision.is_allowed(), "{flow:?}: {decision:?}");
    }
    tables
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn rules_decision_and_documentation_agree(
        mut pods in pods(),
        specs in prop::collection::vec((prop::sample::select(NAMESPACES.to_vec()), spec()), 1..5),
        moved in any::<prop::sample::Index>(),
    ) {
        let mut index = PolicyIndex::default();
        index.set_namespaces(namespaces());
        index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
        let mut policies: Vec<(String, Value)> = Vec::new();
        for (at, (namespace, spec)) in specs.iter().enumerate() {
            apply(&mut index, namespace, &format!("p{at}"), spec);
            policies.push(((*namespace).to_owned(), spec.clone()));
        }
        compare(&mut index, &pods, &policies);
        // A pod changes its labels and ports.
        let changed = moved.index(pods.len());
        pods[changed].labels = vec![("app".to_owned(), "b".to_owned())];
        pods[changed].web = Some(100);
        index.set_pod(&pods[changed].key(), Some(pods[changed].pod()));
        compare(&mut index, &pods, &policies);
        // A pod ends, and its address is used by nobody.
        let ended = pods.remove(moved.index(pods.len()));
        index.set_pod(&ended.key(), None);
        compare(&mut index, &pods, &policies);
        // Without policies everything is allowed.
        index.set_policies(Vec::new());
        compare(&mut index, &pods, &[]);
    }
}

fn three_pods() -> Vec<TestPod> {
    let pod = |number: u8, namespace: &str, name: &str, app: &str| TestPod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: vec![("app".to_owned(), app.to_owned())],
        number,
        web: None,
    };
    vec![pod(1, "blue", "web", "a"), pod(2, "blue", "db", "b"), pod(3, "green", "other", "a")]
}

#[test]
fn a_decision_names_the_policy_and_the_rule() {
    let pods = three_pods();
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces());
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    let from_web = json!({"podSelector": {"matchLabels": {"app": "a"}}});
    let spec = json!({
        "podSelector": {"matchLabels": {"app": "b"}},
        "ingress": [{"ports": [{"port": 1}]}, {"from": [from_web], "ports": [{"port": 5432}]}],
    });
    apply(&mut index, "blue", "db", &spec);
    apply(&mut index, "blue", "other-db", &json!({"podSelector": {"matchLabels": {"app": "b"}}}));
    let ingress = |from: usize, port: u16| {
        let decision = index.evaluate(&tcp(pods[from].v4(), pods[1].v4(), port));
        assert_eq!(decision.egress, Verdict::Unrestricted);
        serde_json::to_value(decision.ingress).unwrap()
    };
    let id = |name: &str| json!({"namespace": "blue", "name": name});
    assert_eq!(ingress(0, 5432), json!({"allowed": {"policy": id("db"), "rule": 1}}));
    assert_eq!(ingress(2, 5432), json!({"denied": {"policies": [id("db"), id("other-db")]}}));
    assert_eq!(ingress(1, 5432), json!("itself"));
}

#[test]
fn a_pod_that_is_not_known_yet_starts_closed_where_there_are_policies() {
    let pods = three_pods();
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces());
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    apply(&mut index, "blue", "closed", &json!({"podSelector": {"matchLabels": {"app": "nobody"}}}));
    let new: IpAddr = [10, 75, 0, 9].into();
    let accepts = |index: &mut PolicyIndex, namespace: &str, name: &str, uid: &str| {
        let local = [(LocalPod { namespace, name, uid }, vec![new])];
        let tables = Tables::of(index, &local);
        let both = [tcp(pods[2].v4(), new, 80), tcp(new, pods[2].v4(), 80)];
        both.map(|flow| tables.accept(&flow))
    };
    // Only in the direction that policies of its namespace are about.
    assert_eq!(accepts(&mut index, "blue", "new", "uid-new"), [false, true]);
    assert_eq!(accepts(&mut index, "green", "new", "uid-new"), [true, true]);
    // Labels of the pod that had the name before do not count.
    assert_eq!(accepts(&mut index, "blue", "web", "uid-other"), [false, true]);
    assert_eq!(accepts(&mut index, "blue", "web", "uid-web"), [true, true]);
}

#[test]
fn pods_with_the_same_policies_share_a_chain() {
    let all = |count: u8| {
        let pods: Vec<TestPod> = (1..=count)
            .map(|number| TestPod {
                namespace: "blue".to_owned(),
                name: format!("pod{number}"),
                labels: Vec::new(),
                number,
                web: Some(80),
            })
            .collect();
        let mut index = PolicyIndex::default();
        index.set_namespaces(namespaces());
        index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
        let web = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": "web"}]}]});
        apply(&mut index, "blue", "web", &web);
        tables(&mut index, &pods).chains()
    };
    assert_eq!(all(1), all(100));
}

#[test]
fn an_unknown_selector_of_namespaces_selects_nothing() {
    // A namespace that is not known, such as one that was deleted, matches no selector.
    let mut index = PolicyIndex::default();
    let pods = three_pods();
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    let from = json!([{"namespaceSelector": {}}]);
    apply(&mut index, "blue", "p", &json!({"podSelector": {}, "ingress": [{"from": from}]}));
    let denied = tcp(pods[2].v4(), pods[0].v4(), 80);
    assert!(!tables(&mut index, &pods).accept(&denied));
    index.set_namespace("green", Some(Labels::new()));
    assert!(tables(&mut index, &pods).accept(&denied));
    assert!(LabelSelector::default().matches(&Labels::new()));
}
