//! The network that every pod is on unless it says otherwise, as it is configured.

use ipnet::IpNet;
use knit_model::IfName;
use knit_model::intent::{EncryptionIntent, NodeRoutesIntent, NodeTunnelIntent, PeerNode, TunnelEndpoint};
use knit_model::link::{Vxlan, WireGuard};
use serde::{Deserialize, Serialize};

use crate::cluster_network::BRIDGE;
use crate::daemon::Cluster;

/// The network that every pod is on unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClusterNetworkConfig {
    /// Whether there is one. Without it every attach has to name a network.
    pub enabled: bool,
    /// Its ranges: a pod gets one address of each, the bridge has the first. With the profile `primary` they are those that
    /// the cluster gave to the node (`spec.podCIDRs`).
    pub ranges: Vec<IpNet>,
    /// Its bridge on the node, at most 15 bytes.
    pub bridge: String,
    /// The MTU of its interfaces, 68 to 65535. Default: 1500, or with the profile `primary` that of the node's own link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether pods have their node's address outside of the cluster.
    pub masquerade: bool,
    /// Ranges that pods reach with their own address all the same, besides all pods and nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inside: Vec<IpNet>,
    /// Whether what pods send in the name of others is dropped. Default: only with the profile `primary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anti_spoofing: Option<bool>,
    /// How pods of other nodes are reached, with the profile `primary`. The same on all nodes.
    pub transport: Transport,
    /// The tunnels to other nodes. The same on all nodes.
    pub vxlan: VxlanConfig,
    /// Whether packets between pods of different nodes are encrypted, with the profile `primary`. The same on all nodes.
    pub encryption: Encryption,
    /// How they are encrypted. The same on all nodes.
    pub wireguard: WireGuardConfig,
    /// How packets between pods of this node go. Needs a restart.
    pub data_path: DataPath,
}

/// Whether packets between nodes are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// They are not.
    #[default]
    None,
    /// By WireGuard, to all other nodes, whatever the transport; where a node cannot, pods there are not reached.
    WireGuard,
}

/// WireGuard between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WireGuardConfig {
    /// Its UDP port.
    pub port: u16,
}

/// How packets between pods of one node go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPath {
    /// With the profile `primary` as with `ebpf`, otherwise as with `bridge`.
    #[default]
    Auto,
    /// Over the bridge.
    Bridge,
    /// TCP from pod to pod by an eBPF program, everything else over the bridge. Needs `antiSpoofing`. Over the bridge, too, where
    /// the kernel lacks something.
    Ebpf,
}

/// How pods of other nodes are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// By a route where the two nodes share a link, by a tunnel where they do not.
    #[default]
    Auto,
    /// By a route, or not at all.
    Native,
    /// By a tunnel, also where the two nodes share a link.
    Vxlan,
}

/// The tunnels to other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct VxlanConfig {
    /// The number of the VXLAN, 1 to 16777215.
    pub vni: u32,
    /// Its UDP port.
    pub port: u16,
}

impl Default for ClusterNetworkConfig {
    fn default() -> Self {
        let range = |text: &str| text.parse().expect("the default ranges are prefixes");
        Self {
            enabled: true,
            // Private (RFC 1918) and unique local (RFC 4193) space that neither Kubernetes' usual pod and service ranges
            // nor container runtimes' own bridges use.
            ranges: vec![range("10.75.0.0/16"), range("fd75:6b6e:6974::/64")],
            bridge: BRIDGE.to_owned(),
            mtu: None,
            masquerade: false,
            inside: Vec::new(),
            anti_spoofing: None,
            transport: Transport::default(),
            vxlan: VxlanConfig::default(),
            encryption: Encryption::default(),
            wireguard: WireGuardConfig::default(),
            data_path: DataPath::default(),
        }
    }
}

