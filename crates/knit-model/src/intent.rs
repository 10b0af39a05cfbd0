//! What a dialect asks for, in words that no dialect owns.
//!
//! A dialect translates each of its objects or calls into intents; the engine turns intents and sandboxes into desired.
//! An intent says what is wanted and for which pods, never how the kernel is told.

mod defined;
mod egress;
mod limits;
mod port;
mod route;
mod routing;
mod socket;
mod span;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use defined::{Defined, PluginChainIntent, RejectedIntent};
pub use egress::{EgressGatewayIntent, LocalNode};
pub use limits::{Limits, RateIntent};
pub use port::BridgePortIntent;
pub use route::{NextHopIntent, RouteIntent};
pub use routing::{RoutingEntry, RoutingIntent, SysctlIntent, default_of, link_of};
pub use socket::{Bound, Socket, SocketIntent};
pub use span::OverlayIntent;

use crate::key::PublicKey;
use crate::link::{Attrs, Bridge, HostDevice, Kind, LinkKind, OwnerId};
use crate::name::IfName;
use crate::provenance::Provenance;
use crate::quota::QuotaIntent;
use crate::rule::Rule;
use crate::sandbox::Sandbox;

/// One thing that is asked for, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Who asks, in which field. The namespace of the object is the tenant.
    pub origin: Provenance,
    /// What is asked for.
    pub spec: IntentSpec,
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IntentSpec {
    /// A bridge on the node.
    Bridge(BridgeIntent),
    /// An interface in each pod that matches.
    Interface(Box<InterfaceIntent>),
    /// A change of an interface that others made, in each pod that matches.
    LinkChange(LinkChangeIntent),
    /// A host link that is open to tenants.
    Uplink(UplinkIntent),
    /// A named network whose ranges interfaces refer to.
    Network(NetworkIntent),
    /// A route, rule, neighbour or sysctl in each pod that matches.
    Routing(Box<RoutingIntent>),
    /// A socket that each pod that matches may ask for.
    Socket(Box<SocketIntent>),
    /// Extensions that must be registered before pods may come.
    RequiredExtensions(RequiredExtensionsIntent),
    /// At most so much in the namespace.
    Quota(QuotaIntent),
    /// The way from the cluster's network to other nodes and to the outside.
    NodeRoutes(NodeRoutesIntent),
    /// Addresses that nodes take their pods' ranges from.
    AddressPool(AddressPoolIntent),
    /// A way out of the cluster by a chosen node and address.
    EgressGateway(EgressGatewayIntent),
    /// An interface that CNI plugins make, in each pod that matches.
    PluginChain(Box<PluginChainIntent>),
    /// Something that cannot be: the pods that match are told why.
    Rejected(Box<RejectedIntent>),
}

/// Addresses that nodes take their pods' ranges from, block by block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressPoolIntent {
    /// The pool's name, which its blocks' names begin with.
    pub name: String,
    /// All of its addresses.
    pub range: IpNet,
    /// The prefix length of its blocks.
    pub block: u8,
    /// Namespaces whose pods take from it, and from no other pool of its family; none: all that no other pool names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Whether its pods have their node's address outside of the cluster; `None`: as the cluster's network says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
}

/// The way from the cluster's network to other nodes and to the outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRoutesIntent {
    /// The other nodes.
    pub nodes: Vec<PeerNode>,
    /// Whether pods have their node's address outside of the cluster, where nobody would find the way back to theirs.
    pub masquerade: bool,
    /// Ranges that pods reach with their own address all the same.
    pub inside: Vec<IpNet>,
    /// Whether pods can say nothing in the name of others.
    #[serde(default)]
    pub anti_spoofing: bool,
    /// The pools that this node's ranges are of. A family that has any gives a pod one address of whichever range has room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<IpNet>,
    /// Tunnels to nodes that share no link with this one; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<NodeTunnelIntent>,
    /// This node itself, for gateways that choose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<LocalNode>,
    /// All ways to other nodes are encrypted; `None`: none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionIntent>,
}

