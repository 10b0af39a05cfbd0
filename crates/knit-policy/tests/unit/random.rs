//! Random clusters and policies: the compiled rules, the decision, and a naive reading of the objects agree on every
//! connection, also after changes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use knit_model::filter::rule::FilterRule;
use knit_model::filter::{ElementData, ElementKey, FilterSet};
use knit_policy::{
    APP_LABEL, DropLogTarget, Flow, LabelSelector, Labels, LocalPod, PodChains, PodKey, PolicyChanges,
    PolicyId, PolicyIndex, PolicyKind, PolicyNamespace, PolicyPod, Verdict, is_peer_set,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::naive::Naive;
use crate::objects::{NAMESPACES, cluster_spec, flows, namespaces, pods, spec};
use crate::packets::Tables;
use crate::report::assert_traced;
use crate::support::{TestPod, apply, apply_cluster, tables, tables_with_logs, tcp};

/// What a cluster has.
struct Cluster {
    index: PolicyIndex,
    pods: Vec<TestPod>,
    isolated: Vec<&'static str>,
    policies: Vec<(String, Value)>,
    cluster_policies: Vec<Value>,
    replica: Replica,
}

impl Cluster {
    /// Compares the rules of a node that has every other pod, and of one that has all, with the naive reading.
    fn compare(&mut self) {
        self.replica.compare(&mut self.index);
        let Self { index, pods, isolated, policies, cluster_policies, .. } = self;
        let naive = Naive { pods, isolated, policies, cluster_policies };
        for every in [1, 2] {
            let local: Vec<&TestPod> = pods.iter().step_by(every).collect();
            let names: Vec<&str> = local.iter().map(|pod| pod.name.as_str()).collect();
            // Logs do not change what is accepted.
            let logged = NAMESPACES.iter().map(|name| DropLogTarget::Namespace((*name).to_owned()));
            let tables = tables_with_logs(index, local, &logged.filter(|_| every == 2).collect());
            for flow in flows(pods) {
                let decision = index.evaluate(&flow);
                let expected = naive.is_allowed(&flow, &names);
                assert_eq!(tables.accept(&flow), expected, "{flow:?} on the node of {names:?}: {decision:?}");
                if every == 1 {
                    assert_eq!(decision.is_allowed(), expected, "{flow:?}: {decision:?}");
                    assert_traced(index, &flow, &decision);
                }
            }
        }
    }
}

/// What a node has in its kernel that applies changes, and nothing else.
#[derive(Default)]
struct Replica {
    chains: BTreeMap<String, Vec<FilterRule>>,
    sets: BTreeMap<String, FilterSet>,
    elements: BTreeMap<ElementKey, ElementData>,
    pods: BTreeMap<PodKey, Vec<PodChains>>,
    is_complete: bool,
}

impl Replica {
    /// Applies what changed, and compares the result with what a new index compiles.
    fn compare(&mut self, index: &mut PolicyIndex) {
        let changes = index.take_changes();
        if changes.everything || !self.is_complete {
            *self = Self::complete(index);
        } else {
            self.apply(index, &changes);
        }
        let again = |index: &PolicyIndex| -> PolicyIndex {
            serde_json::from_value(serde_json::to_value(index).unwrap()).unwrap()
        };
        let fresh = again(index);
        assert_eq!(fresh, *index);
        let fresh = Self::complete(&fresh);
        assert_eq!(self.chains, fresh.chains);
        assert_eq!(self.sets, fresh.sets);
        assert_eq!(self.elements, fresh.elements);
        assert_eq!(self.pods, fresh.pods);
    }

    fn complete(index: &PolicyIndex) -> Self {
        let tables = index.tables();
        let constant = tables.sets.keys().filter(|name| !is_peer_set(name));
        let constants = constant.flat_map(|name| index.elements_of_set(name));
        let elements = constants.chain(index.peer_elements()).collect();
        let mut pods: BTreeMap<PodKey, Vec<PodChains>> = BTreeMap::new();
        for (key, chains) in index.all_local_chains() {
            pods.entry(key.clone()).or_default().push(chains.clone());
        }
        Self { chains: tables.chains, sets: tables.sets, elements, pods, is_complete: true }
    }

    fn apply(&mut self, index: &PolicyIndex, changes: &PolicyChanges) {
        for name in &changes.chains {
            match index.chain(name) {
                Some(rules) => drop(self.chains.insert(name.clone(), rules.to_vec())),
                None => drop(self.chains.remove(name)),
            }
        }
        for name in &changes.sets {
            self.elements.retain(|key, _| key.set != *name);
            match index.set(name) {
                Some(set) => drop(self.sets.insert(name.clone(), set)),
                None => drop(self.sets.remove(name)),
            }
            self.elements.extend(index.elements_of_set(name));
        }
        for key in &changes.elements {
            match index.element(key) {
                Some(data) => drop(self.elements.insert(key.clone(), data)),
                None => drop(self.elements.remove(key)),
            }
        }
        for key in &changes.pods {
            let all = index.all_local_chains().filter(|(one, _)| *one == key);
            let all: Vec<PodChains> = all.map(|(_, chains)| chains.clone()).collect();
            self.pods.insert(key.clone(), all);
        }
        let is_local = |key: &PodKey| index.all_local_chains().any(|(one, _)| one == key);
        self.pods.retain(|key, _| is_local(key));
        for (key, chains) in index.all_local_chains() {
            let of_pod = self.pods.entry(key.clone()).or_insert_with(|| vec![PodChains::default()]);
            assert!(of_pod.contains(chains), "{key:?} changed");
        }
    }
}

/// `PROPTEST_CASES` runs more. Cases differ in each run.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn rules_decision_and_documentation_agree(
        pods in pods(),
        specs in prop::collection::vec((prop::sample::select(NAMESPACES.to_vec()), spec()), 0..4),
        mut cluster_policies in prop::collection::vec(cluster_spec(), 0..4),
        isolated in prop::sample::subsequence(NAMESPACES.to_vec(), 0..=2),
        moved in any::<prop::sample::Index>(),
    ) {
        let mut index = PolicyIndex::default();
        index.set_namespaces(namespaces(&isolated));
        index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
        let mut policies: Vec<(String, Value)> = Vec::new();
        for (at, (namespace, spec)) in specs.iter().enumerate() {
            apply(&mut index, namespace, &format!("p{at}"), spec);
            policies.push(((*namespace).to_owned(), spec.clone()));
        }
        for (at, spec) in cluster_policies.iter_mut().enumerate() {
            spec["priority"] = json!(at);
            // The order of names is not that of priorities.
            apply_cluster(&mut index, &format!("c{}", 9 - at), spec);
        }
        let replica = Replica::default();
        let mut cluster = Cluster { index, pods, isolated, policies, cluster_policies, replica };
        cluster.compare();
        // One policy after the other is changed and deleted.
        for (at, (namespace, spec)) in specs.iter().enumerate() {
            let other = &specs[moved.index(specs.len())].1;
            apply(&mut cluster.index, namespace, &format!("p{at}"), other);
            cluster.replica.compare(&mut cluster.index);
            cluster.index.remove_policy(&PolicyId::namespaced(*namespace, format!("p{at}")));
            cluster.replica.compare(&mut cluster.index);
            apply(&mut cluster.index, namespace, &format!("p{at}"), spec);
        }
        for (at, spec) in cluster.cluster_policies.iter().enumerate() {
            let name = format!("c{}", 9 - at);
            cluster.index.remove_policy(&PolicyId::of_cluster(&name));
            cluster.replica.compare(&mut cluster.index);
            apply_cluster(&mut cluster.index, &name, spec);
        }
        cluster.compare();
        // A namespace appears, is isolated, and changes its labels.
        for name in NAMESPACES {
            let all = namespaces(&cluster.isolated);
            let isolated = PolicyNamespace { isolated: true, labels: Labels::new() };
            cluster.index.set_namespace(name, Some(isolated));
            cluster.replica.compare(&mut cluster.index);
            cluster.index.set_namespace(name, None);
            cluster.replica.compare(&mut cluster.index);
            cluster.index.set_namespace(name, all.get(name).cloned());
        }
        cluster.compare();
        // A pod of this node ends there and starts again with the address of another one.
        let first = &cluster.pods[0];
        let other = &cluster.pods[moved.index(cluster.pods.len())];
        cluster.index.set_pod(&first.key(), Some(PolicyPod { uid: "new".to_owned(), ..other.pod() }));
        cluster.replica.compare(&mut cluster.index);
        cluster.index.set_pod(&first.key(), Some(first.pod()));
        cluster.compare();
        // A pod changes its labels and ports.
        let changed = moved.index(cluster.pods.len());
        let pod = &mut cluster.pods[changed];
        pod.labels = vec![("app".to_owned(), "b".to_owned()), (APP_LABEL.to_owned(), "bank".to_owned())];
        pod.web = Some(100);
        cluster.index.set_pod(&pod.key(), Some(pod.pod()));
        cluster.compare();
        // A pod ends, and its address is unused.
        let ended = cluster.pods.remove(moved.index(cluster.pods.len()));
        cluster.index.set_pod(&ended.key(), None);
        cluster.compare();
        // Another namespace is isolated.
        cluster.isolated = vec!["red"];
        cluster.index.set_namespaces(namespaces(&["red"]));
        cluster.compare();
        // Without policies and isolation everything is allowed.
        cluster.index.set_policies(PolicyKind::NetworkPolicy, Vec::new());
        cluster.policies.clear();
        cluster.compare();
        cluster.index.set_policies(PolicyKind::ClusterNetworkPolicy, Vec::new());
        cluster.cluster_policies.clear();
        cluster.compare();
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
    index.set_namespaces(namespaces(&[]));
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
    let id = |name: &str| json!({"kind": "NetworkPolicy", "namespace": "blue", "name": name});
    assert_eq!(ingress(0, 5432), json!({"allowed": {"policy": id("db"), "rule": 1}}));
    assert_eq!(ingress(2, 5432), json!({"denied": {"policies": [id("db"), id("other-db")]}}));
    assert_eq!(ingress(1, 5432), json!("itself"));
}