impl Default for VxlanConfig {
    /// Knit may run beside another network, or take its place node by node: so neither is another's. Flannel and Cilium
    /// use port 8472, Calico, Docker and the tenants' own VXLANs 4789; Flannel's number is 1, Calico's 4096. The port is
    /// below those that the kernel gives away by itself and those of Services.
    fn default() -> Self {
        Self { vni: 7_500, port: 7_475 }
    }
}

impl Default for WireGuardConfig {
    /// Nobody's, as above: Calico and Flannel use port 51820, Cilium 51871, and the tenants' own tunnels 51820.
    fn default() -> Self {
        Self { port: 7_476 }
    }
}

impl ClusterNetworkConfig {
    /// How it goes on from this node, as the cluster's network.
    pub(crate) fn ways(
        &self,
        nodes: Vec<PeerNode>,
        node: &str,
        ends: Vec<TunnelEndpoint>,
    ) -> NodeRoutesIntent {
        let is_encrypted = self.encryption == Encryption::WireGuard;
        let has_tunnels = !is_encrypted && self.transport != Transport::Native;
        let encryption =
            is_encrypted.then(|| EncryptionIntent { port: self.wireguard.port, ends: ends.clone() });
        let tunnel = has_tunnels.then(|| NodeTunnelIntent {
            node: node.to_owned(),
            vni: self.vxlan.vni,
            port: self.vxlan.port,
            always: self.transport == Transport::Vxlan,
            ends,
        });
        NodeRoutesIntent {
            nodes,
            masquerade: self.masquerade,
            inside: self.inside.clone(),
            tunnel,
            encryption,
            pools: Vec::new(),
            anti_spoofing: self.anti_spoofing.unwrap_or(true),
            own: None,
        }
    }

    /// The MTU of pods: what is said, or what fits into every way that there may be. It follows from this node alone, so
    /// that nobody's changes when another node comes.
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

    /// The network as it is said here, without other nodes. Checks every value.
    pub(super) fn cluster(&self) -> Result<Cluster, String> {
        let at = |key: &str, why: String| format!("clusterNetwork.{key}: {why}");
        let bridge = IfName::new(self.bridge.as_str()).map_err(|why| at("bridge", why.to_string()))?;
        if self.ranges.is_empty() {
            return Err(at("ranges", "a network needs at least one range".to_owned()));
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
            if let Some(why) = knit_ipam::forbidden(*range, &knit_ipam::overlap::never_for_pods()) {
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
            return Err(at("vxlan.port", "port 0 is no port".to_owned()));
        }
        if self.wireguard.port == 0 {
            return Err(at("wireguard.port", "port 0 is no port".to_owned()));
        }
        // Without a cluster there are no other nodes.
        let anti_spoofing = self.anti_spoofing.unwrap_or(false);
        let ways = NodeRoutesIntent {
            tunnel: None,
            encryption: None,
            anti_spoofing,
            ..self.ways(Vec::new(), "", Vec::new())
        };
        Ok(Cluster::new(&self.ranges, &bridge, self.mtu, &ways))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encrypted_goes_by_no_other_tunnel() {
        let end = TunnelEndpoint { address: "192.0.2.1".parse().unwrap(), mtu: 1500 };
        let ways = |encryption, transport| {
            let config = ClusterNetworkConfig { encryption, transport, ..ClusterNetworkConfig::default() };
            let ways = config.ways(Vec::new(), "a", vec![end.clone()]);
            (ways.tunnel.is_some(), ways.encryption.map(|want| (want.port, want.ends.len())))
        };
        assert_eq!(ways(Encryption::None, Transport::Auto), (true, None));
        for transport in [Transport::Auto, Transport::Native, Transport::Vxlan] {
            assert_eq!(ways(Encryption::WireGuard, transport), (false, Some((7476, 1))));
        }
    }

    #[test]
    fn there_is_room_for_a_tunnel_whenever_there_may_be_one() {
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
        let said = ClusterNetworkConfig { mtu: Some(1400), ..ClusterNetworkConfig::default() };
        assert_eq!(said.mtu_over(&both), Some(1400));
        assert_eq!(network(Transport::Auto).mtu_over(&[]), None);
    }
}