/// WireGuard to all other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionIntent {
    /// Its UDP port, the same on all nodes.
    pub port: u16,
    /// Addresses of this node, at most one of each family.
    pub ends: Vec<TunnelEndpoint>,
}

/// Tunnels to other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTunnelIntent {
    /// This node's name.
    pub node: String,
    /// The VXLAN's number, the same on all nodes.
    pub vni: u32,
    /// Its UDP port, the same on all nodes.
    pub port: u16,
    /// Also to nodes that share a link with this one.
    pub always: bool,
    /// Addresses of this node, at most one of each family.
    pub ends: Vec<TunnelEndpoint>,
}

/// An address of this node that tunnels begin at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelEndpoint {
    /// The address.
    pub address: IpAddr,
    /// The MTU of the link that has it.
    pub mtu: u32,
}

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerNode {
    /// Its name.
    pub name: String,
    /// The ranges of its pods.
    pub ranges: Vec<IpNet>,
    /// Its own addresses, each with the link of this node that it is on.
    pub addresses: Vec<(IpAddr, IfName)>,
    /// Its own addresses that are on no link of this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub far: Vec<IpAddr>,
    /// The public key that it has told for encrypted ways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
}

impl NodeRoutesIntent {
    /// The addresses of this node that tunnels begin at.
    pub fn ends(&self) -> impl Iterator<Item = &TunnelEndpoint> {
        let encrypted = self.encryption.iter().flat_map(|want| &want.ends);
        self.tunnel.iter().flat_map(|want| &want.ends).chain(encrypted)
    }
}

impl PeerNode {
    /// All of its own addresses.
    pub fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|(address, _)| *address).chain(self.far.iter().copied())
    }
}

/// A bridge on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeIntent {
    /// Its name. Another namespace's bridge of the same name keeps it, and this one gets a derived name.
    pub name: IfName,
    /// The ranges on it. The bridge takes the first address of each, interfaces the following ones.
    pub ranges: Vec<IpNet>,
    /// What every link has.
    pub attrs: Attrs,
    /// A bridge's own fields.
    pub bridge: Bridge,
    /// The VLANs of the node itself, as if it were a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<BridgePortIntent>,
}

/// An interface in each pod that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceIntent {
    /// Which pods of the object's namespace.
    pub pods: Selector,
    /// Its name in the pod.
    pub name: NameRule,
    /// Its kind with the kind's own fields; a kind's `parent` is left out here, see `parent`.
    pub kind: Kind,
    /// What every link has; `master` is left out here, see `master`.
    pub attrs: Attrs,
    /// What it sits on: another interface of the same pod, or an uplink of the node.
    pub parent: Option<String>,
    /// For a link with an end on the host: the bridge there (made if it is missing). For others: a bridge or VRF of the pod.
    pub master: Option<String>,
    /// For a link with an end on the host: the VLANs of that end on its bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<BridgePortIntent>,
    /// A VRF of the pod whose port it is: the name of another interface that is asked for. It never goes with a
    /// `master` inside the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// The pod of the same namespace that is a tunnel's far end; its address is found on a network that both are on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_pod: Option<String>,
    /// Where its addresses come from: one address of each range.
    pub ranges: Vec<IpNet>,
    /// A network of the same namespace whose ranges are meant; `ranges` is empty then.
    pub network: Option<String>,
    /// Addresses that are asked for by value.
    pub fixed: Vec<IpNet>,
    /// Routes in the pod; a next hop without a link means this interface. Those of the main table go into the VRF's, for
    /// a VRF and its ports.
    pub routes: Vec<RouteIntent>,
    /// Rules in the pod.
    pub rules: Vec<Rule>,
    /// The gateway of a default route through this interface.
    pub gateways: Vec<IpAddr>,
    /// Sysctls of the interface by their last words, such as `ipv6/accept_ra` or `ipv4/proxy_arp`.
    pub sysctls: BTreeMap<String, String>,
    /// How fast packets may come and go.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// What the definition of its network says, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defined: Option<Box<Defined>>,
}

