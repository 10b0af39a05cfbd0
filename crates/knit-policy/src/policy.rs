//! The form of a policy that does not depend on the kind of object that it comes from.

use std::collections::BTreeSet;
use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::labels::LabelSelector;

/// The object that a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyId {
    /// Its kind.
    pub kind: PolicyKind,
    /// Its namespace; empty for kinds without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A kind of object that policies come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PolicyKind {
    /// `networking.k8s.io/v1`: written by tenants, about pods of the own namespace.
    NetworkPolicy,
    /// `policy.networking.k8s.io/v1alpha2`: written by admins, about pods of any namespace.
    ClusterNetworkPolicy,
    /// `k8s.cni.cncf.io`: written by tenants, about the interfaces of pods of the own namespace on additional networks.
    MultiNetworkPolicy,
}

/// The group of a policy. Groups are evaluated one after the other, and in a group policies with a lower priority value first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Tier {
    /// Admins decide first. The number is the priority.
    Admin(u16),
    /// NetworkPolicies. If one of them is about a pod, what none of their rules allows is denied.
    Namespace,
    /// Admins decide what applies without a NetworkPolicy. The number is the priority.
    Baseline(u16),
}

/// A policy about pods. A direction without rules (`None`) is not restricted by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The object.
    pub id: PolicyId,
    /// Its group.
    pub tier: Tier,
    /// The additional networks that it is about, as `Kind/namespace/name`; `None`: the cluster network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<BTreeSet<String>>,
    /// The pods that it is about.
    pub subject: PodSelector,
    /// Rules for connections to these pods, in their order.
    pub ingress: Option<Vec<Rule>>,
    /// Rules for connections from these pods, in their order.
    pub egress: Option<Vec<Rule>>,
}

/// The direction of a connection as seen by the pod that a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

/// What applies to connections with one of these peers, and to one of these ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What applies.
    pub action: Action,
    /// The other ends; `None`: any.
    pub peers: Option<Vec<Peer>>,
    /// The protocols and destination ports; `None`: any.
    pub ports: Option<Vec<PortMatch>>,
}

/// What a rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// The connection is allowed.
    #[default]
    Allow,
    /// It is denied.
    Deny,
    /// The next tier decides.
    Pass,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Peer {
    /// Pods. Those on the host network are not meant.
    Pods(PodSelector),
    /// Addresses.
    Range {
        /// All addresses of this range,
        range: IpNet,
        /// except those.
        except: Vec<IpNet>,
    },
}

/// Selects pods of several namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodSelector {
    /// Which namespaces.
    pub namespaces: Namespaces,
    /// Which of their pods.
    pub pods: LabelSelector,
}

/// Selects namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Namespaces {
    /// The one with this name.
    Named(String),
    /// Those with these labels.
    Labelled(LabelSelector),
}

/// A protocol with destination ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortMatch {
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None`: any.
    pub port: Option<PortNumber>,
}

/// A destination port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PortNumber {
    /// All ports from the first to the last.
    Range(u16, u16),
    /// The port that the destination pod declares with this name.
    Named(String),
}

/// A layer 4 protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A port that a pod declares with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedPort {
    /// The name.
    pub name: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl Policy {
    /// Its rules about a direction; `None`: it does not restrict it.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// A NetworkPolicy that allows nothing in either direction.
    #[must_use]
    pub fn closed(id: PolicyId, subject: PodSelector) -> Self {
        Self {
            id,
            tier: Tier::Namespace,
            networks: None,
            subject,
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
        }
    }
}

impl PodSelector {
    /// All pods of all namespaces.
    pub fn everything() -> Self {
        Self { namespaces: Namespaces::Labelled(LabelSelector::default()), pods: LabelSelector::default() }
    }

    /// Pods of one namespace.
    pub fn in_namespace(namespace: &str, pods: LabelSelector) -> Self {
        Self { namespaces: Namespaces::Named(namespace.to_owned()), pods }
    }
}

impl PolicyId {
    /// The id of a NetworkPolicy.
    pub fn namespaced(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: PolicyKind::NetworkPolicy, namespace: namespace.into(), name: name.into() }
    }

    /// The id of a MultiNetworkPolicy.
    pub fn multi_network(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { kind: PolicyKind::MultiNetworkPolicy, namespace: namespace.into(), name: name.into() }
    }

    /// The id of a ClusterNetworkPolicy.
    pub fn of_cluster(name: impl Into<String>) -> Self {
        Self { kind: PolicyKind::ClusterNetworkPolicy, namespace: String::new(), name: name.into() }
    }
}

impl PolicyKind {
    /// All.
    pub const ALL: [Self; 3] = [Self::NetworkPolicy, Self::ClusterNetworkPolicy, Self::MultiNetworkPolicy];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::NetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::MultiNetworkPolicy => "MultiNetworkPolicy",
        }
    }
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// Its name in policies.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

impl Protocol {
    /// All.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Its number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ", self.kind.name())?;
        if !self.namespace.is_empty() {
            write!(out, "{}/", self.namespace)?;
        }
        out.write_str(&self.name)
    }
}
