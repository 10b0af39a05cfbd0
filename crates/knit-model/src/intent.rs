//! Intents: what an input dialect (CRD, KNI, CNI, NRI) requests, in a form that is independent of the dialect.
//!
//! A dialect translates each of its objects or calls into intents; the engine resolves intents and sandboxes into desired
//! state. An intent states what is requested and for which pods, never the kernel operations.

mod bandwidth;
mod bridge_port;
mod egress;
mod network_definition;
mod overlay;
mod route;
mod routing;
mod service_addresses;
mod socket;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use bandwidth::{BandwidthLimits, RateIntent};
pub use bridge_port::BridgePortIntent;
pub use egress::{EgressGatewayIntent, LocalNode};
pub use network_definition::{NetworkDefinition, PluginChainIntent, RejectedIntent};
pub use overlay::OverlayIntent;
pub use route::{NextHopIntent, RouteIntent};
pub use routing::{RoutingEntry, RoutingIntent, SysctlIntent};
pub use service_addresses::ServiceAddressIntent;
pub use socket::{Socket, SocketBinding, SocketIntent};

use crate::key::PublicKey;
use crate::link::{Attrs, Bridge, HostDevice, Kind, LinkKind, OwnerId};
use crate::name::IfName;
use crate::provenance::Provenance;
use crate::quota::QuotaIntent;
use crate::rule::Rule;
use crate::sandbox::Sandbox;

/// One request and its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The object and field that the request comes from. The namespace of the object is the tenant.
    pub origin: Provenance,
    /// What is requested.
    pub spec: IntentSpec,
}

/// What can be requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IntentSpec {
    /// A bridge on the node.
    Bridge(BridgeIntent),
    /// An interface in each selected pod.
    Interface(Box<InterfaceIntent>),
    /// A change of an interface that Knit did not create, in each selected pod.
    LinkChange(LinkChangeIntent),
    /// A host link that tenants may use as parent.
    Uplink(UplinkIntent),
    /// A named network with address ranges that interfaces refer to.
    Network(NetworkIntent),
    /// A view of the cluster network or of a part of it. Nothing is created for it.
    Segment(SegmentIntent),
    /// A route, rule, neighbour or sysctl in each selected pod.
    Routing(Box<RoutingIntent>),
    /// A privileged socket that each selected pod may request.
    Socket(Box<SocketIntent>),
    /// Extensions that must be registered before pods are admitted.
    RequiredExtensions(RequiredExtensionsIntent),
    /// Limits on what a namespace may use.
    Quota(QuotaIntent),
    /// Inter-node routing of the cluster network, masquerade and anti-spoofing.
    NodeRoutes(NodeRoutesIntent),
    /// A pool of addresses that nodes claim their pod blocks from.
    AddressPool(AddressPoolIntent),
    /// Egress from the cluster through a chosen node and source address (SNAT).
    EgressGateway(EgressGatewayIntent),
    /// A pool of load balancer addresses of Services.
    ServiceAddresses(ServiceAddressIntent),
    /// An interface that a chain of CNI plugins creates in each selected pod.
    PluginChain(Box<PluginChainIntent>),
    /// A request that was rejected; the problem is reported on the selected pods.
    Rejected(Box<RejectedIntent>),
}

impl IntentSpec {
    /// The pods that it selects; `None` for an intent that concerns the node or the namespace.
    pub fn pods(&self) -> Option<&Selector> {
        match self {
            Self::Interface(spec) => Some(&spec.pods),
            Self::LinkChange(spec) => Some(&spec.pods),
            Self::Routing(spec) => Some(&spec.pods),
            Self::Socket(spec) => Some(&spec.pods),
            Self::PluginChain(spec) => Some(&spec.pods),
            Self::Rejected(spec) => Some(&spec.pods),
            Self::Bridge(_)
            | Self::Uplink(_)
            | Self::Network(_)
            | Self::Segment(_)
            | Self::RequiredExtensions(_)
            | Self::Quota(_)
            | Self::NodeRoutes(_)
            | Self::AddressPool(_)
            | Self::EgressGateway(_)
            | Self::ServiceAddresses(_) => None,
        }
    }
}

/// A pool of addresses that nodes claim blocks of for their pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressPoolIntent {
    /// Name of the pool and prefix of the names of its blocks.
    pub name: String,
    /// The address range of the pool.
    pub range: IpNet,
    /// Prefix length of its blocks.
    pub block: u8,
    /// Namespaces whose pods allocate from this pool only. Empty: all namespaces that no other pool of the family names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Whether packets of its pods to destinations outside the cluster are masqueraded; `None`: the cluster network's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<bool>,
}

