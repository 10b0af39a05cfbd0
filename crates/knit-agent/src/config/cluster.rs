//! The configuration of the cluster network, the default network of all pods.

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::{EncryptionIntent, NodeRoutesIntent, NodeTunnelIntent, TunnelEndpoint};
use knit_model::link::{Vxlan, WireGuard};
use serde::{Deserialize, Serialize};

use crate::cluster_network::BRIDGE;
use crate::daemon::ClusterNetworkObject;

/// The default network of all pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClusterNetworkConfig {
    /// Whether it exists. Without it every attach has to name a network.
    pub enabled: bool,
    /// Its ranges: a pod gets one address of each, the bridge has the first. With the profile `primary` the node's `spec.podCIDRs` are
    /// used instead.
    pub ranges: Vec<IpNet>,
    /// Its bridge on the node, at most 15 bytes.
    pub bridge: String,
    /// The MTU of its interfaces, 68 to 65535. Default: 1500; with the profile `primary`, that of the node's link less the overhead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether traffic from pods to destinations outside the cluster is masqueraded (SNAT to the node's address).
    pub masquerade: bool,
    /// Destinations that are not masqueraded, in addition to all pods and nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub no_masquerade_ranges: Vec<IpNet>,
    /// Whether packets with spoofed source addresses are dropped. Default: only with the profile `primary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_spoofing: Option<bool>,
    /// Whether NetworkPolicies are enforced, with the profile `primary`.
    pub network_policy: bool,
    /// What translates the addresses of Services, with the profile `primary`. Must be the same on all nodes, except while a
    /// cluster is moved.
    pub service_proxy: ServiceProxy,
    /// The transport to pods of other nodes, with the profile `primary`. Must be the same on all nodes.
    pub transport: Transport,
    /// The VXLAN between nodes. Must be the same on all nodes.
    pub vxlan: VxlanConfig,
    /// Whether packets between nodes are encrypted, with the profile `primary`. Must be the same on all nodes.
    pub encryption: Encryption,
    /// WireGuard between nodes. Must be the same on all nodes.
    pub wireguard: WireGuardConfig,
    /// The data path between pods of this node. Needs a restart.
    pub data_path: DataPath,
}

/// What translates the addresses of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceProxy {
    /// kube-proxy, which has to run on the node.
    #[default]
    KubeProxy,
    /// The agent. kube-proxy must not run on the node.
    Knit,
}

/// Encryption of packets between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// No encryption.
    #[default]
    None,
    /// WireGuard to all other nodes, for every transport. Pods of a node without WireGuard are unreachable.
    WireGuard,
}

/// WireGuard between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WireGuardConfig {
    /// The UDP port.
    pub port: u16,
}

/// The data path between pods of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// `ebpf` with the profile `primary`, otherwise `bridge`.
    #[default]
    Auto,
    /// The Linux bridge.
    Bridge,
    /// TCP between pods takes an eBPF fast path, everything else the bridge. Requires `antiSpoofing`. Falls back to the bridge on kernels
    /// that lack a feature.
    Ebpf,
}

/// The transport to pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Routes to nodes on the same link, VXLAN to all others.
    #[default]
    Auto,
    /// Routes only.
    Native,
    /// VXLAN to all nodes.
    Vxlan,
}

/// The VXLAN between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct VxlanConfig {
    /// The VNI, 1 to 16777215.
    pub vni: u32,
    /// The UDP port.
    pub port: u16,
}

impl Default for ClusterNetworkConfig {
    fn default() -> Self {
        let range = |text: &str| text.parse().expect("the default ranges are prefixes");
        Self {
            enabled: true,
            // Private (RFC 1918) and unique local (RFC 4193) ranges that neither the usual pod and service ranges of Kubernetes nor the
            // bridges of container runtimes use.
            ranges: vec![range("10.75.0.0/16"), range("fd75:6b6e:6974::/64")],
            bridge: BRIDGE.to_owned(),
            mtu: None,
            masquerade: false,
            no_masquerade_ranges: Vec::new(),
            anti_spoofing: None,
            network_policy: true,
            service_proxy: ServiceProxy::default(),
            transport: Transport::default(),
            vxlan: VxlanConfig::default(),
            encryption: Encryption::default(),
            wireguard: WireGuardConfig::default(),
            data_path: DataPath::default(),
        }
    }
}

impl Default for VxlanConfig {
    /// Avoids the values of other networks, because Knit may run next to one or replace it node by node. Flannel and Cilium use port 8472,
    /// Calico, Docker and tenant VXLANs 4789; Flannel's VNI is 1, Calico's 4096. The port is below the ephemeral and NodePort ranges.
    fn default() -> Self {
        Self { vni: 7_500, port: 7_475 }
    }
}

impl Default for WireGuardConfig {
    /// Avoids the ports of others: Calico, Flannel and tenant tunnels use 51820, Cilium 51871.
    fn default() -> Self {
        Self { port: 7_476 }
    }
}

impl ClusterNetworkConfig {
    /// The routes to other nodes.
    pub(crate) fn node_routes(&self, node: &str, ends: Vec<TunnelEndpoint>) -> NodeRoutesIntent {
        let is_encrypted = self.encryption == Encryption::WireGuard;
        let has_tunnels = !is_encrypted && self.transport != Transport::Native;
        let encryption =
            is_encrypted.then(|| EncryptionIntent { port: self.wireguard.port, endpoints: ends.clone() });
        let tunnel = has_tunnels.then(|| NodeTunnelIntent {
            node: node.to_owned(),
            vni: self.vxlan.vni,
            port: self.vxlan.port,
            always: self.transport == Transport::Vxlan,
            endpoints: ends,
        });
        NodeRoutesIntent {
            masquerade: self.masquerade,
            no_masquerade_ranges: self.no_masquerade_ranges.clone(),
            tunnel,
            encryption,
            pools: Vec::new(),
            anti_spoofing: self.anti_spoofing.unwrap_or(true),
            network_policy: self.network_policy,
            services: self.service_proxy == ServiceProxy::Knit,
            local_node: None,
        }
    }

