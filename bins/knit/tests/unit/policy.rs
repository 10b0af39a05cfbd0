//! `knit policy`, against a [`FakeAgent`] with prepared responses.

use knit_kni::v1;
use serde_json::{Value, json};

use crate::client::{knit, output_text};
use crate::fake_agent::{FakeAgent, Responses};

fn policy_ref(kind: &str, namespace: &str, name: &str) -> Option<v1::PolicyRef> {
    Some(v1::PolicyRef { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() })
}

fn network_policy(name: &str) -> Option<v1::PolicyRef> {
    policy_ref("NetworkPolicy", "shop", name)
}

fn cluster_policy(name: &str) -> Option<v1::PolicyRef> {
    policy_ref("ClusterNetworkPolicy", "", name)
}

fn enforced() -> Option<v1::PolicyStatus> {
    Some(v1::PolicyStatus { enforced: true, ..v1::PolicyStatus::default() })
}

const INGRESS: i32 = v1::PolicyDirection::Ingress as i32;
const EGRESS: i32 = v1::PolicyDirection::Egress as i32;

fn three_policies() -> Vec<v1::Policy> {
    let policy = |policy, tier: v1::PolicyTier, priority, directions: &[i32], pods, dropped| v1::Policy {
        dropped_packets: dropped,
        policy,
        tier: tier.into(),
        priority,
        directions: directions.to_vec(),
        pods,
    };
    vec![
        policy(cluster_policy("guard"), v1::PolicyTier::Admin, 10, &[INGRESS, EGRESS], 3, Some(17)),
        policy(network_policy("db"), v1::PolicyTier::NetworkPolicy, 0, &[INGRESS], 1, Some(0)),
        policy(
            policy_ref("IsolatedNamespace", "shop", ""),
            v1::PolicyTier::Unspecified,
            0,
            &[INGRESS],
            2,
            None,
        ),
    ]
}