/// Inter-node routing of the cluster network, masquerade and anti-spoofing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRoutesIntent {
    /// Whether packets to destinations outside the cluster are masqueraded (SNAT to the node's address).
    pub masquerade: bool,
    /// Destinations outside the cluster that are exempt from masquerade.
    pub no_masquerade_ranges: Vec<IpNet>,
    /// Whether pods are prevented from spoofing source addresses.
    #[serde(default)]
    pub anti_spoofing: bool,
    /// Whether network policies are enforced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_policy: bool,
    /// Whether Services are translated, in place of kube-proxy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub services: bool,
    /// The pools that this node's blocks belong to. In a family with pools a pod gets one address from any block with free addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<IpNet>,
    /// VXLAN tunnels to nodes that are not on a common link; `None`: no tunnels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<NodeTunnelIntent>,
    /// This node, for egress gateways that select it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_node: Option<LocalNode>,
    /// WireGuard encryption of all traffic to other nodes; `None`: unencrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionIntent>,
}

/// WireGuard encryption between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncryptionIntent {
    /// UDP port, the same on all nodes.
    pub port: u16,
    /// Tunnel endpoints of this node, at most one of each family.
    pub endpoints: Vec<TunnelEndpoint>,
}

/// VXLAN tunnels to other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTunnelIntent {
    /// This node's name.
    pub node: String,
    /// VXLAN network identifier, the same on all nodes.
    pub vni: u32,
    /// UDP port, the same on all nodes.
    pub port: u16,
    /// Whether nodes on a common link are reached through the tunnel as well.
    pub always: bool,
    /// Tunnel endpoints of this node, at most one of each family.
    pub endpoints: Vec<TunnelEndpoint>,
}

/// An address of this node that is the local endpoint of tunnels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelEndpoint {
    /// The address.
    pub address: IpAddr,
    /// MTU of the link that has the address.
    pub mtu: u32,
}

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerNode {
    /// Its name.
    pub name: String,
    /// Address ranges of its pods.
    pub ranges: Vec<IpNet>,
    /// Its node addresses that are directly reachable, each with the link of this node.
    pub addresses: Vec<(IpAddr, IfName)>,
    /// Its node addresses that are not directly reachable on a link of this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub off_link_addresses: Vec<IpAddr>,
    /// The WireGuard public key that it has published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
}

impl NodeRoutesIntent {
    /// The local endpoints of all tunnels, VXLAN and WireGuard.
    pub fn tunnel_endpoints(&self) -> impl Iterator<Item = &TunnelEndpoint> {
        let encrypted = self.encryption.iter().flat_map(|intent| &intent.endpoints);
        self.tunnel.iter().flat_map(|intent| &intent.endpoints).chain(encrypted)
    }
}

impl PeerNode {
    /// All of its node addresses.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|(address, _)| *address).chain(self.off_link_addresses.iter().copied())
    }
}

/// A bridge on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeIntent {
    /// Requested name. If a bridge of another namespace already has it, this one gets a derived name.
    pub name: IfName,
    /// Address ranges. The bridge has the first address of each, interfaces are allocated the following ones.
    pub ranges: Vec<IpNet>,
    /// Attributes that every link has.
    pub attrs: Attrs,
    /// Bridge-specific fields.
    pub bridge: Bridge,
    /// VLANs of the bridge's own (host) port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<BridgePortIntent>,
}