    /// The MTU of pods: the configured one, or what fits into every possible transport. Depends only on this node, so that it does not
    /// change when nodes join.
    pub(crate) fn mtu_over(&self, ends: &[TunnelEndpoint]) -> Option<u32> {
        let first = ends.iter().min_by_key(|end| end.address.is_ipv6());
        let overhead = |is_ipv6: bool| match (self.encryption, self.transport) {
            (Encryption::WireGuard, _) => WireGuard::overhead_over(is_ipv6),
            (Encryption::None, Transport::Native) => 0,
            (Encryption::None, Transport::Auto | Transport::Vxlan) => Vxlan::overhead_over(is_ipv6),
        };
        let over = |end: &TunnelEndpoint| end.mtu.saturating_sub(overhead(end.address.is_ipv6()));
        self.mtu.or_else(|| first.map(over))
    }

    /// The network of this configuration without other nodes. Validates every value.
    pub(super) fn cluster_network_object(&self) -> Result<ClusterNetworkObject, String> {
        let at = |key: &str, why: String| format!("clusterNetwork.{key}: {why}");
        let bridge = IfName::new(self.bridge.as_str()).map_err(|why| at("bridge", why.to_string()))?;
        if self.ranges.is_empty() {
            return Err(at("ranges", "at least one range is required".to_owned()));
        }
        for (index, range) in self.ranges.iter().enumerate() {
            if *range != range.trunc() {
                let why = format!("{range} has host bits set: the network is {}", range.trunc());
                return Err(at("ranges", why));
            }
            let before = &self.ranges[..index];
            if let Some(other) = before.iter().find(|other| knit_ipam::overlaps(**other, *range)) {
                return Err(at("ranges", format!("{range} overlaps {other}")));
            }
            if let Some(why) = knit_ipam::overlap_message(*range, &knit_ipam::overlap::reserved_ranges()) {
                return Err(at("ranges", why));
            }
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !(68..=65_535).contains(mtu)) {
            return Err(at("mtu", format!("{mtu} is not between 68 and 65535")));
        }
        if !(1..1 << 24).contains(&self.vxlan.vni) {
            let why = format!("{} is not between 1 and 16777215", self.vxlan.vni);
            return Err(at("vxlan.vni", why));
        }
        if self.vxlan.port == 0 {
            return Err(at("vxlan.port", "0 is not a valid port".to_owned()));
        }
        if self.wireguard.port == 0 {
            return Err(at("wireguard.port", "0 is not a valid port".to_owned()));
        }
        // Without a cluster there are no other nodes.
        let anti_spoofing = self.anti_spoofing.unwrap_or(false);
        let routes = NodeRoutesIntent {
            tunnel: None,
            encryption: None,
            anti_spoofing,
            network_policy: false,
            services: false,
            ..self.node_routes("", Vec::new())
        };
        let routes = (routes != NodeRoutesIntent::default()).then_some(&routes);
        Ok(ClusterNetworkObject::new(&self.ranges, &bridge, self.mtu, routes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_replaces_the_vxlan_tunnel() {
        let end = TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 };
        let routes = |encryption, transport| {
            let config = ClusterNetworkConfig { encryption, transport, ..ClusterNetworkConfig::default() };
            let routes = config.node_routes("a", vec![end.clone()]);
            (routes.tunnel.is_some(), routes.encryption.map(|spec| (spec.port, spec.endpoints.len())))
        };
        assert_eq!(routes(Encryption::None, Transport::Auto), (true, None));
        for transport in [Transport::Auto, Transport::Native, Transport::Vxlan] {
            assert_eq!(routes(Encryption::WireGuard, transport), (false, Some((7476, 1))));
        }
    }

    #[test]
    fn the_mtu_leaves_space_for_the_tunnel_overhead() {
        let end = |address: &str, mtu| TunnelEndpoint { address: address.parse().unwrap(), mtu };
        let both = [end("2001:db8::1", 9000), end("192.0.2.1", 1500)];
        let network = |transport| ClusterNetworkConfig { transport, ..ClusterNetworkConfig::default() };
        for transport in [Transport::Auto, Transport::Vxlan] {
            assert_eq!(network(transport).mtu_over(&both), Some(1450));
            assert_eq!(network(transport).mtu_over(&both[..1]), Some(8930));
        }
        assert_eq!(network(Transport::Native).mtu_over(&both), Some(1500));
        for transport in [Transport::Auto, Transport::Native, Transport::Vxlan] {
            let encrypted = ClusterNetworkConfig { encryption: Encryption::WireGuard, ..network(transport) };
            assert_eq!(encrypted.mtu_over(&both), Some(1440));
            assert_eq!(encrypted.mtu_over(&both[..1]), Some(8920));
        }
        let explicit = ClusterNetworkConfig { mtu: Some(1400), ..ClusterNetworkConfig::default() };
        assert_eq!(explicit.mtu_over(&both), Some(1400));
        assert_eq!(network(Transport::Auto).mtu_over(&[]), None);
    }
}
