//! Network policies: which rules and elements they are, when they change, and what a restart keeps.

mod isolation;
mod random;
mod report;

use knit_engine::Settings;
use knit_engine::policies::PolicyEvent;
use knit_engine::policies::drop_logs::DropLogEvent;
use knit_model::filter::rule::Expression;
use knit_policy::{
    DropLogTarget, Labels, PodKey, PolicyId, PolicyKind, PolicyNamespace, PolicyPod, network_policy,
};
use serde_json::{Value, json};

use super::*;
use crate::support::settings;

/// The cluster network with policies, and with or without masquerading, which needs a table of its own accord.
fn network_with_policies(masquerade: bool) -> StoredObject {
    let mut object = network(true);
    let IntentSpec::NodeRoutes(node_routes) = &mut object.intents.last_mut().unwrap().spec else {
        panic!("{object:?}")
    };
    (node_routes.network_policy, node_routes.masquerade) = (true, masquerade);
    object
}

fn policy(name: &str, spec: &Value) -> knit_policy::Policy {
    let id = PolicyId::namespaced("shop", name);
    network_policy::translate(id, spec).0
}

fn applied(name: &str, spec: &Value) -> Event {
    Event::Policies(PolicyEvent::PolicyApplied(Box::new(policy(name, spec))))
}

fn deleted(name: &str) -> Event {
    let id = PolicyId::namespaced("shop", name);
    Event::Policies(PolicyEvent::PolicyDeleted(id))
}

fn pod(name: &str, app: &str, addresses: &[&str]) -> (PodKey, PolicyPod) {
    let key = PodKey { namespace: "shop".to_owned(), name: name.to_owned() };
    let pod = PolicyPod {
        uid: format!("uid-{name}"),
        labels: Labels::from([("app".to_owned(), app.to_owned())]),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ..PolicyPod::default()
    };
    (key, pod)
}

fn changed((key, pod): (PodKey, PolicyPod)) -> Event {
    Event::Policies(PolicyEvent::PodChanged { key, pod: Some(pod) })
}

/// Allows connections from pods with the label `app: web`.
fn from_web() -> Value {
    let web = json!({"podSelector": {"matchLabels": {"app": "web"}}});
    json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [web]}]})
}

impl Node {
    fn with_policies() -> Self {
        Self::with_policies_and(false)
    }

    fn with_policies_and(masquerade: bool) -> Self {
        let mut node = Self::empty();
        node.handle(Event::ObjectApplied(network_with_policies(masquerade)));
        node
    }

    /// Everything that policies follow from is listed.
    fn list(&mut self, policies: &[(&str, Value)]) {
        let policies = policies.iter().map(|(name, spec)| policy(name, spec)).collect();
        let namespaces = [("shop".to_owned(), PolicyNamespace::default())].into();
        let pods = vec![
            pod("a", "db", &["10.75.0.2"]),
            pod("b", "web", &["10.75.0.3"]),
            pod("far", "web", &["10.80.0.7", "fd80::7"]),
        ];
        for event in [
            PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, policies),
            PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, Vec::new()),
            PolicyEvent::AppPodsListed(false),
            PolicyEvent::NamespacesListed(namespaces),
            PolicyEvent::PodsListed(pods),
        ] {
            self.handle(Event::Policies(event));
        }
    }

    fn attach_pod(&mut self, id: &str) {
        let options = InterfaceRequest { default_route: true, ..InterfaceRequest::default() };
        self.handle(Event::AttachRequested(Box::new(AttachRequest {
            call: CallId(id.to_owned()),
            dialect: Dialect::Kni,
            sandbox: SandboxRequest {
                id: id.to_owned(),
                netns: format!("/{id}"),
                namespace: "shop".to_owned(),
                pod: id.to_owned(),
                uid: format!("uid-{id}"),
                ..SandboxRequest::default()
            },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: 7,
            started_at: 0,
        })));
        assert_eq!(self.attach_results(), [(id.to_owned(), true)]);
    }

    /// The names of the chains of policies in the kernel, without the base chain and the closed one.
    fn policy_chains(&self) -> Vec<String> {
        let filter = self.kernel.filter(&Scope::Host);
        let tables = filter.tables.values().flat_map(|table| table.chains.keys());
        let own = |name: &&String| name.starts_with("policy_") && *name != "policy_closed";
        tables.filter(own).cloned().collect()
    }

    /// The addresses in all sets of peers.
    fn peers(&self) -> Vec<String> {
        let filter = self.kernel.filter(&Scope::Host);
        let all = filter.elements.keys().filter(|key| key.set.starts_with("policy_peers_"));
        all.map(key_text).collect()
    }

    /// The pods with policies about connections to them, with their chains.
    fn restricted(&self) -> Vec<String> {
        self.elements("policy_ingress4")
    }
}