/// An interface in each selected pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceIntent {
    /// Selects pods of the object's namespace.
    pub pods: Selector,
    /// Name in the pod.
    pub name: NameRule,
    /// Link kind and its fields, without the kind's `parent` (see `parent`).
    pub kind: Kind,
    /// Attributes that every link has, without `master` (see `master`).
    pub attrs: Attrs,
    /// Parent: another interface of the same pod, or an Uplink of the node.
    pub parent: Option<String>,
    /// For a link with a host end: the bridge on the host, created if missing. For others: a bridge or VRF in the pod.
    pub master: Option<String>,
    /// For a link with a host end: VLANs of that bridge port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<BridgePortIntent>,
    /// VRF of the pod that the interface belongs to, by the name of another requested interface. Mutually exclusive with
    /// a `master` inside the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Other interfaces of the pod that are ports of this one, by the names with which they are requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Pod of the same namespace that is the remote endpoint of a tunnel; its address is looked up on a common network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_pod: Option<String>,
    /// Ranges to allocate from: one address of each.
    pub ranges: Vec<IpNet>,
    /// Network of the same namespace whose ranges are used; `ranges` is empty then.
    pub network: Option<String>,
    /// Static addresses.
    pub fixed: Vec<IpNet>,
    /// Routes in the pod; a next hop without a link uses this interface. For a VRF and its ports, routes of the main table
    /// are placed in the VRF's table.
    pub routes: Vec<RouteIntent>,
    /// Policy rules in the pod.
    pub rules: Vec<Rule>,
    /// Gateways of default routes through this interface.
    pub gateways: Vec<IpAddr>,
    /// Sysctls of the interface by family and name, such as `ipv6/accept_ra` or `ipv4/proxy_arp`.
    pub sysctls: BTreeMap<String, String>,
    /// Bandwidth limits.
    #[serde(default, skip_serializing_if = "BandwidthLimits::is_empty")]
    pub limits: BandwidthLimits,
    /// Settings from a network definition, if the interface is attached to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Box<NetworkDefinition>>,
}

/// A change of an interface that Knit did not create. The old values are restored once the intent is withdrawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkChangeIntent {
    /// Selects pods of the object's namespace.
    pub pods: Selector,
    /// The interface, usually `eth0`.
    pub name: IfName,
    /// The fields to change.
    pub attrs: Attrs,
    /// Sysctls of the interface by family and name, such as `ipv4/rp_filter`.
    pub sysctls: BTreeMap<String, String>,
    /// Routes to add in the pod; a next hop without a link uses the changed interface.
    pub routes: Vec<RouteIntent>,
}

/// A host link that an administrator offers to tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkIntent {
    /// Name that tenants refer to.
    pub name: String,
    /// The link on the host.
    pub link: IfName,
    /// Namespaces that may use it; empty: none, `*`: all.
    pub namespaces: Vec<String>,
    /// Link kinds that may be created on it; empty: all.
    pub kinds: Vec<String>,
    /// VLANs that may be used on it, as inclusive ranges; empty: none.
    pub vlans: Vec<(u16, u16)>,
    /// Largest MTU of a link on it; `None`: the uplink's MTU.
    pub max_mtu: Option<u32>,
}

/// A named network of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkIntent {
    /// Name that interfaces of the same namespace refer to.
    pub name: String,
    /// Address ranges. An interface is allocated one address of each; the network's bridge has the first one.
    pub ranges: Vec<IpNet>,
    /// Whether the node has no address on it, so that pods reach only each other.
    pub isolated: bool,
    /// MTU of interfaces that do not state one.
    pub mtu: Option<u32>,
    /// Overlay between all nodes; `None`: the network is local to each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<OverlayIntent>,
}

/// A view of the cluster network, or of a part of it: no interface can be attached to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentIntent {
    /// Its name, which is taken for networks of the same namespace.
    pub name: String,
}

/// How an interface gets its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NameRule {
    /// This name.
    Exact(IfName),
    /// Prefix followed by the sandbox's number: `pc0` becomes `pc02841804`, its host end `hpc02841804`.
    Prefix(String),
}

/// Maximum length of a name prefix: with `h` in front and a number of seven digits it still fits `IFNAMSIZ`.
pub const MAX_PREFIX_BYTES: usize = 7;

/// Extensions that must be registered before pods are admitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequiredExtensionsIntent {
    /// Their names.
    pub required: Vec<String>,
}

/// Selects pods of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// Labels with their required values.
    pub labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expressions: Vec<LabelRequirement>,
    /// The pod with this UID only, regardless of labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A requirement on a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelRequirement {
    /// The label key.
    pub key: String,
    /// The operator.
    pub operator: RequirementOperator,
    /// The values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Operators of Kubernetes label selectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequirementOperator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl UplinkIntent {
    /// Whether pods of this namespace may use it.
    pub fn is_open_to(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|open| open == "*" || open == namespace)
    }

    /// Whether the link itself may be moved into a pod (host-device). It is lost to all other users then, so the kind must
    /// be listed explicitly.
    pub fn allows_device_move(&self) -> bool {
        self.kinds.iter().any(|kind| kind == HostDevice::NAME)
    }
}

