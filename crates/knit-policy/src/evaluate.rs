//! The verdict on one connection, with its reason.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Serialize;

use crate::index::PolicyIndex;
use crate::isolation::Segment;
use crate::pods::PodView;
use crate::policy::{Action, Direction, Peer, Policy, PolicyId, PortMatch, PortNumber, Rule, Tier};

/// A connection after translation by Services: the destination is the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The address of the initiator.
    pub source: IpAddr,
    /// The address of the other end.
    pub destination: IpAddr,
    /// The number of the layer 4 protocol.
    pub protocol: u8,
    /// The destination port; 0 for protocols without ports.
    pub port: u16,
    /// Whether a Service translated its destination.
    pub through_service: bool,
}

/// The verdict in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// That of the policies about the source.
    pub egress: Verdict,
    /// That of the policies about the destination.
    pub ingress: Verdict,
    /// The segment of the destination, if it is isolated from the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolated: Option<Segment>,
}

/// The verdict of the policies about one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Allowed: no policy restricts that end or has a rule that matches, or it is no pod.
    Unrestricted,
    /// Allowed by a rule.
    Allowed {
        /// The policy.
        policy: PolicyId,
        /// The number of the rule in its direction.
        rule: usize,
    },
    /// Denied by a rule.
    DeniedBy {
        /// The policy.
        policy: PolicyId,
        /// The number of the rule in its direction.
        rule: usize,
    },
    /// Allowed, because both ends are the same pod.
    Itself,
    /// Denied: none of the NetworkPolicies has a rule that matches.
    Denied {
        /// The policies about that end.
        policies: Vec<PolicyId>,
    },
}

impl Verdict {
    /// Whether the connection is allowed.
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Self::Denied { .. } | Self::DeniedBy { .. })
    }
}

impl Decision {
    /// Whether both ends allow the connection.
    pub fn is_allowed(&self) -> bool {
        self.egress.is_allowed() && self.ingress.is_allowed() && self.isolated.is_none()
    }
}

impl PolicyIndex {
    /// The verdict on a connection on the cluster network.
    pub fn evaluate(&self, flow: &Flow) -> Decision {
        Decision {
            egress: self.verdict(None, flow, Direction::Egress),
            ingress: self.verdict(None, flow, Direction::Ingress),
            isolated: self.isolating(flow),
        }
    }

    /// The verdict on a connection on an additional network, given as `Kind/namespace/name`.
    pub fn evaluate_on(&self, network: &str, flow: &Flow) -> Decision {
        let networks = [network.to_owned()];
        let verdict = |direction| self.verdict(Some(&networks), flow, direction);
        Decision { egress: verdict(Direction::Egress), ingress: verdict(Direction::Ingress), isolated: None }
    }

    /// The segment that isolates the destination from the source, which is a pod.
    fn isolating(&self, flow: &Flow) -> Option<Segment> {
        let pod = self.pod_at(flow.destination, None)?;
        let segment = self.segment_of(pod).filter(|_| !flow.through_service)?;
        let source = self.pod_at(flow.source, None)?;
        (!self.selects_pod(&segment.members(), source)).then_some(segment)
    }

    /// The verdict about one end on these additional networks, or on the cluster network.
    fn verdict(&self, networks: Option<&[String; 1]>, flow: &Flow, direction: Direction) -> Verdict {
        let end = match direction {
            Direction::Ingress => flow.destination,
            Direction::Egress => flow.source,
        };
        let on = networks.map(|networks| networks.iter().cloned().collect());
        let Some(pod) = self.pod_at(end, on.as_ref()) else { return Verdict::Unrestricted };
        let policies = match networks {
            None => self.about(&pod.group().key, direction),
            Some(networks) => self.about_on(pod, networks, direction),
        };
        if policies.is_empty() {
            return Verdict::Unrestricted;
        }
        if flow.source == flow.destination {
            return Verdict::Itself;
        }
        let is_namespace = |policy: &&&Policy| policy.tier == Tier::Namespace;
        let has_namespace = policies.iter().any(|policy| policy.tier == Tier::Namespace);
        let mut all = policies.iter().filter(|one| !has_namespace || one.tier <= Tier::Namespace).peekable();
        while let Some(policy) = all.next() {
            let rules = policy.rules(direction).unwrap_or_default();
            let Some(rule) = rules.iter().position(|rule| self.is_matched(policy, rule, flow, direction))
            else {
                continue;
            };
            let id = policy.id.clone();
            match rules[rule].action {
                Action::Allow => return Verdict::Allowed { policy: id, rule },
                Action::Deny => return Verdict::DeniedBy { policy: id, rule },
                Action::Pass if policy.tier > Tier::Namespace => return Verdict::Unrestricted,
                Action::Pass => while all.next_if(|next| next.tier < Tier::Namespace).is_some() {},
            }
        }
        if !has_namespace {
            return Verdict::Unrestricted;
        }
        let policies = policies.iter().filter(is_namespace).map(|policy| policy.id.clone());
        Verdict::Denied { policies: policies.collect() }
    }

    pub(crate) fn is_matched(&self, policy: &Policy, rule: &Rule, flow: &Flow, direction: Direction) -> bool {
        let on = policy.networks.as_ref();
        let peer = match direction {
            Direction::Ingress => flow.source,
            Direction::Egress => flow.destination,
        };
        let is_peer = |one: &Peer| match one {
            Peer::Pods(selector) => self.pods_at(peer, on).iter().any(|pod| self.selects_pod(selector, *pod)),
            Peer::Range { range, except } => {
                range.contains(&peer) && !except.iter().any(|hole| hole.contains(&peer))
            }
        };
        rule.peers.as_ref().is_none_or(|peers| peers.iter().any(is_peer))
            && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(|port| self.is_port(on, port, flow)))
    }

    fn is_port(&self, on: Option<&BTreeSet<String>>, port: &PortMatch, flow: &Flow) -> bool {
        let is_declared = |name: &String| {
            let pods = self.pods_at(flow.destination, on);
            let mut ports = pods.iter().flat_map(|pod| pod.ports());
            ports.any(|one| one.name == *name && one.protocol == port.protocol && one.port == flow.port)
        };
        flow.protocol == port.protocol.number()
            && match &port.port {
                None => true,
                Some(PortNumber::Range(first, last)) => (*first..=*last).contains(&flow.port),
                Some(PortNumber::Named(name)) => is_declared(name),
            }
    }

    /// The first pod with an address on these additional networks, or on the cluster network.
    pub(crate) fn pod_at(&self, address: IpAddr, networks: Option<&BTreeSet<String>>) -> Option<PodView<'_>> {
        let all = self.pods_at(address, networks).into_iter();
        all.min_by_key(|pod| (pod.namespace(), pod.name()))
    }

    /// The pods with an address on these additional networks, or on the cluster network.
    fn pods_at(&self, address: IpAddr, networks: Option<&BTreeSet<String>>) -> Vec<PodView<'_>> {
        match networks {
            None => self.pods.at(address).collect(),
            Some(networks) => {
                let all = self.pods.with_networks();
                all.filter(|pod| pod.addresses_on(networks).contains(&address)).collect()
            }
        }
    }
}
