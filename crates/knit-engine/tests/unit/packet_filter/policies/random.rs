//! Random changes of policies, namespaces and pods: what is compared change by change leaves nothing for a comparison of
//! everything.

use knit_policy::cluster_network_policy;
use proptest::prelude::*;

use super::*;

const PODS: [&str; 3] = ["a", "b", "c"];
const APPS: [&str; 3] = ["db", "web", "other"];

#[derive(Clone, Debug)]
enum Change {
    /// Changes a NetworkPolicy: the number of its name, whether it exists, the pods that it is about, and the peers.
    Policy(usize, bool, usize, usize),
    /// The same for a ClusterNetworkPolicy.
    ClusterPolicy(usize, bool, usize, usize),
    /// Changes the labels of a pod, which may be on another node or in an app.
    Pod(usize, usize, bool),
    /// A pod of another node comes or goes.
    Remote(u8, bool, usize),
    /// The namespace is isolated or not.
    Isolate(bool),
    /// A pod starts or ends on this node.
    Attach(usize),
    Detach(usize),
    /// Plans of a unit are held back during the next change.
    Hold(bool),
}

fn change() -> impl Strategy<Value = Change> {
    let app = 0..APPS.len();
    prop_oneof![
        (0..3_usize, any::<bool>(), app.clone(), app.clone())
            .prop_map(|(name, exists, of, from)| Change::Policy(name, exists, of, from)),
        (0..2_usize, any::<bool>(), app.clone(), app.clone())
            .prop_map(|(name, exists, of, from)| Change::ClusterPolicy(name, exists, of, from)),
        (0..PODS.len(), app.clone(), any::<bool>())
            .prop_map(|(pod, app, of_app)| Change::Pod(pod, app, of_app)),
        (0..3_u8, any::<bool>(), app).prop_map(|(number, exists, app)| Change::Remote(number, exists, app)),
        any::<bool>().prop_map(Change::Isolate),
        (0..PODS.len()).prop_map(Change::Attach),
        (0..PODS.len()).prop_map(Change::Detach),
        any::<bool>().prop_map(Change::Hold),
    ]
}

fn about(of: usize, from: usize) -> Value {
    let app = |number: usize| json!({"matchLabels": {"app": APPS[number]}});
    let ports = json!([{"port": 80 + of}, {"port": 90, "endPort": 95}]);
    json!({"podSelector": app(of), "ingress": [{"from": [{"podSelector": app(from)}], "ports": ports}], "egress": []})
}

fn about_cluster(name: usize, of: usize, from: usize) -> Value {
    let pods = |number: usize| json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": APPS[number]}}}});
    let rules = json!([{"action": "Pass", "from": [pods(of)]}, {"action": "Deny", "from": [pods(from)]}]);
    json!({"tier": if name == 0 { "Admin" } else { "Baseline" }, "priority": name, "subject": pods(of), "ingress": rules})
}

impl Node {
    /// Handles an event; the effects of what was held back come later.
    fn send_policy(&mut self, event: PolicyEvent) {
        self.handle(Event::Policies(event));
    }

    fn change(&mut self, change: &Change, attached: &mut BTreeSet<usize>) {
        let address = |pod: usize| format!("10.75.0.{}", pod + 2);
        match change {
            Change::Policy(name, exists, of, from) => match exists {
                true => self.handle(applied(&format!("p{name}"), &about(*of, *from))),
                false => self.handle(deleted(&format!("p{name}"))),
            },
            Change::ClusterPolicy(name, exists, of, from) => {
                let id = PolicyId::of_cluster(format!("c{name}"));
                let (policy, _) =
                    cluster_network_policy::translate(id.clone(), &about_cluster(*name, *of, *from));
                self.send_policy(match exists {
                    true => PolicyEvent::PolicyApplied(Box::new(policy.unwrap())),
                    false => PolicyEvent::PolicyDeleted(id),
                });
            }
            Change::Pod(at, app, of_app) => {
                let (key, mut one) = pod(PODS[*at], APPS[*app], &[&address(*at)]);
                if *of_app {
                    one.labels.insert(knit_policy::APP_LABEL.to_owned(), APPS[*app].to_owned());
                }
                self.send_policy(PolicyEvent::PodChanged { key, pod: Some(one) });
            }
            Change::Remote(number, exists, app) => {
                let (key, one) =
                    pod(&format!("far{number}"), APPS[*app], &[&format!("10.80.0.{number}"), "fd80::7"]);
                self.send_policy(PolicyEvent::PodChanged { key, pod: exists.then_some(one) });
            }
            Change::Isolate(isolated) => {
                let namespace = Some(PolicyNamespace { isolated: *isolated, ..PolicyNamespace::default() });
                self.send_policy(PolicyEvent::NamespaceChanged { name: "shop".to_owned(), namespace });
            }
            Change::Attach(at) => {
                if self.held.is_none() && attached.insert(*at) {
                    self.attach_pod(PODS[*at]);
                }
            }
            Change::Detach(at) => {
                if self.held.is_none() && attached.remove(at) {
                    self.detach(PODS[*at]);
                    self.attach_results();
                }
            }
            Change::Hold(of_policies) => {
                if self.held.is_none() {
                    self.held = Some(if *of_policies { Unit::Policies } else { sandbox("a") });
                } else {
                    self.release_all();
                }
            }
        }
    }

    fn release_all(&mut self) {
        self.held = None;
        while let Some(effect) = self.pending.pop_front() {
            let event = self.execute(effect);
            self.handle(event);
        }
    }

    /// Elements lead to chains that exist, which the kernel checks, and no pod with policies is without them.
    fn check_restricted(&self, attached: &BTreeSet<usize>) {
        for pod in attached {
            let id = SandboxId(PODS[*pod].to_owned());
            let Some(policies) = self.state.pod_policies(&id) else { continue };
            let interface = &self.state.units[&sandbox(PODS[*pod])].interfaces[0].1;
            let address = format!("{} ", interface.addresses[0].addr());
            let is_restricted = !policies.ingress.chains.is_empty();
            let elements = self.elements("policy_ingress4");
            let leads = elements.iter().any(|element| element.starts_with(&address));
            assert_eq!(leads, is_restricted, "{id}: {elements:?}");
        }
    }
}

proptest! {
    #[test]
    fn changes_leave_nothing_for_a_comparison_of_everything(
        changes in prop::collection::vec(change(), 1..40),
        masquerade: bool,
    ) {
        let mut node = Node::with_policies_and(masquerade);
        node.list(&[("p0", from_web())]);
        let mut attached = BTreeSet::new();
        for (at, change) in changes.iter().enumerate() {
            node.change(change, &mut attached);
            prop_assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
            if node.held.is_none() && at % 7 == 3 {
                node.take_plans();
                let before = node.kernel.filter(&Scope::Host).clone();
                node.handle(Event::Resync);
                assert_eq!(*node.kernel.filter(&Scope::Host), before);
            }
            if node.held.is_none() {
                node.check_restricted(&attached);
            }
        }
        node.release_all();
        node.check_restricted(&attached);
        let before = node.kernel.filter(&Scope::Host).clone();
        node.handle(Event::Resync);
        assert_eq!(*node.kernel.filter(&Scope::Host), before);
        node.handle(Event::PacketFilterChanged);
        assert_eq!(*node.kernel.filter(&Scope::Host), before);
        node.kernel.flush_ruleset(&Scope::Host);
        node.handle(Event::PacketFilterChanged);
        assert_eq!(*node.kernel.filter(&Scope::Host), before);
        prop_assert!(node.state.problems.is_empty(), "{:?}", node.state.problems);
    }
}
