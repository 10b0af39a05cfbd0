//! What restricts a pod, and how a verdict comes about.

use knit_policy::{
    APP_LABEL, Action, Decision, Direction, DropReason, DropRule, Flow, LocalPod, Outcome, PodChains, PodKey,
    PolicyId, PolicyIndex, Segment, Tier, TraceStep, Verdict,
};
use serde_json::{Value, json};

use crate::objects::namespaces;
use crate::support::{TestPod, apply, apply_cluster, tcp};

/// Asserts that what the policies do leads to the decision.
#[track_caller]
pub fn assert_traced(index: &PolicyIndex, flow: &Flow, decision: &Decision) {
    for (direction, verdict) in
        [(Direction::Ingress, &decision.ingress), (Direction::Egress, &decision.egress)]
    {
        let trace = index.trace(flow, direction);
        let decided = |step: &TraceStep| match step.outcome {
            Outcome::Matched { rule, action: Action::Allow } => {
                Some(Verdict::Allowed { policy: step.policy.clone(), rule })
            }
            Outcome::Matched { rule, action: Action::Deny } => {
                Some(Verdict::DeniedBy { policy: step.policy.clone(), rule })
            }
            Outcome::Matched { action: Action::Pass, .. } if step.tier > Tier::Namespace => {
                Some(Verdict::Unrestricted)
            }
            _ => None,
        };
        let mut decisions = trace.iter().filter_map(decided);
        let first = decisions.next();
        assert_eq!(decisions.next(), None, "one policy decides: {trace:?}");
        let of_tenants = trace.iter().filter(|step| step.tier == Tier::Namespace);
        let policies: Vec<PolicyId> = of_tenants.map(|step| step.policy.clone()).collect();
        let expected = match first {
            Some(verdict) => verdict,
            None if flow.source == flow.destination && !trace.is_empty() => Verdict::Itself,
            None if policies.is_empty() => Verdict::Unrestricted,
            None => Verdict::Denied { policies },
        };
        assert_eq!(*verdict, expected, "{direction:?} {flow:?}: {trace:?}");
    }
}

fn pod(number: u8, namespace: &str, name: &str, app: &str) -> TestPod {
    let labels = vec![("app".to_owned(), app.to_owned())];
    TestPod { namespace: namespace.to_owned(), name: name.to_owned(), labels, number, web: None }
}

/// Pods `blue/web`, `blue/db` and `green/other`.
fn index_of(pods: &[TestPod]) -> PolicyIndex {
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces(&[]));
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    index
}

fn three_pods() -> [TestPod; 3] {
    [pod(1, "blue", "web", "a"), pod(2, "blue", "db", "b"), pod(3, "green", "other", "a")]
}

fn db(action: &str, tier: &str, priority: u16) -> Value {
    let subject = json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "b"}}}});
    let from = |app: &str| json!([{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}}]);
    let ingress = json!([{"action": "Deny", "from": from("c")}, {"action": action, "from": from("a")}]);
    json!({"tier": tier, "priority": priority, "subject": subject, "ingress": ingress})
}

#[test]
fn a_trace_has_every_policy_in_the_order_of_evaluation() {
    let pods = three_pods();
    let mut index = index_of(&pods);
    let flow = tcp(pods[0].v4(), pods[1].v4(), 80);
    apply(&mut index, "blue", "db", &json!({"podSelector": {"matchLabels": {"app": "b"}}, "ingress": []}));
    apply_cluster(&mut index, "last", &db("Deny", "Baseline", 1));
    apply_cluster(&mut index, "second", &db("Accept", "Admin", 7));
    let trace = |index: &PolicyIndex| -> Vec<(String, Outcome)> {
        let steps = index.trace(&flow, Direction::Ingress).into_iter();
        steps.map(|step| (step.policy.name, step.outcome)).collect()
    };
    let of = |name: &str, outcome: Outcome| (name.to_owned(), outcome);
    let matched = |action: Action| Outcome::Matched { rule: 1, action };
    let expected =
        [of("second", matched(Action::Allow)), of("db", Outcome::Skipped), of("last", Outcome::Skipped)];
    assert_eq!(trace(&index), expected);
    // Passed on, the other policies of the tier are not evaluated, and the tenant decides.
    apply_cluster(&mut index, "first", &db("Pass", "Admin", 3));
    let expected = [
        of("first", matched(Action::Pass)),
        of("second", Outcome::Skipped),
        of("db", Outcome::NoMatch),
        of("last", Outcome::Skipped),
    ];
    assert_eq!(trace(&index), expected);
    index.remove_policy(&PolicyId::namespaced("blue", "db"));
    assert_eq!(trace(&index)[2], of("last", matched(Action::Deny)));
    // Not a pod.
    assert_eq!(index.trace(&tcp([192, 0, 2, 1].into(), pods[1].v4(), 80), Direction::Egress), []);
}

