//! The policies, namespaces and pods of a node's cluster, as the agent's watches submit them.
//!
//! Specs are those of the API and pass through the same translation as in the agent. Most pods are on other nodes: they have
//! addresses and labels, and nothing connects to them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use knit_engine::Event;
use knit_engine::policies::PolicyEvent;
use knit_policy::{
    Labels, PodKey, Policy, PolicyId, PolicyKind, PolicyNamespace, PolicyPod, cluster_network_policy,
    network_policy,
};
use serde_json::{Value, json};

/// The label that most selectors are about.
pub const APP: &str = "app";
/// The label of namespaces of tenants.
const TENANT: &str = "tenant";
/// The start of their names.
pub const TENANT_PREFIX: &str = "tenant-";
/// Apps of a namespace.
const APPS: usize = 10;
/// Pods of an app on this node, and in the cluster.
const LOCAL_PODS: usize = 5;
const PODS: usize = 100;
/// Policies of an app: the first ones are about connections to its pods, the others about connections from them.
const POLICIES: usize = 10;
const INGRESS_POLICIES: usize = 7;
/// Pods on other nodes have addresses of these ranges.
const REMOTE_V4: Ipv4Addr = Ipv4Addr::new(10, 76, 0, 0);
const REMOTE_V6: Ipv6Addr = Ipv6Addr::new(0xfd76, 0x6b6e, 0x6974, 0, 0, 0, 0, 0);

/// A pod of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPod {
    /// Namespace and name.
    pub key: PodKey,
    /// Labels and addresses. A pod of this node gets its addresses when it starts.
    pub pod: PolicyPod,
}

impl ClusterPod {
    /// A pod without addresses. Its uid is that of its first incarnation.
    pub fn new(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Self {
        let labels: Labels =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Self {
            key: PodKey { namespace: namespace.to_owned(), name: name.to_owned() },
            pod: PolicyPod { uid: format!("{namespace}-{name}"), labels, ..PolicyPod::default() },
        }
    }

    /// The same as a pod of another node, with the addresses of a number.
    pub fn remote(mut self, number: u32) -> Self {
        let v4 = Ipv4Addr::from(u32::from(REMOTE_V4) + number);
        let v6 = Ipv6Addr::from(u128::from(REMOTE_V6) + u128::from(number));
        self.pod.addresses = vec![v4.into(), v6.into()];
        self
    }

    /// The same with these addresses.
    pub fn at(mut self, addresses: &[IpAddr]) -> Self {
        self.pod.addresses = addresses.to_vec();
        self
    }

    /// The same with another value of a label.
    pub fn labelled(mut self, label: &str, value: &str) -> Self {
        self.pod.labels.insert(label.to_owned(), value.to_owned());
        self
    }

    /// The watch event of its creation or change.
    pub fn applied(&self) -> Event {
        Event::Policies(PolicyEvent::PodChanged { key: self.key.clone(), pod: Some(self.pod.clone()) })
    }

    /// The watch event of its deletion.
    pub fn deleted(&self) -> Event {
        Event::Policies(PolicyEvent::PodChanged { key: self.key.clone(), pod: None })
    }
}

/// A cluster with so many namespaces, each with apps, their pods and policies.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// The number of namespaces.
    pub namespaces: usize,
}

impl Cluster {
    /// The pods of this node, without addresses.
    pub fn local_pods(self) -> Vec<ClusterPod> {
        self.pods(|number| number < LOCAL_PODS)
    }

    /// The pods of other nodes.
    pub fn remote_pods(self) -> Vec<ClusterPod> {
        let pods = self.pods(|number| number >= LOCAL_PODS);
        (0..).zip(pods).map(|(number, pod)| pod.remote(number)).collect()
    }

    fn pods(self, includes: impl Fn(usize) -> bool) -> Vec<ClusterPod> {
        let mut all = Vec::new();
        for (namespace, app) in self.apps() {
            let pods = (0..PODS).filter(|number| includes(*number));
            all.extend(pods.map(|number| {
                ClusterPod::new(&namespace, &format!("{app}-{number}"), &[(APP, app.as_str())])
            }));
        }
        all
    }

    /// The policies: each app accepts connections from some apps of its namespace, and opens connections to others.
    pub fn policies(self) -> Vec<Policy> {
        let of_app = |(namespace, app): (String, String)| {
            (0..POLICIES).map(move |number| {
                let other = format!("app-{number}");
                let port = json!([{"port": 8_000 + number}]);
                let peers = json!([{"podSelector": matching(&other)}]);
                let rules = match number < INGRESS_POLICIES {
                    true => json!({"ingress": [{"from": peers, "ports": port}]}),
                    false => json!({"policyTypes": ["Egress"], "egress": [{"to": peers, "ports": port}]}),
                };
                policy(&namespace, &format!("{app}-{number}"), &app, &rules)
            })
        };
        self.apps().flat_map(of_app).collect()
    }