#[test]
fn policies_are_in_place_before_a_pod_has_an_interface() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    assert_eq!(node.policy_chains(), [""; 0], "no pod here needs it");
    node.take_plans();
    node.attach_pod("a");
    let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
    assert!(chain.starts_with("policy_ingress_shop_"), "{chain}");
    assert_eq!(node.restricted(), [format!("10.75.0.2 : jump {chain}")]);
    assert_eq!(node.peers(), ["10.75.0.3", "10.80.0.7", "fd80::7"]);
    let plans = node.take_plans();
    let (_, plan) = plans.iter().find(|(unit, _)| *unit == sandbox("a")).unwrap();
    let elements = positions(plan, |step| matches!(step, Step::Filter(_)));
    let links = positions(plan, |step| !matches!(step, Step::Filter(_)));
    assert!(elements.iter().max() < links.iter().min(), "{plan}");
    // Pods without policies have no elements, and stay on the fast path.
    node.attach_pod("b");
    assert_eq!(node.restricted().len(), 1);
    assert_eq!(node.fast_path_addresses(), ["10.75.0.3".to_owned()].into());
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn a_changed_policy_changes_rules_and_a_changed_pod_elements() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    let chain = node.policy_chains();
    node.take_plans();
    // A peer on another node.
    node.handle(changed(pod("far2", "web", &["10.80.0.8"])));
    let plans = node.take_plans();
    assert_eq!(plans.len(), 1, "{plans:?}");
    assert_eq!(plans[0].1.steps.len(), 1, "{}", plans[0].1);
    assert!(node.peers().contains(&"10.80.0.8".to_owned()));
    // One that no rule refers to.
    node.handle(changed(pod("far3", "other", &["10.80.0.9"])));
    assert_eq!(node.take_plans(), []);
    // Another rule in the same policy: the pod's elements stay.
    node.handle(applied("db", &json!({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]})));
    let plans = node.take_plans();
    assert!(plans.iter().all(|(unit, _)| *unit == Unit::Policies), "{plans:?}");
    assert_eq!((node.policy_chains(), node.peers()), (chain, vec![]));
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn pods_move_to_other_chains_and_unused_ones_are_removed() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    node.attach_pod("b");
    let first = node.policy_chains();
    assert_eq!(node.fast_path_addresses(), ["10.75.0.3".to_owned()].into());
    node.handle(applied("all", &json!({"podSelector": {}})));
    let both = node.policy_chains();
    assert_eq!((both.len(), node.restricted().len()), (2, 2));
    assert!(!both.contains(&first[0]), "{first:?} is not used any more");
    assert_eq!(node.fast_path_addresses(), BTreeSet::new());
    // A label moves the pod, too.
    node.handle(changed(pod("b", "db", &["10.75.0.3"])));
    assert_eq!((node.policy_chains().len(), node.restricted().len()), (1, 2));
    node.handle(deleted("all"));
    node.handle(changed(pod("b", "web", &["10.75.0.3"])));
    assert_eq!(node.policy_chains(), first);
    node.handle(deleted("db"));
    assert_eq!((node.policy_chains(), node.restricted()), (vec![], vec![]));
    assert_eq!(node.fast_path_addresses().len(), 2);
    let inet = TableFamily::Inet.table();
    assert!(!node.kernel.filter(&Scope::Host).tables.contains_key(&inet), "nothing is left");
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn rules_are_not_recorded_but_failures_and_a_failed_change_compares_everything() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    let before = node.journal.len();
    node.held = Some(Unit::Policies);
    node.handle(changed(pod("far2", "web", &["10.80.0.8"])));
    node.take_plans();
    node.reject_held(false);
    let units: Vec<Unit> = node.take_plans().into_iter().map(|(unit, _)| unit).collect();
    assert_eq!(units, [Unit::PacketFilter]);
    assert!(node.peers().contains(&"10.80.0.8".to_owned()), "{:?}", node.peers());
    node.handle(changed(pod("far3", "web", &["10.80.0.9"])));
    let of_policies = |record: &Record| match record {
        Record::ChangeStarted(started) if started.unit == Unit::Policies => panic!("{started:?}"),
        Record::ChangeEnded(ended) if ended.unit == Unit::Policies => {
            assert_eq!(ended.unit_state, None);
            Some(ended.problems.iter().map(|(_, problem)| problem.message.clone()).collect::<Vec<_>>())
        }
        _ => None,
    };
    let recorded: Vec<Vec<String>> = node.journal[before..].iter().filter_map(of_policies).collect();
    assert_eq!(
        recorded,
        [vec!["no memory".to_owned()], vec![]],
        "it is solved by a comparison of everything"
    );
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    assert_eq!(node.replayed(), node.state.persistent());
}

