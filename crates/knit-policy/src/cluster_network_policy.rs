//! ClusterNetworkPolicies (`policy.networking.k8s.io/v1alpha2`).
//!
//! A rule with a part that cannot be read fails closed, as the API demands: an `Accept` rule does not match what cannot be
//! read, any other rule denies everything.

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::labels::LabelSelector;
use crate::policy::{
    Action, Namespaces, Peer, PodSelector, Policy, PolicyId, PortMatch, PortNumber, Protocol, Rule, Tier,
};

/// The API group of ClusterNetworkPolicies.
pub const GROUP: &str = "policy.networking.k8s.io";
/// The version of the API.
pub const VERSION: &str = "v1alpha2";
/// The resource in paths of the API.
pub const PLURAL: &str = "clusternetworkpolicies";
/// The kind of the objects.
pub const KIND: &str = "ClusterNetworkPolicy";

/// Translates the `spec` of a ClusterNetworkPolicy, with a warning for each part that cannot be enforced as written. A policy
/// whose tier or subject cannot be read is `None`: it is not known which pods it is about.
pub fn translate(id: PolicyId, spec: &Value) -> (Option<Policy>, Vec<String>) {
    let spec = match Spec::deserialize(spec) {
        Ok(spec) => spec,
        Err(error) => {
            return (None, vec![format!("{id} is not enforced, because it cannot be read: {error}")]);
        }
    };
    let Some(subject) = selector(spec.subject.namespaces, spec.subject.pods) else {
        return (
            None,
            vec![format!("{id} is not enforced: its subject selects neither namespaces nor pods")],
        );
    };
    let mut warnings = Vec::new();
    let mut rules = |direction: &str, raw: Vec<Value>| {
        let rules = raw.iter().enumerate().map(|(at, raw)| {
            let (rule, unread) = rule(raw);
            warnings.extend(unread.into_iter().map(|why| format!("{id}: {direction}[{at}]: {why}")));
            rule
        });
        let rules: Vec<Rule> = rules.collect();
        // Without rules it does not affect the direction.
        (!rules.is_empty()).then_some(rules)
    };
    let (ingress, egress) = (rules("ingress", spec.ingress), rules("egress", spec.egress));
    let tier = match spec.tier {
        RawTier::Admin => Tier::Admin(spec.priority),
        RawTier::Baseline => Tier::Baseline(spec.priority),
    };
    (Some(Policy { id, tier, networks: None, subject, ingress, egress }), warnings)
}

/// A rule, and what of it cannot be read.
fn rule(raw: &Value) -> (Rule, Vec<String>) {
    let action = match raw["action"].as_str() {
        Some("Accept") => Action::Allow,
        Some("Pass") => Action::Pass,
        _ => Action::Deny,
    };
    let mut unread = Vec::new();
    let list = |field: &str| raw[field].as_array().cloned().unwrap_or_default();
    let mut peers = Vec::new();
    for raw in list("from").iter().chain(&list("to")) {
        match peer(raw) {
            Ok(more) => peers.extend(more),
            Err(why) => unread.push(why),
        }
    }
    let protocols = list("protocols");
    let is_restricted = !protocols.is_empty();
    let mut ports = Vec::new();
    for raw in &protocols {
        match port(raw) {
            Ok(more) => ports.extend(more),
            Err(why) => unread.push(why),
        }
    }
    if !unread.is_empty() && action != Action::Allow {
        unread.push("the rule denies everything".to_owned());
        return (Rule { action: Action::Deny, peers: None, ports: None }, unread);
    }
    (Rule { action, peers: Some(peers), ports: is_restricted.then_some(ports) }, unread)
}

fn peer(raw: &Value) -> Result<Vec<Peer>, String> {
    let raw = RawPeer::deserialize(raw).map_err(|error| format!("a peer cannot be read: {error}"))?;
    if !raw.networks.is_empty() {
        let range = |text: &String| text.parse().map_err(|_| format!("`{text}` is not a range"));
        let ranges: Vec<IpNet> = raw.networks.iter().map(range).collect::<Result<_, _>>()?;
        return Ok(ranges
            .iter()
            .map(|range| Peer::Range { range: range.trunc(), except: Vec::new() })
            .collect());
    }
    let pods = selector(raw.namespaces, raw.pods);
    pods.map(|pods| vec![Peer::Pods(pods)])
        .ok_or_else(|| "peers other than namespaces, pods and networks are not supported".to_owned())
}

fn selector(namespaces: Option<LabelSelector>, pods: Option<NamespacedPod>) -> Option<PodSelector> {
    match (namespaces, pods) {
        (Some(namespaces), None) => {
            Some(PodSelector { namespaces: Namespaces::Labelled(namespaces), pods: LabelSelector::default() })
        }
        (None, Some(NamespacedPod { namespace_selector, pod_selector })) => {
            Some(PodSelector { namespaces: Namespaces::Labelled(namespace_selector), pods: pod_selector })
        }
        _ => None,
    }
}

