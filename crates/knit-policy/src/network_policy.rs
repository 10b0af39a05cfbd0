//! NetworkPolicies (`networking.k8s.io/v1`).

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::labels::LabelSelector;
use crate::policy::{
    Action, Namespaces, Peer, PodSelector, Policy, PolicyId, PortMatch, PortNumber, Protocol, Rule, Tier,
};

/// Translates the `spec` of a NetworkPolicy. A policy that cannot be read allows nothing to and from the pods that it
/// selects, or all pods of its namespace if that cannot be read either; the warning says why.
pub fn translate(id: PolicyId, spec: &Value) -> (Policy, Option<String>) {
    match read(&id, spec) {
        Ok(policy) => (policy, None),
        Err(error) => {
            let subject = spec.get("podSelector").cloned().unwrap_or_default();
            let subject = serde_json::from_value(subject).unwrap_or_default();
            let subject = PodSelector::in_namespace(&id.namespace, subject);
            let warning = format!("{id} allows nothing, because it cannot be read: {error}");
            (Policy::closed(id, subject), Some(warning))
        }
    }
}

fn read(id: &PolicyId, spec: &Value) -> Result<Policy, String> {
    let spec = Spec::deserialize(spec).map_err(|error| error.to_string())?;
    let rules = |field: &str, rules: Vec<RawRule>, peers: fn(&mut RawRule) -> Vec<RawPeer>| {
        let rules = rules.into_iter().enumerate();
        rules
            .map(|(at, mut raw)| {
                let peers = peers(&mut raw);
                rule(&id.namespace, peers, raw.ports).map_err(|error| format!("{field}[{at}]: {error}"))
            })
            .collect::<Result<Vec<Rule>, String>>()
    };
    // Without types, ingress is always restricted, and egress if there are rules about it.
    let has = |name: &str| spec.policy_types.iter().any(|one| one == name);
    let is_default = spec.policy_types.is_empty();
    let (with_ingress, with_egress) = (is_default || has("Ingress"), has("Egress"));
    let with_egress = with_egress || is_default && spec.egress.is_some();
    let ingress = rules("ingress", spec.ingress.unwrap_or_default(), |raw| std::mem::take(&mut raw.from))?;
    let egress = rules("egress", spec.egress.unwrap_or_default(), |raw| std::mem::take(&mut raw.to))?;
    Ok(Policy {
        id: id.clone(),
        tier: Tier::Namespace,
        networks: None,
        subject: PodSelector::in_namespace(&id.namespace, spec.pod_selector),
        ingress: with_ingress.then_some(ingress),
        egress: with_egress.then_some(egress),
    })
}

fn rule(namespace: &str, peers: Vec<RawPeer>, ports: Vec<RawPort>) -> Result<Rule, String> {
    let is_restricted = (!peers.is_empty(), !ports.is_empty());
    let peers: Vec<Peer> = peers.into_iter().map(|raw| peer(namespace, raw)).collect::<Result<_, _>>()?;
    let ports: Vec<PortMatch> = ports.into_iter().map(port).collect::<Result<_, _>>()?;
    Ok(Rule {
        action: Action::Allow,
        peers: is_restricted.0.then_some(peers),
        ports: is_restricted.1.then_some(ports),
    })
}

fn peer(namespace: &str, raw: RawPeer) -> Result<Peer, String> {
    match raw {
        RawPeer { ip_block: Some(block), pod_selector: None, namespace_selector: None } => {
            let parse = |text: &str| text.parse().map_err(|_| format!("`{text}` is not a range"));
            let range: IpNet = parse(&block.cidr)?;
            let except: Vec<IpNet> = block.except.iter().map(|text| parse(text)).collect::<Result<_, _>>()?;
            Ok(Peer::Range { range: range.trunc(), except: except.iter().map(IpNet::trunc).collect() })
        }
        RawPeer { ip_block: None, pod_selector: None, namespace_selector: None } => {
            Err("a peer is empty".to_owned())
        }
        RawPeer { ip_block: None, pod_selector, namespace_selector } => Ok(Peer::Pods(PodSelector {
            namespaces: match namespace_selector {
                Some(selector) => Namespaces::Labelled(selector),
                None => Namespaces::Named(namespace.to_owned()),
            },
            pods: pod_selector.unwrap_or_default(),
        })),
        RawPeer { ip_block: Some(_), .. } => Err("a peer is both a range and a selector".to_owned()),
    }
}

fn port(raw: RawPort) -> Result<PortMatch, String> {
    let number = |number: i64| u16::try_from(number).map_err(|_| format!("port {number} is out of range"));
    let port = match (raw.port, raw.end_port) {
        (None, None) => None,
        (Some(Value::Number(first)), last) => {
            let first = number(first.as_i64().unwrap_or(-1))?;
            let last = last.map_or(Ok(first), number)?;
            if last < first {
                return Err(format!("port range {first} to {last} is empty"));
            }
            Some(PortNumber::Range(first, last))
        }
        (Some(Value::String(name)), None) => Some(PortNumber::Named(name)),
        _ => return Err("`endPort` needs a port number, and `port` a number or a name".to_owned()),
    };
    Ok(PortMatch { protocol: raw.protocol.unwrap_or(Protocol::Tcp), port })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    pod_selector: LabelSelector,
    #[serde(default)]
    policy_types: Vec<String>,
    ingress: Option<Vec<RawRule>>,
    egress: Option<Vec<RawRule>>,
}