#[test]
fn policies_are_listed_as_table_and_json() {
    let policies = v1::ListPoliciesResponse { status: enforced(), policies: three_policies() };
    let agent = FakeAgent::start(Responses { policies, ..Responses::default() });
    let (code, out, err) = output_text(&knit(&agent, &["policy", "list", "-n", "shop"]));
    let expected = "\
KIND                  NAMESPACE  NAME   TIER           PRIORITY  DIRECTIONS      PODS  DROPPED
ClusterNetworkPolicy             guard  Admin          10        ingress,egress  3     17
NetworkPolicy         shop       db     NetworkPolicy            ingress         1     0
IsolatedNamespace     shop                                       ingress         2
";
    assert_eq!((code, out.as_str(), err.as_str()), (0, expected, ""));
    assert!(agent.requests()[0].contains(r#"namespace: "shop""#), "{:?}", agent.requests());
    let json: Value =
        serde_json::from_slice(&knit(&agent, &["policy", "list", "-o", "json"]).stdout).unwrap();
    assert_eq!(
        json["policies"][1]["policy"],
        json!({"kind": "NetworkPolicy", "namespace": "shop", "name": "db"})
    );
    assert_eq!(json["status"]["enforced"], true);
}

#[test]
fn a_node_without_policies_explains_why() {
    let list = |status| {
        let policies = v1::ListPoliciesResponse { status: Some(status), policies: Vec::new() };
        let agent = FakeAgent::start(Responses { policies, ..Responses::default() });
        output_text(&knit(&agent, &["policy", "list"])).1
    };
    assert_eq!(list(enforced().unwrap()), "no policy restricts pods of this node\n");
    let reason = "profile `beside`".to_owned();
    let off = list(v1::PolicyStatus { reason, ..v1::PolicyStatus::default() });
    assert_eq!(off, "policies are not enforced on this node: profile `beside`\n");
    let pending = v1::PolicyStatus {
        pending: vec!["NetworkPolicies".to_owned(), "Pods".to_owned()],
        warnings: vec!["no br_netfilter".to_owned()],
        ..enforced().unwrap()
    };
    let expected = "\
not listed from the API server yet: NetworkPolicies, Pods; until then rules stay as they are, and new pods are closed
warning: no br_netfilter
";
    assert_eq!(list(pending), expected);
}

#[test]
fn a_pod_is_shown_with_policies_and_chains() {
    let chain =
        |name: &str, pods, dropped_packets| v1::PolicyChain { name: name.to_owned(), pods, dropped_packets };
    let applied = |policy, tier: v1::PolicyTier, priority, rules, skipped| v1::AppliedPolicy {
        policy,
        tier: tier.into(),
        priority,
        rules,
        skipped,
    };
    let ingress = v1::DirectionPolicies {
        direction: INGRESS,
        restricted: true,
        policies: vec![
            applied(cluster_policy("guard"), v1::PolicyTier::Admin, 10, 1, false),
            applied(network_policy("db"), v1::PolicyTier::NetworkPolicy, 0, 0, false),
            applied(cluster_policy("default"), v1::PolicyTier::Baseline, 5, 2, true),
        ],
        chains: vec![chain("policy_ingress_shop_1", 1, Some(1)), chain("policy_ingress_shop_2", 3, Some(0))],
    };
    let egress = v1::DirectionPolicies { direction: EGRESS, ..v1::DirectionPolicies::default() };
    let pod_policies = v1::GetPodPoliciesResponse {
        status: enforced(),
        name: "db-0".to_owned(),
        namespace: "shop".to_owned(),
        addresses: vec!["10.4.0.2".to_owned(), "fd00::2".to_owned()],
        directions: vec![ingress, egress],
        isolation: policy_ref("App", "shop", "db"),
        isolation_chain: Some(chain("policy_segment_1", 1, None)),
        ..v1::GetPodPoliciesResponse::default()
    };
    let agent = FakeAgent::start(Responses { pod_policies, ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["policy", "show", "shop/db-0"]));
    let expected = "\
Pod:        shop/db-0
Addresses:  10.4.0.2, fd00::2
Ingress:
  ClusterNetworkPolicy guard (Admin, priority 10): 1 rule
  NetworkPolicy shop/db: 0 rules
  ClusterNetworkPolicy default (Baseline, priority 5): 2 rules, not evaluated: NetworkPolicies are about the pod
  everything else is denied
  chain policy_ingress_shop_1, 1 packet dropped
  chain policy_ingress_shop_2, shared by 3 pods of this node, 0 packets dropped
Egress: not restricted
Isolation:
  app db of namespace shop: other pods reach it through Services only
  chain policy_segment_1
";
    assert_eq!((code, out.as_str()), (0, expected));
    let request = &agent.requests()[0];
    assert!(request.contains(r#"name: "db-0", namespace: "shop""#), "{request}");
}

fn verdict(name: &str, node: &str, reason: v1::VerdictReason, allowed: bool) -> v1::EndVerdict {
    v1::EndVerdict {
        pod: Some(v1::NamedPod { namespace: "shop".to_owned(), name: name.to_owned() }),
        node: node.to_owned(),
        local: node == "node1",
        allowed,
        reason: reason.into(),
        ..v1::EndVerdict::default()
    }
}

fn denied_by_policies() -> v1::ExplainedConnection {
    let step = |policy, tier: v1::PolicyTier, outcome: v1::PolicyOutcome| v1::PolicyStep {
        policy,
        tier: tier.into(),
        priority: 10,
        outcome: outcome.into(),
        rule: 2,
    };
    let ingress = v1::EndVerdict {
        steps: vec![
            step(cluster_policy("guard"), v1::PolicyTier::Admin, v1::PolicyOutcome::Pass),
            step(network_policy("db"), v1::PolicyTier::NetworkPolicy, v1::PolicyOutcome::NoMatch),
        ],
        ..verdict("db", "node2", v1::VerdictReason::NoRuleMatches, false)
    };
    v1::ExplainedConnection {
        source: "10.4.0.2".to_owned(),
        destination: "10.5.0.3".to_owned(),
        allowed: false,
        egress: Some(verdict("web", "node1", v1::VerdictReason::NoPolicyDecides, true)),
        ingress: Some(ingress),
        isolation: policy_ref("IsolatedNamespace", "shop", ""),
    }
}

#[test]
fn a_denied_connection_is_explained_for_both_ends() {
    let six = v1::ExplainedConnection {
        source: "fd00::2".to_owned(),
        destination: "fd01::3".to_owned(),
        ..denied_by_policies()
    };
    let connections = vec![denied_by_policies(), six.clone()];
    let connection = Some(v1::ExplainConnectionResponse { connections, ..Default::default() });
    let agent = FakeAgent::start(Responses { connection, ..Responses::default() });
    let (code, out, _) = output_text(&knit(&agent, &["policy", "why", "shop/web", "shop/db"]));
    let expected = "\
shop/web (10.4.0.2, fd00::2) to shop/db (10.5.0.3, fd01::3), tcp port 80: denied
  egress of shop/web, enforced on this node: allowed, no policy is about it
  ingress of shop/db, enforced on node node2: denied, no rule of its NetworkPolicies matches
    ClusterNetworkPolicy guard (Admin, priority 10): ingress[2] passes it on
    NetworkPolicy shop/db: no rule matches
  isolation, enforced on this node: denied, other pods reach isolated namespace shop through Services only
";
    assert_eq!((code, out.as_str()), (1, expected));
    let request = &agent.requests()[0];
    assert!(request.contains(r#"protocol: "tcp", port: 80, through_service: false"#), "{request}");
    // Families with different verdicts are printed one by one.
    let other = v1::ExplainedConnection { isolation: None, ..six };
    let connections = vec![denied_by_policies(), other];
    let connection = Some(v1::ExplainConnectionResponse { connections, ..Default::default() });
    let agent = FakeAgent::start(Responses { connection, ..Responses::default() });
    let (_, out, _) = output_text(&knit(&agent, &["policy", "why", "shop/web", "shop/db"]));
    let titles: Vec<&str> = out.lines().filter(|line| !line.starts_with(' ')).collect();
    let title = |from: &str, to: &str| format!("shop/web ({from}) to shop/db ({to}), tcp port 80: denied");
    assert_eq!(titles, [title("10.4.0.2", "10.5.0.3"), title("fd00::2", "fd01::3")]);
}

#[test]
fn the_exit_code_of_why_is_the_verdict() {
    let by_rule = v1::EndVerdict {
        policy: network_policy("db"),
        rule: 1,
        ..verdict("db", "node1", v1::VerdictReason::Rule, true)
    };
    let outside = v1::ExplainedConnection {
        source: "192.0.2.1".to_owned(),
        destination: "10.4.0.3".to_owned(),
        allowed: true,
        egress: Some(v1::EndVerdict { allowed: true, ..v1::EndVerdict::default() }),
        ingress: Some(by_rule),
        isolation: None,
    };
    let reply = |allowed, connections| {
        let connection = Some(v1::ExplainConnectionResponse { allowed, connections, ..Default::default() });
        FakeAgent::start(Responses { connection, ..Responses::default() })
    };
    let arguments =
        ["policy", "why", "192.0.2.1", "shop/db", "--protocol", "udp", "--port", "53", "--service"];
    let agent = reply(true, vec![outside]);
    let (code, out, _) = output_text(&knit(&agent, &arguments));
    let expected = "\
192.0.2.1 to shop/db (10.4.0.3), udp port 53 through a Service: allowed
  egress of 192.0.2.1: allowed, not a pod of the cluster network
  ingress of shop/db, enforced on this node: allowed, by NetworkPolicy shop/db ingress[1]
";
    assert_eq!((code, out.as_str()), (0, expected));
    assert_eq!(output_text(&knit(&reply(false, Vec::new()), &["policy", "why", "a/b", "c/d"])).0, 1);
    let agent = reply(true, Vec::new());
    let (code, out, _) = output_text(&knit(&agent, &["policy", "why", "a/b", "c/d", "--protocol", "icmp"]));
    let expected =
        "a/b to c/d, icmp: allowed\n  there is no policy in the cluster, and nothing is isolated\n";
    assert_eq!((code, out.as_str()), (0, expected));
    // No verdict: the agent rejects the request, none responds, or the arguments are invalid.
    let agent = FakeAgent::start(Responses::default());
    let (code, out, err) = output_text(&knit(&agent, &["policy", "why", "a/b", "c/d"]));
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("cannot do this (Unsupported)"), "{err}");
    let missing = agent.folder().join("missing.sock");
    let arguments = ["policy", "why", "a/b", "c/d", "--kni-socket", missing.to_str().unwrap()];
    assert_eq!(output_text(&knit(&agent, &arguments)).0, 2);
    assert_eq!(output_text(&knit(&agent, &["policy", "why", "a/b"])).0, 2);
    assert_eq!(output_text(&knit(&agent, &["policy", "why", "a/b/c", "c/d"])).0, 2);
}