/// The chain of a new pod is not in the kernel yet: it gets no interface before.
#[test]
fn a_pod_waits_for_its_chain_and_a_used_chain_stays() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    let first = node.policy_chains();
    node.held = Some(Unit::Policies);
    node.handle(applied("all", &json!({"podSelector": {}})));
    assert_eq!((node.policy_chains(), node.restricted().len()), (first.clone(), 1), "the old chain applies");
    node.release();
    assert_eq!(node.restricted().len(), 1);
    let second = node.policy_chains();
    assert!(second != first && second.len() == 1, "{second:?}");
    // The pod's change is held back: the chain that it leaves stays, with its sets.
    node.held = Some(sandbox("a"));
    node.handle(deleted("all"));
    let both = node.policy_chains();
    assert!(both.contains(&first[0]) && both.contains(&second[0]), "{both:?}");
    assert_eq!(node.restricted(), [format!("10.75.0.2 : jump {}", second[0])]);
    node.release();
    assert_eq!(node.policy_chains(), first);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn a_restart_keeps_policies_until_everything_is_known() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    node.attach_pod("b");
    let before = node.kernel.filter(&Scope::Host).clone();
    node.take_plans();
    node.restart();
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    // A new pod starts closed, in both directions.
    node.attach_pod("c");
    assert_eq!(node.restricted().len(), 2);
    assert!(
        node.restricted().contains(&"10.75.0.4 : jump policy_closed".to_owned()),
        "{:?}",
        node.restricted()
    );
    assert_eq!(node.elements("policy_egress4"), ["10.75.0.4 : jump policy_closed"]);
    node.take_plans();
    node.list(&[("db", from_web())]);
    // It is not known to the API server yet.
    assert_eq!(node.restricted().len(), 2);
    assert_eq!(node.elements("policy_egress4"), [""; 0], "no policy is about connections from pods");
    node.handle(changed(pod("c", "other", &["10.75.0.4"])));
    node.detach("c");
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