#[derive(Deserialize)]
struct RawRule {
    #[serde(default)]
    from: Vec<RawPeer>,
    #[serde(default)]
    to: Vec<RawPeer>,
    #[serde(default)]
    ports: Vec<RawPort>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPeer {
    pod_selector: Option<LabelSelector>,
    namespace_selector: Option<LabelSelector>,
    ip_block: Option<IpBlock>,
}

#[derive(Deserialize)]
struct IpBlock {
    cidr: String,
    #[serde(default)]
    except: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    protocol: Option<Protocol>,
    port: Option<Value>,
    end_port: Option<i64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(spec: Value) -> Policy {
        let (policy, warning) = translate(id(), &spec);
        assert_eq!(warning, None);
        policy
    }

    fn id() -> PolicyId {
        PolicyId::namespaced("shop", "p")
    }

    #[test]
    fn types_decide_which_directions_are_restricted() {
        let directions = |spec: Value| {
            let policy = policy(spec);
            (policy.ingress.is_some(), policy.egress.is_some())
        };
        assert_eq!(directions(json!({"podSelector": {}})), (true, false));
        assert_eq!(directions(json!({"podSelector": {}, "egress": []})), (true, true));
        assert_eq!(directions(json!({"podSelector": {}, "policyTypes": ["Egress"]})), (false, true));
        assert_eq!(
            directions(json!({"podSelector": {}, "policyTypes": ["Ingress"], "egress": [{}]})),
            (true, false)
        );
    }

    #[test]
    fn missing_peers_and_ports_mean_any() {
        let rules = policy(json!({"podSelector": {}, "ingress": [{}, {"from": [], "ports": []}]})).ingress;
        assert_eq!(rules, Some(vec![Rule { action: Action::Allow, peers: None, ports: None }; 2]));
        // A port without a number means all ports of the protocol.
        let rules = policy(json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": "UDP"}]}]})).ingress;
        let ports = Some(vec![PortMatch { protocol: Protocol::Udp, port: None }]);
        assert_eq!(rules, Some(vec![Rule { action: Action::Allow, peers: None, ports }]));
    }

    #[test]
    fn a_peer_is_in_the_own_namespace_unless_it_selects_namespaces() {
        let from = json!([
            {"podSelector": {"matchLabels": {"app": "web"}}},
            {"namespaceSelector": {}},
            {"namespaceSelector": {"matchLabels": {"team": "blue"}}, "podSelector": {}},
            {"ipBlock": {"cidr": "10.0.0.1/8", "except": ["10.1.0.0/16"]}},
        ]);
        let rules = policy(json!({"podSelector": {}, "ingress": [{"from": from}]})).ingress.unwrap();
        let labels = |key: &str, value: &str| LabelSelector {
            match_labels: [(key.to_owned(), value.to_owned())].into(),
            ..LabelSelector::default()
        };
        let pods = |namespaces, pods| Peer::Pods(PodSelector { namespaces, pods });
        let all = LabelSelector::default();
        assert_eq!(
            rules[0].peers.clone().unwrap(),
            [
                pods(Namespaces::Named("shop".to_owned()), labels("app", "web")),
                pods(Namespaces::Labelled(all.clone()), all.clone()),
                pods(Namespaces::Labelled(labels("team", "blue")), all),
                Peer::Range {
                    range: "10.0.0.0/8".parse().unwrap(),
                    except: vec!["10.1.0.0/16".parse().unwrap()]
                },
            ]
        );
    }

    #[test]
    fn a_policy_that_cannot_be_read_allows_nothing() {
        let subject = json!({"matchLabels": {"app": "db"}});
        for (rule, message) in [
            (json!({"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]}), "`10.0.0.0` is not a range"),
            (json!({"from": [{}]}), "a peer is empty"),
            (json!({"ports": [{"port": 80, "endPort": 70}]}), "port range 80 to 70 is empty"),
            (json!({"ports": [{"port": 70_000}]}), "port 70000 is out of range"),
            (json!({"ports": [{"port": 1, "protocol": "DCCP"}]}), "DCCP"),
            (json!({"ports": [{"port": "http", "endPort": 90}]}), "`endPort` needs a port number"),
        ] {
            let spec = json!({"podSelector": subject, "ingress": [{}, rule]});
            let (policy, warning) = translate(id(), &spec);
            let warning = warning.unwrap();
            assert!(warning.contains(message) && warning.contains("shop/p"), "{warning}");
            let db = serde_json::from_value(subject.clone()).unwrap();
            assert_eq!(policy, Policy::closed(id(), PodSelector::in_namespace("shop", db)));
        }
    }
}
