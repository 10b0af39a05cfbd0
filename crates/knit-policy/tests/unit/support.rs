//! A small cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;

use knit_policy::{
    DropLogTarget, Flow, LocalPod, NamedPort, PodKey, PolicyId, PolicyIndex, PolicyPod, Protocol,
    cluster_network_policy, network_policy,
};
use serde_json::Value;

use crate::packets::Tables;

/// A pod with addresses of both families.
#[derive(Debug)]
pub struct TestPod {
    pub namespace: String,
    pub name: String,
    pub labels: Vec<(String, String)>,
    /// The last part of its addresses.
    pub number: u8,
    /// Its port with the name `web`.
    pub web: Option<u16>,
}

impl TestPod {
    pub fn v4(&self) -> IpAddr {
        IpAddr::from([10, 75, 0, self.number])
    }

    pub fn v6(&self) -> IpAddr {
        IpAddr::from([0xfd75, 0, 0, 0, 0, 0, 0, u16::from(self.number)])
    }

    pub fn key(&self) -> PodKey {
        PodKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    pub fn pod(&self) -> PolicyPod {
        let web = self.web.map(|port| NamedPort { name: "web".to_owned(), protocol: Protocol::Tcp, port });
        PolicyPod {
            uid: format!("uid-{}", self.name),
            labels: self.labels.iter().cloned().collect(),
            addresses: vec![self.v4(), self.v6()],
            ports: web.into_iter().collect(),
        }
    }
}

/// Adds or replaces a NetworkPolicy.
pub fn apply(index: &mut PolicyIndex, namespace: &str, name: &str, spec: &Value) {
    let id = PolicyId::namespaced(namespace, name);
    let (policy, warning) = network_policy::translate(id, spec);
    assert_eq!(warning, None, "{spec}");
    index.apply_policy(policy);
}

/// Adds or replaces a ClusterNetworkPolicy.
pub fn apply_cluster(index: &mut PolicyIndex, name: &str, spec: &Value) {
    let (policy, warnings) = cluster_network_policy::translate(PolicyId::of_cluster(name), spec);
    assert!(warnings.is_empty(), "{spec}: {warnings:?}");
    index.apply_policy(policy.unwrap());
}

/// The tables of a node that has these pods.
pub fn tables<'a>(index: &mut PolicyIndex, pods: impl IntoIterator<Item = &'a TestPod>) -> Tables {
    tables_with_logs(index, pods, &BTreeSet::new())
}

/// The same, with logs of dropped packets.
pub fn tables_with_logs<'a>(
    index: &mut PolicyIndex,
    pods: impl IntoIterator<Item = &'a TestPod>,
    targets: &BTreeSet<DropLogTarget>,
) -> Tables {
    let pods: Vec<&TestPod> = pods.into_iter().collect();
    let uids: Vec<String> = pods.iter().map(|pod| pod.pod().uid).collect();
    let local = pods.iter().zip(&uids).map(|(pod, uid)| {
        (LocalPod { namespace: &pod.namespace, name: &pod.name, uid }, vec![pod.v4(), pod.v6()])
    });
    let local: Vec<_> = local.collect();
    Tables::with_logs(index, &local, targets)
}

pub fn tcp(source: IpAddr, destination: IpAddr, port: u16) -> Flow {
    Flow { source, destination, protocol: 6, port, through_service: false }
}
