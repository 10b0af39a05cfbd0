//! wireguard: an encrypted tunnel to peers that are known by their public keys.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::key::{PublicKey, SecretKey};
use crate::problem::Problems;

/// The port that everyone uses. (The kernel's own default is a random one.)
pub const DEFAULT_PORT: u16 = 51_820;

/// A WireGuard tunnel's own fields. All of them change on the living tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WireGuard {
    /// Its private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<SecretKey>,
    /// The UDP port it listens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen_port: Option<u16>,
    /// The mark of the packets that it sends; 0 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<u32>,
    /// The peers, all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<BTreeMap<PublicKey, WgPeer>>,
}

/// One peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WgPeer {
    /// A second secret that both sides share.
    pub preshared_key: Option<SecretKey>,
    /// Where it is. Not stated: it is learnt from the peer's packets.
    pub endpoint: Option<SocketAddr>,
    /// The ranges behind it: what goes there is sent to it, and only what comes from there is taken from it.
    pub allowed: Option<BTreeSet<IpNet>>,
    /// Seconds between packets that keep a way through NAT open; 0 is none.
    pub keepalive: Option<u16>,
}

impl WireGuard {
    /// The bytes that it puts around each packet, over this family.
    pub const fn overhead_over(is_ipv6: bool) -> u32 {
        let outer = if is_ipv6 { 40 } else { 20 };
        outer + 8 + 32
    }

    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        let peer = WgPeer {
            preshared_key: Some(SecretKey::of(PublicKey::from_bytes([3; 32]))),
            endpoint: Some(SocketAddr::from(([10, 0, 0, 2], DEFAULT_PORT))),
            allowed: Some(BTreeSet::from([IpNet::from(ipnet::Ipv4Net::default())])),
            keepalive: Some(25),
        };
        Self {
            private_key: Some(SecretKey::of(PublicKey::from_bytes([1; 32]))),
            listen_port: Some(DEFAULT_PORT),
            fwmark: Some(7),
            peers: Some(BTreeMap::from([(PublicKey::from_bytes([2; 32]), peer)])),
        }
    }
}

impl LinkKind for WireGuard {
    const NAME: &'static str = "wireguard";
    const RECREATE: &'static [&'static str] = &[];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;
    const ETHERNET: bool = false;
    /// The kernel's driver does so on every `up`: a redirect could send packets around the tunnel.
    const SYSCTLS: &'static [(&'static str, &'static str)] = &[("net/ipv4/conf/all/send_redirects", "0")];

    /// A peer may come over either family, so that there is room for the larger.
    fn overhead(&self) -> u32 {
        Self::overhead_over(true)
    }

    fn secrets(&mut self) -> Vec<&mut SecretKey> {
        let preshared = self.peers.iter_mut().flat_map(|peers| peers.values_mut());
        let preshared = preshared.filter_map(|peer| peer.preshared_key.as_mut());
        self.private_key.iter_mut().chain(preshared).collect()
    }

    fn shown(&self) -> Vec<(&'static str, String)> {
        let public = self.private_key.as_ref().and_then(|key| key.public);
        let public = public.map(|key| ("publicKey", key.to_string()));
        let port = self.listen_port.map(|port| ("listenPort", port.to_string()));
        public.into_iter().chain(port).collect()
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.listen_port == Some(0) {
            problems.invalid(format!("{path}.listenPort"), "port 0 is no port");
        }
        let peers = self.peers.iter().flatten();
        let mut taken: BTreeMap<IpNet, &PublicKey> = BTreeMap::new();
        for (key, peer) in peers {
            let at = format!("{path}.peers[{key}]");
            if *key == PublicKey::NONE {
                problems.invalid(&at, "the key of all zeros is nobody's");
            }
            if let Some(endpoint) = peer.endpoint.filter(is_nowhere) {
                problems.invalid(
                    format!("{at}.endpoint"),
                    format!("{endpoint} is no address that one can reach"),
                );
            }
            for range in peer.allowed.iter().flatten() {
                if *range != range.trunc() {
                    let message = format!("{range} has host bits set: write {}", range.trunc());
                    problems.invalid(format!("{at}.allowedIPs"), message);
                }
                // The kernel would move it from one to the other, and the last one would have it.
                if let Some(other) = taken.insert(range.trunc(), key).filter(|other| *other != key) {
                    let message =
                        format!("{range} is behind peer {other} already: it can be behind one only");
                    problems.invalid(format!("{at}.allowedIPs"), message);
                }
            }
        }
    }
}

fn is_nowhere(endpoint: &SocketAddr) -> bool {
    endpoint.port() == 0 || endpoint.ip().is_unspecified() || endpoint.ip().is_multicast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(ranges: &[&str], endpoint: Option<&str>) -> WgPeer {
        WgPeer {
            allowed: Some(ranges.iter().map(|range| range.parse().unwrap()).collect()),
            endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
            ..WgPeer::default()
        }
    }

    #[test]
    fn what_no_tunnel_can_have_is_named_with_its_peer() {
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
                "spec.listenPort: port 0 is no port\n\
                 spec.peers[{zero}]: the key of all zeros is nobody's\n\
                 spec.peers[{zero}].endpoint: 10.0.0.1:0 is no address that one can reach\n\
                 spec.peers[{one}].endpoint: [::]:51820 is no address that one can reach\n\
                 spec.peers[{one}].allowedIPs: 10.2.0.1/16 has host bits set: write 10.2.0.0/16\n\
                 spec.peers[{two}].allowedIPs: 10.1.0.0/16 is behind peer {one} already: it can be behind one only"
            )
        );
    }
}