/// The drop rules of a node with these pods, each as its chain's prefix, direction and reason.
fn drops(index: &mut PolicyIndex, local: &[&TestPod]) -> Vec<(String, DropRule)> {
    let uids: Vec<String> = local.iter().map(|pod| pod.pod().uid).collect();
    let pods = local.iter().zip(&uids);
    let pods = pods.map(|(pod, uid)| LocalPod { namespace: &pod.namespace, name: &pod.name, uid });
    let compiled = index.compile(pods.collect::<Vec<_>>());
    let keys: Vec<PodKey> = local.iter().map(|pod| pod.key()).collect();
    let chains: Vec<(PodKey, &PodChains)> = keys.into_iter().zip(&compiled.pods).collect();
    let rules = index.drop_rules(&compiled.tables, chains);
    for rule in &rules {
        let chain = &compiled.tables.chains[&rule.chain];
        assert!(chain.iter().any(|one| one.comment.as_ref() == Some(&rule.comment)), "{rule:?}");
    }
    rules.into_iter().map(|rule| (rule.comment.clone(), rule)).collect()
}

#[test]
fn every_rule_that_drops_packets_is_known_with_its_policy() {
    let mut pods = three_pods();
    pods[2].labels.push((APP_LABEL.to_owned(), "shop".to_owned()));
    let mut index = index_of(&pods);
    assert!(drops(&mut index, &[&pods[0], &pods[1]]).len() == 1, "the app");
    let any = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
    apply(&mut index, "blue", "any", &any);
    apply(&mut index, "blue", "db", &json!({"podSelector": {"matchLabels": {"app": "b"}}}));
    apply_cluster(&mut index, "first", &db("Deny", "Admin", 3));
    let found = drops(&mut index, &[&pods[0], &pods[1]]);
    let reasons: Vec<(&str, &DropReason)> =
        found.iter().map(|(comment, rule)| (comment.as_str(), &rule.reason)).collect();
    let names = ["any", "db"].map(|name| PolicyId::namespaced("blue", name));
    let denied_by = |rule| DropReason::DeniedBy { policy: PolicyId::of_cluster("first"), rule };
    let app = Segment::App { namespace: "green".to_owned(), name: "shop".to_owned() };
    let expected = [
        ("allowed by no policy", &DropReason::NotAllowed(names[..1].to_vec())),
        ("ClusterNetworkPolicy first ingress[0]", &denied_by(0)),
        ("ClusterNetworkPolicy first ingress[1]", &denied_by(1)),
        ("allowed by no policy", &DropReason::NotAllowed(names.to_vec())),
        ("app shop of namespace green", &DropReason::Isolated(app)),
    ];
    assert_eq!(reasons, expected);
    assert!(found.iter().all(|(_, rule)| rule.direction == Direction::Ingress));
    // Pods with the same policies share chains, which are listed once.
    let twin = pod(4, "blue", "twin", "b");
    index.set_pod(&twin.key(), Some(twin.pod()));
    assert_eq!(drops(&mut index, &[&pods[0], &pods[1], &twin]).len(), found.len());
}