/// The last policy is deleted and another is created at once: pods are no longer watched, and then again.
#[test]
fn a_policy_applies_if_pods_are_listed_again_before_it_is_in_the_kernel() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    node.attach_pod("b");
    let list = || {
        Event::Policies(PolicyEvent::PodsListed(vec![
            pod("a", "db", &["10.75.0.2"]),
            pod("b", "web", &["10.75.0.3"]),
        ]))
    };
    let of_web = json!({"podSelector": {"matchLabels": {"app": "web"}}});
    for (before, name, spec, address) in
        [("db", "web", of_web, "10.75.0.3"), ("web", "db", from_web(), "10.75.0.2")]
    {
        node.handle(deleted(before));
        // The tables are written while pods are not known.
        node.held = Some(Unit::PacketFilter);
        node.handle(applied(name, &spec));
        node.handle(Event::Policies(PolicyEvent::PodsForgotten));
        node.release();
        node.handle(list());
        let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
        assert_eq!(node.restricted(), [format!("{address} : jump {chain}")], "{name}");
    }
    // The same without a policy in between, so that elements have to be removed.
    node.held = Some(Unit::PacketFilter);
    node.handle(applied("none", &json!({"podSelector": {"matchLabels": {"app": "other"}}})));
    node.handle(deleted("db"));
    node.handle(Event::Policies(PolicyEvent::PodsForgotten));
    node.held = None;
    node.handle(list());
    assert_eq!((node.policy_chains(), node.restricted()), (vec![], vec![]));
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn an_isolated_namespace_restricts_connections_of_all_pods_of_the_node() {
    let mut node = Node::with_policies();
    node.list(&[]);
    node.attach_pod("a");
    assert_eq!(node.elements("policy_local4"), [""; 0]);
    let isolate = |isolated: bool| {
        let namespace = Some(PolicyNamespace { isolated, ..PolicyNamespace::default() });
        Event::Policies(PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace })
    };
    node.handle(isolate(true));
    let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
    // The pod of this node owns its elements; those of other nodes are shared.
    assert_eq!(node.elements("policy_local4"), ["10.75.0.2"]);
    assert_eq!(node.elements("policy_isolated4"), [format!("10.75.0.2 : jump {chain}")]);
    let remote = |node: &Node| node.elements("policy_remote_isolated4");
    let all = ["10.75.0.3", "10.80.0.7"].map(|address| format!("{address} : jump {chain}"));
    assert_eq!(remote(&node), all);
    // A pod of another node comes and goes.
    node.handle(changed(pod("new", "web", &["10.80.0.8"])));
    assert!(remote(&node).contains(&format!("10.80.0.8 : jump {chain}")), "{:?}", remote(&node));
    let key = pod("new", "web", &[]).0;
    node.handle(Event::Policies(PolicyEvent::PodChanged { key, pod: None }));
    assert_eq!(remote(&node), all);
    node.handle(isolate(false));
    assert!(node.policy_chains().is_empty(), "{:?}", node.policy_chains());
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn a_node_that_cannot_filter_bridged_packets_is_reported() {
    let mut node = Node::with_policies();
    let warnings = |node: &Node| node.state.report(&cluster::key()).unwrap().warnings;
    assert_eq!(warnings(&node), [""; 0]);
    let settings = Settings { lacks_bridge_filter: true, ..settings() };
    node.handle(Event::SettingsChanged(settings));
    assert!(warnings(&node)[0].contains("br_netfilter"), "{:?}", warnings(&node));
}

#[test]
fn policies_that_another_program_removed_are_restored_or_closed() {
    let mut node = Node::with_policies();
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    let before = node.kernel.filter(&Scope::Host).clone();
    node.kernel.flush_ruleset(&Scope::Host);
    node.handle(Event::PacketFilterChanged);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    // After a restart the rules are not known: the pod is closed.
    node.restart();
    node.kernel.flush_ruleset(&Scope::Host);
    node.handle(Event::PacketFilterChanged);
    let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
    assert_eq!(node.restricted(), [format!("10.75.0.2 : jump {chain}")]);
    let filter = node.kernel.filter(&Scope::Host);
    let rules = &filter.tables[&TableFamily::Inet.table()].chains[chain].rules;
    assert_eq!(rules.len(), 1, "{rules:?}");
    node.list(&[("db", from_web())]);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}

#[test]
fn logs_of_dropped_packets_are_rules_as_long_as_they_are_requested() {
    let mut node = Node::with_policies();
    let event = |event: DropLogEvent| Event::Policies(PolicyEvent::DropLogs(event));
    let db = PolicyId::namespaced("shop", "db");
    node.handle(event(DropLogEvent::PoliciesListed(PolicyKind::NetworkPolicy, [db.clone()].into())));
    node.list(&[("db", from_web())]);
    node.attach_pod("a");
    let logs = |node: &Node| {
        let [chain] = &node.policy_chains()[..] else { panic!("{:?}", node.policy_chains()) };
        let rules = &node.kernel.filter(&Scope::Host).tables[&TableFamily::Inet.table()].chains[chain].rules;
        let is_log = |expression: &Expression| matches!(expression, Expression::Log { .. });
        rules.iter().filter(|rule| rule.expressions.iter().any(is_log)).count()
    };
    assert_eq!(logs(&node), 1);
    let target = |enabled: bool| DropLogEvent::Changed { target: DropLogTarget::Policy(db.clone()), enabled };
    node.handle(event(target(false)));
    assert_eq!(logs(&node), 0);
    node.take_plans();
    node.handle(event(target(false)));
    assert_eq!(node.take_plans().len(), 0);
    node.handle(event(DropLogEvent::NamespacesListed(["shop".to_owned()].into())));
    assert_eq!(logs(&node), 1);
    // A list replaces what was requested before.
    node.handle(event(DropLogEvent::NamespacesListed([].into())));
    assert_eq!(logs(&node), 0);
    assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
}