    /// Namespace and name of all apps.
    fn apps(self) -> impl Iterator<Item = (String, String)> {
        (0..self.namespaces)
            .flat_map(|namespace| (0..APPS).map(move |app| (tenant(namespace), format!("app-{app}"))))
    }
}

/// The name of a tenant's namespace.
fn tenant(number: usize) -> String {
    format!("{TENANT_PREFIX}{number}")
}

/// Selects pods by their app.
pub fn matching(app: &str) -> Value {
    json!({"matchLabels": {APP: app}})
}

/// A NetworkPolicy about the pods of an app.
pub fn policy(namespace: &str, name: &str, app: &str, rules: &Value) -> Policy {
    let mut spec = rules.clone();
    spec["podSelector"] = matching(app);
    network_policy::translate(PolicyId::namespaced(namespace, name), &spec).0
}

/// A ClusterNetworkPolicy of the tier `Admin` about all pods of tenants: it accepts UDP to a port from pods with this value of the label
/// `app`.
pub fn policy_of_all(name: &str, peers: &str, port: u16) -> Policy {
    let from = json!([{"pods": {"namespaceSelector": {}, "podSelector": matching(peers)}}]);
    let protocols = json!([{"udp": {"destinationPort": {"number": port}}}]);
    let spec = json!({
        "tier": "Admin", "priority": 10, "subject": {"namespaces": {"matchLabels": {TENANT: "yes"}}},
        "ingress": [{"action": "Accept", "from": from, "protocols": protocols}],
    });
    let (policy, _) = cluster_network_policy::translate(PolicyId::of_cluster(name), &spec);
    policy.expect("tier and subject can be read")
}

/// The watch event of a new or changed policy.
pub fn applied(policy: Policy) -> Event {
    Event::Policies(PolicyEvent::PolicyApplied(Box::new(policy)))
}

/// The watch event of a deleted policy.
pub fn deleted(id: PolicyId) -> Event {
    Event::Policies(PolicyEvent::PolicyDeleted(id))
}

/// The first lists of all watches.
pub fn listed(namespaces: &[String], policies: Vec<Policy>, pods: &[ClusterPod]) -> Vec<Event> {
    let namespace = |name: &String| {
        let is_tenant = name.starts_with(TENANT_PREFIX);
        let labels = is_tenant.then(|| (TENANT.to_owned(), "yes".to_owned())).into_iter().collect();
        (name.clone(), PolicyNamespace { labels, ..PolicyNamespace::default() })
    };
    let namespaces: BTreeMap<_, _> = namespaces.iter().map(namespace).collect();
    let pods = pods.iter().map(|one| (one.key.clone(), one.pod.clone())).collect();
    [
        PolicyEvent::NamespacesListed(namespaces),
        PolicyEvent::AppPodsListed(false),
        PolicyEvent::PodsListed(pods),
        PolicyEvent::PoliciesListed(PolicyKind::ClusterNetworkPolicy, Vec::new()),
        PolicyEvent::PoliciesListed(PolicyKind::NetworkPolicy, policies),
    ]
    .map(Event::Policies)
    .into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const CLUSTER: Cluster = Cluster { namespaces: 10 };

    #[test]
    fn the_full_node_has_500_pods_of_10000_and_1000_policies() {
        let (local, remote, policies) = (CLUSTER.local_pods(), CLUSTER.remote_pods(), CLUSTER.policies());
        assert_eq!((local.len(), remote.len(), policies.len()), (500, 9_500, 1_000));
        let keys: BTreeSet<_> = local.iter().chain(&remote).map(|pod| &pod.key).collect();
        let addresses: BTreeSet<_> = remote.iter().flat_map(|pod| &pod.pod.addresses).collect();
        let ids: BTreeSet<_> = policies.iter().map(|policy| &policy.id).collect();
        assert_eq!((keys.len(), addresses.len(), ids.len()), (10_000, 19_000, 1_000));
    }

    #[test]
    fn every_policy_has_one_rule_about_one_direction() {
        let directions =
            |policy: &Policy| [&policy.ingress, &policy.egress].map(|rules| rules.as_ref().map(Vec::len));
        let policies = CLUSTER.policies();
        let ingress = policies.iter().filter(|policy| directions(policy) == [Some(1), None]).count();
        let egress = policies.iter().filter(|policy| directions(policy) == [None, Some(1)]).count();
        assert_eq!((ingress, egress), (700, 300));
    }

    #[test]
    fn a_policy_of_all_pods_accepts_one_port() {
        let rules = policy_of_all("all", "client", 7_000).ingress.unwrap();
        let ports: Vec<_> = rules.iter().flat_map(|rule| rule.ports.iter().flatten()).collect();
        assert_eq!((rules.len(), ports.len()), (1, 1));
    }
}