impl NetworkIntent {
    /// Name of the network's bridge on the node: `vn-` and the network's name if that fits, otherwise `vn-` and a stable
    /// hash. The prefix prevents a tenant from taking the name of a NIC of the node.
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
    /// The namespace that owns its bridge and addresses, for an object of this namespace.
    pub fn tenant<'a>(&'a self, namespace: &'a str) -> &'a str {
        self.definition.as_ref().map_or(namespace, |defined| defined.namespace.as_str())
    }
}

impl IntentSpec {
    /// The interface intent, if it is one.
    pub fn interface(&self) -> Option<&InterfaceIntent> {
        match self {
            Self::Interface(interface) => Some(interface),
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

    /// Whether it selects the sandbox's pod, for an object of this namespace. An empty selector matches no pod.
    pub fn matches(&self, namespace: &str, sandbox: &Sandbox) -> bool {
        if let Some(uid) = &self.uid {
            return sandbox.namespace == namespace && !uid.is_empty() && sandbox.uid == *uid;
        }
        sandbox.namespace == namespace && self.matches_labels(&sandbox.labels)
    }

    /// Whether it selects an object with these labels. An empty selector matches nothing.
    pub fn matches_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let empty = self.labels.is_empty() && self.expressions.is_empty();
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        !empty
            && self.labels.iter().all(has)
            && self.expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_one = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            RequirementOperator::In => is_one,
            RequirementOperator::NotIn => !is_one,
            RequirementOperator::Exists => value.is_some(),
            RequirementOperator::DoesNotExist => value.is_none(),
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
    use crate::sandbox::{SandboxId, SandboxInstance};

    fn sandbox(labels: &[(&str, &str)]) -> Sandbox {
        Sandbox {
            id: SandboxId("s".to_owned()),
            instance: SandboxInstance { boot: "b".to_owned(), cookie: 1 },
            isolation: Default::default(),
            netns: "/run/netns/s".to_owned(),
            number: 2_841_804,
            pod: "p".to_owned(),
            namespace: "cnf".to_owned(),
            uid: "u".to_owned(),
            labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            annotated_limits: None,
        }
    }

    #[test]
    fn a_selector_matches_only_pods_of_its_namespace() {
        let selector = Selector::label("podconfig", "sample-a");
        assert!(selector.matches("cnf", &sandbox(&[("podconfig", "sample-a"), ("x", "y")])));
        assert!(!selector.matches("other", &sandbox(&[("podconfig", "sample-a")])));
        assert!(!selector.matches("cnf", &sandbox(&[("podconfig", "sample-b")])));
        assert!(!Selector::default().matches("cnf", &sandbox(&[])));
    }

    #[test]
    fn a_uid_selector_ignores_labels() {
        let selector = Selector::pod("u");
        assert!(selector.matches("cnf", &sandbox(&[])));
        assert!(!selector.matches("other", &sandbox(&[])));
        assert!(!selector.matches("cnf", &Sandbox { uid: "v".to_owned(), ..sandbox(&[("uid", "u")]) }));
        assert!(!Selector::pod("").matches("cnf", &Sandbox { uid: String::new(), ..sandbox(&[]) }));
    }

    #[test]
    fn requirements_follow_kubernetes_semantics() {
        let holds = |operator, values: &[&str], labels: &[(&str, &str)]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let expressions = vec![LabelRequirement { key: "tier".to_owned(), operator, values }];
            Selector { expressions, ..Selector::default() }.matches("cnf", &sandbox(labels))
        };
        assert!(holds(RequirementOperator::In, &["a", "b"], &[("tier", "b")]));
        assert!(!holds(RequirementOperator::In, &["a", "b"], &[]));
        assert!(holds(RequirementOperator::NotIn, &["a"], &[]));
        assert!(!holds(RequirementOperator::NotIn, &["a"], &[("tier", "a")]));
        assert!(holds(RequirementOperator::Exists, &[], &[("tier", "")]));
        assert!(holds(RequirementOperator::DoesNotExist, &[], &[]));
    }

    #[test]
    fn a_name_prefix_is_followed_by_the_sandbox_number() {
        let name = NameRule::Prefix("pc0".to_owned()).name_in(&sandbox(&[]));
        assert_eq!(name.unwrap().as_str(), "pc02841804");
        assert!(NameRule::Prefix("ninebytes".to_owned()).name_in(&sandbox(&[])).is_err());
    }
}
