//! wireguard: encrypted tunnels to peers that are identified by their public keys.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::key::{PublicKey, SecretKey};
use crate::problem::Problems;

/// The customary port (the kernel's default is random).
pub const WIREGUARD_PORT: u16 = 51_820;

/// WireGuard-specific fields. All of them can be changed on an existing link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireGuard {
    /// Private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<SecretKey>,
    /// UDP listen port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen_port: Option<u16>,
    /// Firewall mark of outer packets; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
    /// All peers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<BTreeMap<PublicKey, WireGuardPeer>>,
}

/// A WireGuard peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireGuardPeer {
    /// Preshared key.
    pub preshared_key: Option<SecretKey>,
    /// Endpoint; unset: learnt from the peer's packets.
    pub endpoint: Option<SocketAddr>,
    /// Ranges that are routed to the peer and accepted from it.
    pub allowed_ips: Option<BTreeSet<IpNet>>,
    /// Persistent keepalive interval in seconds; 0: off.
    pub keepalive: Option<u16>,
}

impl WireGuard {
    /// Encapsulation overhead over this outer family.
    pub const fn overhead_over(is_ipv6: bool) -> u32 {
        let outer = if is_ipv6 { 40 } else { 20 };
        outer + 8 + 32
    }

    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        let peer = WireGuardPeer {
            preshared_key: Some(SecretKey::with_public_key(PublicKey::from_bytes([3; 32]))),
            endpoint: Some(SocketAddr::from(([10, 0, 0, 2], WIREGUARD_PORT))),
            allowed_ips: Some(BTreeSet::from([IpNet::from(ipnet::Ipv4Net::default())])),
            keepalive: Some(25),
        };
        Self {
            private_key: Some(SecretKey::with_public_key(PublicKey::from_bytes([1; 32]))),
            listen_port: Some(WIREGUARD_PORT),
            fwmark: Some(7),
            peers: Some(BTreeMap::from([(PublicKey::from_bytes([2; 32]), peer)])),
        }
    }
}

impl LinkKind for WireGuard {
    const NAME: &'static str = "wireguard";
    const IMMUTABLE: &'static [&'static str] = &[];
    const MAPS: &'static [&'static str] = &["peers"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;
    const ETHERNET: bool = false;
    /// The kernel's driver sets it on every `up`, because an ICMP redirect could bypass the tunnel.
    const SYSCTLS: &'static [(&'static str, &'static str)] = &[("net/ipv4/conf/all/send_redirects", "0")];

    fn samples() -> Vec<Self> {
        vec![Self::full_for_tests()]
    }

    /// Peers may use either family, so the larger overhead is assumed.
    fn overhead(&self) -> u32 {
        Self::overhead_over(true)
    }

    fn secret_keys(&mut self) -> Vec<&mut SecretKey> {
        let preshared = self.peers.iter_mut().flat_map(|peers| peers.values_mut());
        let preshared = preshared.filter_map(|peer| peer.preshared_key.as_mut());
        self.private_key.iter_mut().chain(preshared).collect()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let public = self.private_key.as_ref().and_then(|key| key.public);
        let public = public.map(|key| ("publicKey", key.to_string()));
        let port = self.listen_port.map(|port| ("listenPort", port.to_string()));
        public.into_iter().chain(port).collect()
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.listen_port == Some(0) {
            problems.invalid(format!("{path}.listenPort"), "port 0 is not a valid port");
        }
        let peers = self.peers.iter().flatten();
        let mut claimed: BTreeMap<IpNet, &PublicKey> = BTreeMap::new();
        for (key, peer) in peers {
            let at = format!("{path}.peers[{key}]");
            if *key == PublicKey::NONE {
                problems.invalid(&at, "the all-zero key is not a valid public key");
            }
            if let Some(endpoint) = peer.endpoint.filter(is_unreachable) {
                problems.invalid(format!("{at}.endpoint"), format!("{endpoint} is not a reachable address"));
            }
            for range in peer.allowed_ips.iter().flatten() {
                if *range != range.trunc() {
                    let message = format!("{range} has host bits set: write {}", range.trunc());
                    problems.invalid(format!("{at}.allowedIPs"), message);
                }
                // The kernel would assign it to the last peer only.
                if let Some(other) = claimed.insert(range.trunc(), key).filter(|other| *other != key) {
                    let message =
                        format!("{range} is already allowed for peer {other}: a range belongs to one peer");
                    problems.invalid(format!("{at}.allowedIPs"), message);
                }
            }
        }
    }
}

fn is_unreachable(endpoint: &SocketAddr) -> bool {
    endpoint.port() == 0 || endpoint.ip().is_unspecified() || endpoint.ip().is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(ranges: &[&str], endpoint: Option<&str>) -> WireGuardPeer {
        WireGuardPeer {
            allowed_ips: Some(ranges.iter().map(|range| range.parse().unwrap()).collect()),
            endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
            ..WireGuardPeer::default()
        }
    }

    #[test]
    fn invalid_values_are_reported_with_their_peer() {
        let peers = BTreeMap::from([
            (PublicKey::NONE, peer(&[], Some("10.0.0.1:0"))),
            (PublicKey::from_bytes([1; 32]), peer(&["10.1.0.0/16", "10.2.0.1/16"], Some("[::]:51820"))),
            (PublicKey::from_bytes([2; 32]), peer(&["10.1.0.0/16", "10.3.0.0/16"], None)),
        ]);
        let tunnel = WireGuard { listen_port: Some(0), peers: Some(peers), ..WireGuard::default() };
        let mut problems = Problems::default();
        tunnel.check("spec", &mut problems);
        let (zero, one, two) =
            (PublicKey::NONE, PublicKey::from_bytes([1; 32]), PublicKey::from_bytes([2; 32]));
        assert_eq!(
            problems.to_string(),
            format!(
                "spec.listenPort: port 0 is not a valid port\n\
                 spec.peers[{zero}]: the all-zero key is not a valid public key\n\
                 spec.peers[{zero}].endpoint: 10.0.0.1:0 is not a reachable address\n\
                 spec.peers[{one}].endpoint: [::]:51820 is not a reachable address\n\
                 spec.peers[{one}].allowedIPs: 10.2.0.1/16 has host bits set: write 10.2.0.0/16\n\
                 spec.peers[{two}].allowedIPs: 10.1.0.0/16 is already allowed for peer {one}: a range belongs to one peer"
            )
        );
    }
}