#[test]
fn a_pod_that_is_not_known_yet_starts_closed_where_there_are_policies() {
    let pods = three_pods();
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces(&[]));
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    apply(&mut index, "blue", "closed", &json!({"podSelector": {"matchLabels": {"app": "absent"}}}));
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
        index.set_namespaces(namespaces(&[]));
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
    index.set_namespace("green", Some(PolicyNamespace::default()));
    assert!(tables(&mut index, &pods).accept(&denied));
    assert!(LabelSelector::default().matches(&Labels::new()));
}

#[test]
fn isolated_pods_are_reached_from_their_segment_and_through_services() {
    let mut pods = three_pods();
    let mut index = PolicyIndex::default();
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    index.set_namespaces(namespaces(&["blue"]));
    let reaches = |index: &PolicyIndex, from: &TestPod, to: &TestPod| {
        let flow = tcp(from.v4(), to.v4(), 80);
        [false, true].map(|through_service| index.evaluate(&Flow { through_service, ..flow }).is_allowed())
    };
    // Rules a to e of isolated namespaces.
    assert_eq!(reaches(&index, &pods[0], &pods[1]), [true, true], "a: pods of the namespace");
    assert_eq!(reaches(&index, &pods[2], &pods[0]), [false, true], "b and e: from other namespaces");
    assert_eq!(reaches(&index, &pods[0], &pods[2]), [true, true], "c and d: to other namespaces");
    // An app is a segment within its namespace, and ends where NetworkPolicies begin.
    pods[1].labels.push((APP_LABEL.to_owned(), "db".to_owned()));
    assert!(index.set_pod(&pods[1].key(), Some(pods[1].pod())).changed);
    index.set_namespaces(namespaces(&[]));
    assert_eq!(reaches(&index, &pods[0], &pods[1]), [false, true]);
    assert_eq!(reaches(&index, &pods[1], &pods[0]), [true, true]);
    apply(&mut index, "blue", "db", &json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": [{}]}));
    assert_eq!(reaches(&index, &pods[2], &pods[1]), [true, true]);
}

#[test]
fn a_pod_that_is_not_known_yet_starts_closed_where_anything_is_isolated() {
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces(&["red"]));
    let new: IpAddr = [10, 75, 0, 9].into();
    let local = [(LocalPod { namespace: "blue", name: "new", uid: "uid-new" }, vec![new])];
    let tables = Tables::of(&mut index, &local);
    let other: IpAddr = [10, 75, 0, 3].into();
    assert_eq!([tcp(other, new, 80), tcp(new, other, 80)].map(|flow| tables.accept(&flow)), [false, true]);
}
