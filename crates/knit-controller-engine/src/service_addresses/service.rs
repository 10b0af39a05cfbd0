//! What the assignment of addresses depends on in a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The load balancer class of Services whose addresses Knit assigns.
pub const CLASS: &str = "knit.opdev.io/load-balancer";
/// The type of a Service's condition: whether Knit assigned its addresses.
pub const CONDITION: &str = "knit.opdev.io/AddressAssigned";

/// What the assignment of addresses depends on in a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceInfo {
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// When it was created, in seconds: of two Services that have one address, the older one keeps it.
    pub created: i64,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its type is LoadBalancer.
    pub is_load_balancer: bool,
    /// Its load balancer class.
    pub class: Option<String>,
    /// For each of its families, in order, whether it is IPv6.
    pub families: Vec<bool>,
    /// Whether it needs an address of each of its families (`RequireDualStack`).
    pub needs_all_families: bool,
    /// The addresses that it requests, as written: the annotation `knit.opdev.io/addresses`, or `spec.loadBalancerIP`.
    pub requested: Option<String>,
    /// The pool that it requests: the annotation `knit.opdev.io/address-pool`.
    pub pool: Option<String>,
    /// Its cluster IPs.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Its external IPs.
    pub external_ips: BTreeSet<IpAddr>,
    /// The addresses in its status.
    pub ingress: BTreeSet<IpAddr>,
    /// Whether its status has a host name as address.
    pub has_host_name: bool,
    /// The condition that Knit wrote.
    pub condition: Option<AddressCondition>,
}

/// The condition in the status of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressCondition {
    /// Whether addresses are assigned.
    pub is_assigned: bool,
    /// A stable CamelCase identifier.
    pub reason: String,
    /// The message.
    pub message: String,
    /// When `is_assigned` last changed, as written.
    pub since: String,
}

/// What Knit writes to the status of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The addresses.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Whether there is any, with reason and message; `None`: Knit has nothing to do with the Service.
    pub(super) condition: Option<(bool, String, String)>,
}

impl Assignment {
    /// Addresses of pools.
    pub(super) fn of(addresses: BTreeSet<IpAddr>, message: String) -> Self {
        Self { addresses, condition: Some((true, "AddressAssigned".to_owned(), message)) }
    }

    /// No address, and why.
    pub(super) fn rejected(reason: &str, message: String) -> Self {
        Self { addresses: BTreeSet::new(), condition: Some((false, reason.to_owned(), message)) }
    }
}

impl ServiceInfo {
    /// What Knit assigned according to the Service's status.
    pub(super) fn observed(&self) -> Assignment {
        let Some(condition) = &self.condition else { return Assignment::default() };
        let AddressCondition { is_assigned, reason, message, .. } = condition.clone();
        let addresses = if is_assigned { self.ingress.clone() } else { BTreeSet::new() };
        Assignment { addresses, condition: Some((is_assigned, reason, message)) }
    }

    /// Whether another program assigned its addresses.
    pub(super) fn is_assigned_by_other(&self) -> bool {
        let is_assigned = self.has_host_name || !self.ingress.is_empty();
        is_assigned && self.condition.as_ref().is_none_or(|condition| !condition.is_assigned)
    }
}