/// A change of an interface that others made. Old values come back when it is no longer asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkChangeIntent {
    /// Which pods of the object's namespace.
    pub pods: Selector,
    /// The interface, usually `eth0`.
    pub name: IfName,
    /// The fields to change.
    pub attrs: Attrs,
    /// Sysctls of the interface by their last words, such as `ipv4/rp_filter`.
    pub sysctls: BTreeMap<String, String>,
    /// Routes to add in the pod; a next hop without a link means the interface that is changed.
    pub routes: Vec<RouteIntent>,
}

/// A host link that an admin opened to tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkIntent {
    /// The name that tenants use.
    pub name: String,
    /// The host's link.
    pub link: IfName,
    /// Namespaces that may use it; empty is none, `*` is all.
    pub namespaces: Vec<String>,
    /// Kinds of links that may sit on it; empty is all.
    pub kinds: Vec<String>,
    /// VLANs that may be used on it, as inclusive ranges; empty is none.
    pub vlans: Vec<(u16, u16)>,
    /// The largest MTU of a link on it; `None` is the uplink's own.
    pub max_mtu: Option<u32>,
}

/// A named network of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkIntent {
    /// The name that interfaces of the same namespace refer to.
    pub name: String,
    /// Its ranges. An interface takes one address of each; a bridge of the network takes the first.
    pub ranges: Vec<IpNet>,
    /// The node has no address on it: its pods reach each other and nothing else.
    pub isolated: bool,
    /// The MTU of its interfaces that state none.
    pub mtu: Option<u32>,
    /// It is one network on all nodes, by tunnels between them; `None`: each node has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span: Option<OverlayIntent>,
}

/// How an interface gets its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NameRule {
    /// This name.
    Exact(IfName),
    /// The text and the sandbox's number: `pc0` becomes `pc02841804`, its host end `hpc02841804`.
    Prefix(String),
}

/// At most this many bytes of a name's prefix: with `h` in front and a number of seven digits it still fits.
pub const MAX_PREFIX_BYTES: usize = 7;

/// Extensions that must be registered before pods may come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequiredExtensionsIntent {
    /// Their names.
    pub required: Vec<String>,
}

/// Which pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// Labels that must have these values.
    pub labels: BTreeMap<String, String>,
    /// More conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<Expression>,
    /// The pod with this uid and no other, whatever its labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A condition on a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expression {
    /// The label.
    pub key: String,
    /// The condition.
    pub operator: Operator,
    /// The values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Kubernetes' operators on labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// Has one of the values.
    In,
    /// Has none of the values, or not the label.
    NotIn,
    /// Has the label.
    Exists,
    /// Has not the label.
    DoesNotExist,
}

impl UplinkIntent {
    /// Whether pods of this namespace may use it.
    pub fn is_open_to(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|open| open == "*" || open == namespace)
    }

    /// Whether its link itself may be lent to a pod. Such a link is gone for all others, so that an admin has to say it in
    /// so many words.
    pub fn lends(&self) -> bool {
        self.kinds.iter().any(|kind| kind == HostDevice::NAME)
    }
}

impl NetworkIntent {
    /// The bridge on the node for a network's pairs: `vn-` and the network's name where that fits, or a stable number.
    /// The prefix keeps a tenant's network from being named like a NIC of the node.
    pub fn bridge_name(network: &str) -> String {
        let named = format!("vn-{network}");
        if IfName::new(named.as_str()).is_ok() {
            named
        } else {
            format!("vn-{}", OwnerId::derived(network).0)
        }
    }
}

impl InterfaceIntent {
    /// Whose its bridge and its addresses are, if the object that asks is of this namespace.
    pub fn tenant<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.defined.as_ref().map_or(namespace, |defined| defined.namespace.as_str())
    }
}

impl IntentSpec {
    /// The interface, if one is asked for.
    pub fn interface(&self) -> Option<&InterfaceIntent> {
        match self {
            Self::Interface(want) => Some(want),
            _ => None,
        }
    }
}

impl Selector {
    /// Pods with one label.
    pub fn label(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self { labels: BTreeMap::from([(key.into(), value.into())]), ..Self::default() }
    }

