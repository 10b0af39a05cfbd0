//! Reads policies as their documentation does, without the form that Knit translates them to.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_policy::Flow;
use serde_json::{Value, json};

use crate::objects::namespaces;
use crate::support::TestPod;

/// A cluster, and its policies as JSON.
pub struct Naive<'a> {
    pub pods: &'a [TestPod],
    pub isolated: &'a [&'a str],
    /// NetworkPolicies with their namespaces.
    pub policies: &'a [(String, Value)],
    /// ClusterNetworkPolicies in the order of their priority.
    pub cluster_policies: &'a [Value],
}

impl Naive<'_> {
    /// Whether the connection is allowed on a node that has these pods: rules of the source apply on its node, rules of the
    /// destination on the other.
    pub fn is_allowed(&self, flow: &Flow, local: &[&str]) -> bool {
        let is_local = |address| self.at(address).is_some_and(|pod| local.contains(&pod.name.as_str()));
        flow.source == flow.destination
            || (!is_local(flow.source) || self.allows(flow, "Egress") && !self.is_isolated(flow))
                && (!is_local(flow.destination) || self.allows(flow, "Ingress"))
    }

    fn is_isolated(&self, flow: &Flow) -> bool {
        let (Some(from), Some(to)) = (self.at(flow.source), self.at(flow.destination)) else { return false };
        let app = |pod: &TestPod| {
            let label =
                pod.labels.iter().find(|(key, value)| key == "opencontrail.org/name" && !value.is_empty());
            label.map(|(_, value)| value.clone())
        };
        let has_policy = self.applicable(to, "Ingress").next().is_some();
        let is_of_other_app = app(to).is_some() && !has_policy && app(from) != app(to);
        let needs_same_namespace =
            app(to).is_some() && !has_policy || self.isolated.contains(&to.namespace.as_str());
        !flow.through_service && (is_of_other_app || needs_same_namespace && from.namespace != to.namespace)
    }

    fn at(&self, address: IpAddr) -> Option<&TestPod> {
        self.pods.iter().find(|pod| pod.v4() == address || pod.v6() == address)
    }

    fn applicable(&self, subject: &TestPod, direction: &str) -> impl Iterator<Item = &(String, Value)> {
        self.policies.iter().filter(move |(namespace, spec)| {
            let types = spec["policyTypes"].as_array().unwrap();
            // In these tests, every policy has a list of egress rules.
            *namespace == subject.namespace
                && selects(&spec["podSelector"], &subject.labels)
                && (types.is_empty() || types.contains(&json!(direction)))
        })
    }

    fn allows(&self, flow: &Flow, direction: &str) -> bool {
        let is_ingress = direction == "Ingress";
        let (subject, peer) =
            if is_ingress { (flow.destination, flow.source) } else { (flow.source, flow.destination) };
        let Some(pod) = self.at(subject) else { return true };
        if let Some(decided) = self.decision(flow, "Admin", is_ingress) {
            return decided;
        }
        let mut applicable = self.applicable(pod, direction).peekable();
        if applicable.peek().is_none() {
            return self.decision(flow, "Baseline", is_ingress).unwrap_or(true);
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

    /// What the ClusterNetworkPolicies of a tier decide.
    fn decision(&self, flow: &Flow, tier: &str, is_ingress: bool) -> Option<bool> {
        let (subject, peer) =
            if is_ingress { (flow.destination, flow.source) } else { (flow.source, flow.destination) };
        let (rules, peers) = if is_ingress { ("ingress", "from") } else { ("egress", "to") };
        let of_tier = self.cluster_policies.iter().filter(|spec| spec["tier"] == tier);
        let about = of_tier.filter(|spec| self.is_selected(&spec["subject"], subject));
        let mut rules = about.flat_map(|spec| spec[rules].as_array().unwrap());
        let decisive = rules.find(|rule| {
            let protocols = rule["protocols"].as_array().unwrap();
            rule[peers].as_array().unwrap().iter().any(|one| self.is_selected(one, peer))
                && (protocols.is_empty() || protocols.iter().any(|one| self.is_protocol(one, flow)))
        })?;
        match decisive["action"].as_str().unwrap() {
            "Accept" => Some(true),
            "Deny" => Some(false),
            _ => None,
        }
    }

    /// Whether a subject or peer of a ClusterNetworkPolicy selects an address.
    fn is_selected(&self, selector: &Value, address: IpAddr) -> bool {
        if let Some(networks) = selector["networks"].as_array() {
            let contains = |text: &Value| text.as_str().unwrap().parse::<IpNet>().unwrap().contains(&address);
            return networks.iter().any(contains);
        }
        let Some(pod) = self.at(address) else { return false };
        match selector.get("namespaces") {
            Some(namespaces) => selects(namespaces, &labels_of(&pod.namespace)),
            None => {
                selects(&selector["pods"]["namespaceSelector"], &labels_of(&pod.namespace))
                    && selects(&selector["pods"]["podSelector"], &pod.labels)
            }
        }
    }

    fn is_protocol(&self, protocol: &Value, flow: &Flow) -> bool {
        if protocol.get("udp").is_some() {
            return flow.protocol == 17;
        }
        let Some(tcp) = protocol.get("tcp") else { return self.is_port(&json!({"port": "web"}), flow) };
        let port = &tcp["destinationPort"];
        let bound = |field: &str| port["range"][field].as_u64().or_else(|| port["number"].as_u64()).unwrap();
        flow.protocol == 6 && (bound("start")..=bound("end")).contains(&u64::from(flow.port))
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
            Some(selector) => selects(selector, &labels_of(&pod.namespace)),
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

fn labels_of(namespace: &str) -> Vec<(String, String)> {
    namespaces(&[])[namespace].labels.clone().into_iter().collect()
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