fn port(raw: &Value) -> Result<Vec<PortMatch>, String> {
    let raw: RawProtocol =
        RawProtocol::deserialize(raw).map_err(|error| format!("a protocol cannot be read: {error}"))?;
    let all = [(Protocol::Tcp, raw.tcp), (Protocol::Udp, raw.udp), (Protocol::Sctp, raw.sctp)];
    let mut matches = Vec::new();
    for (protocol, ports) in all {
        let Some(Ports { destination_port }) = ports else { continue };
        let port = match destination_port {
            None => None,
            Some(RawPort { number: Some(number), range: None }) => Some(PortNumber::Range(number, number)),
            Some(RawPort { number: None, range: Some(RawRange { start, end }) }) if start <= end => {
                Some(PortNumber::Range(start, end))
            }
            Some(_) => return Err("a port is neither a number nor a range".to_owned()),
        };
        matches.push(PortMatch { protocol, port });
    }
    // The pod declares the protocol of a named port.
    for protocol in raw.destination_named_port.iter().flat_map(|_| Protocol::ALL) {
        let port = raw.destination_named_port.clone().map(PortNumber::Named);
        matches.push(PortMatch { protocol, port });
    }
    if matches.is_empty() {
        return Err("a protocol is none of TCP, UDP, SCTP and a named port".to_owned());
    }
    Ok(matches)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    tier: RawTier,
    priority: u16,
    subject: RawPeer,
    #[serde(default)]
    ingress: Vec<Value>,
    #[serde(default)]
    egress: Vec<Value>,
}

#[derive(Deserialize)]
enum RawTier {
    Admin,
    Baseline,
}

#[derive(Deserialize)]
struct RawPeer {
    namespaces: Option<LabelSelector>,
    pods: Option<NamespacedPod>,
    #[serde(default)]
    networks: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamespacedPod {
    #[serde(default)]
    namespace_selector: LabelSelector,
    #[serde(default)]
    pod_selector: LabelSelector,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawProtocol {
    tcp: Option<Ports>,
    udp: Option<Ports>,
    sctp: Option<Ports>,
    destination_named_port: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ports {
    destination_port: Option<RawPort>,
}

#[derive(Deserialize)]
struct RawPort {
    number: Option<u16>,
    range: Option<RawRange>,
}

#[derive(Deserialize)]
struct RawRange {
    start: u16,
    end: u16,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(ingress: Value) -> (Policy, Vec<String>) {
        let spec = json!({"tier": "Admin", "priority": 7, "subject": {"namespaces": {}}, "ingress": ingress});
        let (policy, warnings) = translate(PolicyId::of_cluster("p"), &spec);
        (policy.unwrap(), warnings)
    }

    #[test]
    fn tier_subject_and_rules_are_read() {
        let peers = json!([
            {"namespaces": {"matchLabels": {"team": "blue"}}},
            {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
        ]);
        let protocols = json!([
            {"tcp": {"destinationPort": {"number": 80}}},
            {"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}},
            {"sctp": {}},
        ]);
        let (policy, warnings) = read(json!([{"action": "Deny", "from": peers, "protocols": protocols}]));
        assert_eq!((policy.tier, warnings.len(), policy.egress), (Tier::Admin(7), 0, None));
        let rule = &policy.ingress.unwrap()[0];
        assert_eq!((rule.action, rule.peers.as_ref().map(Vec::len)), (Action::Deny, Some(2)));
        let port = |protocol, port| PortMatch { protocol, port };
        assert_eq!(
            rule.ports,
            Some(vec![
                port(Protocol::Tcp, Some(PortNumber::Range(80, 80))),
                port(Protocol::Udp, Some(PortNumber::Range(5, 9))),
                port(Protocol::Sctp, None),
            ])
        );
    }

    #[test]
    fn a_named_port_has_any_protocol() {
        let protocols = json!([{"destinationNamedPort": "web"}]);
        let (policy, _) =
            read(json!([{"action": "Accept", "from": [{"namespaces": {}}], "protocols": protocols}]));
        let ports = policy.ingress.unwrap()[0].ports.clone().unwrap();
        assert_eq!(ports.iter().map(|port| port.protocol).collect::<Vec<_>>(), Protocol::ALL);
    }

    #[test]
    fn what_cannot_be_read_fails_closed() {
        let unknown = || json!([{"namespaces": {}}, {"planets": {}}]);
        let rule = |action: &str| {
            let (policy, warnings) = read(json!([{"action": action, "from": unknown()}]));
            assert!(
                warnings[0].starts_with("ClusterNetworkPolicy p: ingress[0]: peers other"),
                "{warnings:?}"
            );
            policy.ingress.unwrap().remove(0)
        };
        // An `Accept` rule matches the peers that can be read, others deny everything.
        assert_eq!(rule("Accept").peers.map(|peers| peers.len()), Some(1));
        for action in ["Deny", "Pass"] {
            assert_eq!(rule(action), Rule { action: Action::Deny, peers: None, ports: None });
        }
        let bad = json!([{"action": "Accept", "from": [{"namespaces": {}}], "protocols": [{"dccp": {}}]}]);
        let (policy, warnings) = read(bad);
        assert_eq!((policy.ingress.unwrap()[0].ports.as_deref(), warnings.len()), (Some(&[][..]), 1));
    }

    #[test]
    fn a_policy_without_a_readable_subject_is_not_enforced() {
        let spec = json!({"tier": "Admin", "priority": 0, "subject": {"planets": {}}});
        let (policy, warnings) = translate(PolicyId::of_cluster("p"), &spec);
        assert_eq!((policy, warnings.len()), (None, 1));
        let (policy, warnings) = translate(PolicyId::of_cluster("p"), &json!({"tier": "Middle"}));
        assert_eq!((policy, warnings.len()), (None, 1));
    }
}