    /// One pod.
    pub fn pod(uid: impl Into<String>) -> Self {
        Self { uid: Some(uid.into()), ..Self::default() }
    }

    /// Whether the sandbox's pod, of this namespace, is meant. An empty selector means no pod, not all.
    pub fn matches(&self, namespace: &str, sandbox: &Sandbox) -> bool {
        if let Some(uid) = &self.uid {
            return sandbox.namespace == namespace && !uid.is_empty() && sandbox.uid == *uid;
        }
        let empty = self.labels.is_empty() && self.expressions.is_empty();
        let has = |(key, value): (&String, &String)| sandbox.labels.get(key) == Some(value);
        !empty
            && sandbox.namespace == namespace
            && self.labels.iter().all(has)
            && self.expressions.iter().all(|expression| expression.holds(&sandbox.labels))
    }
}

impl Expression {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_one = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => is_one,
            Operator::NotIn => !is_one,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl NameRule {
    /// The interface's name in this sandbox.
    pub fn name_in(&self, sandbox: &Sandbox) -> Result<IfName, crate::name::NameError> {
        match self {
            Self::Exact(name) => Ok(name.clone()),
            Self::Prefix(prefix) => IfName::new(format!("{prefix}{}", sandbox.number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::{Instance, SandboxId};

    fn sandbox(labels: &[(&str, &str)]) -> Sandbox {
        Sandbox {
            id: SandboxId("s".to_owned()),
            instance: Instance { boot: "b".to_owned(), cookie: 1 },
            isolation: Default::default(),
            netns: "/run/netns/s".to_owned(),
            number: 2_841_804,
            pod: "p".to_owned(),
            namespace: "cnf".to_owned(),
            uid: "u".to_owned(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            annotated: None,
        }
    }

    #[test]
    fn a_selector_means_pods_of_its_own_namespace_only() {
        let selector = Selector::label("podconfig", "sample-a");
        assert!(selector.matches("cnf", &sandbox(&[("podconfig", "sample-a"), ("x", "y")])));
        assert!(!selector.matches("other", &sandbox(&[("podconfig", "sample-a")])));
        assert!(!selector.matches("cnf", &sandbox(&[("podconfig", "sample-b")])));
        assert!(!Selector::default().matches("cnf", &sandbox(&[])));
    }

    #[test]
    fn one_pod_is_meant_by_its_uid_and_by_nothing_that_a_label_says() {
        let selector = Selector::pod("u");
        assert!(selector.matches("cnf", &sandbox(&[])));
        assert!(!selector.matches("other", &sandbox(&[])));
        assert!(!selector.matches("cnf", &Sandbox { uid: "v".to_owned(), ..sandbox(&[("uid", "u")]) }));
        assert!(!Selector::pod("").matches("cnf", &Sandbox { uid: String::new(), ..sandbox(&[]) }));
    }

    #[test]
    fn expressions_mean_what_they_mean_in_kubernetes() {
        let holds = |operator, values: &[&str], labels: &[(&str, &str)]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let expressions = vec![Expression { key: "tier".to_owned(), operator, values }];
            Selector { expressions, ..Selector::default() }.matches("cnf", &sandbox(labels))
        };
        assert!(holds(Operator::In, &["a", "b"], &[("tier", "b")]));
        assert!(!holds(Operator::In, &["a", "b"], &[]));
        assert!(holds(Operator::NotIn, &["a"], &[]));
        assert!(!holds(Operator::NotIn, &["a"], &[("tier", "a")]));
        assert!(holds(Operator::Exists, &[], &[("tier", "")]));
        assert!(holds(Operator::DoesNotExist, &[], &[]));
    }

    #[test]
    fn a_prefix_is_followed_by_the_number() {
        let name = NameRule::Prefix("pc0".to_owned()).name_in(&sandbox(&[]));
        assert_eq!(name.unwrap().as_str(), "pc02841804");
        assert!(NameRule::Prefix("ninebytes".to_owned()).name_in(&sandbox(&[])).is_err());
    }
}
