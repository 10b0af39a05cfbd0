//! The form of a policy that does not depend on the kind of object that it comes from.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::labels::LabelSelector;

/// The object that a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyId {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A policy about pods of one namespace. A direction with rules allows what one of its rules, or a rule of another policy
/// about the same pod, matches, and nothing else. A direction without rules (`None`) is not restricted by this policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The object.
    pub id: PolicyId,
    /// The pods that it is about.
    pub subject: LabelSelector,
    /// Which connections to these pods are allowed.
    pub ingress: Option<Vec<Rule>>,
    /// Which connections from these pods are allowed.
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

/// Connections that are allowed: with one of these peers, and to one of these ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The other ends; `None`: any.
    pub peers: Option<Vec<Peer>>,
    /// The protocols and destination ports; `None`: any.
    pub ports: Option<Vec<PortMatch>>,
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

    /// The same policy with nothing allowed in either direction.
    #[must_use]
    pub fn closed(id: PolicyId, subject: LabelSelector) -> Self {
        Self { id, subject, ingress: Some(Vec::new()), egress: Some(Vec::new()) }
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
        write!(out, "{}/{}", self.namespace, self.name)
    }
}
