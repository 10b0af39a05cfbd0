//! WireGuard: an encrypted tunnel to peers identified by public key.

use std::collections::BTreeMap;

use knit_model::link::{self, Kind as LinkKind, LinkKind as _, WireGuardPeer};
use knit_model::{KeyRef, Problems, PublicKey, SecretKey};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{
    EndpointText, InterfaceName, Mark, Port, PrefixText, PublicKeyText, Seconds, SecretEntry,
};
use crate::interface::{InterfaceFields, NameFields, each, rules_with};
use crate::link_type::{LinkTypeInfo, LowerLink};
use crate::rules::MASTER_OR_VRF;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/wireguard";
const NO_HARDWARE: &str = "hardwareAddr must be unset: a WireGuard interface has no hardware address";
/// The kernel stores the interval in 16 bits.
const MAX_KEEPALIVE: u32 = 65_535;

/// WireGuardSpec selects pods by the label `podnetwork.opdev.io/wireguard: <object name>` or by `selector`, and
/// describes the interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "WireGuard",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "WireGuard adds a WireGuard interface to each selected pod. It is added to running pods and removed with the object, the label or the pod. All fields are updated without interrupting the tunnel.",
    shortname = "kwg"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct WireGuardSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/wireguard:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// privateKeySecret references an entry of a Secret in this namespace that holds the private key in base64, as
    /// printed by `wg genkey`. Every selected pod gets the same key, so use it with one pod. Defaults to a key that the
    /// node generates for each pod; the status shows its public key, and the private key never leaves the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key_secret: Option<SecretEntry>,
    /// listenPort is the UDP port of the interface. Defaults to 51820.
    #[serde(default = "default_port")]
    pub listen_port: Port,
    /// fwmark is the firewall mark of sent packets, for policy routing. Defaults to 0 (none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
    /// peers lists the peers. Adding, changing or removing a peer does not affect the other peers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["publicKey"]))]
    pub peers: Vec<WireGuardPeerSpec>,
    /// master is the name of a VRF in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// WireGuardPeerSpec is one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WireGuardPeerSpec {
    /// publicKey is the public key of the peer in base64.
    pub public_key: PublicKeyText,
    /// presharedKeySecret references an entry of a Secret in this namespace that holds the preshared key, as printed by
    /// `wg genpsk`. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preshared_key_secret: Option<SecretEntry>,
    /// endpoint is the address and port of the peer, such as `192.0.2.1:51820`. Defaults to none: it is learned from
    /// the packets of the peer, which may roam.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointText>,
    /// allowedIPs lists the prefixes behind the peer: packets to them are sent to the peer, and only packets from them
    /// are accepted from it.
    #[serde(default, rename = "allowedIPs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "set"))]
    pub allowed_ips: Vec<PrefixText>,
    /// persistentKeepalive is the interval in seconds between keepalive packets that hold NAT mappings open, 0 to
    /// 65535. 0 disables them. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_keepalive: Option<Seconds>,
}

fn default_port() -> Port {
    Port(link::WIREGUARD_PORT.into())
}

fn rules() -> serde_json::Value {
    let hardware = ("!has(self.hardwareAddr)", NO_HARDWARE);
    rules_with(&[hardware, MASTER_OR_VRF])
}

impl WireGuardSpec {
    fn link(&self, namespace: &str, problems: &mut Problems) -> Option<link::WireGuard> {
        let generated = KeyRef::Generated { id: String::new() };
        let key = match &self.private_key_secret {
            Some(entry) => entry.read(namespace, "spec.privateKeySecret", problems)?,
            None => generated,
        };
        let mut peers: BTreeMap<PublicKey, WireGuardPeer> = BTreeMap::new();
        for (key, peer, at) in each(&self.peers, "spec.peers", |peer, at| peer.read(namespace, at, problems))
        {
            if peers.insert(key, peer).is_some() {
                problems.invalid(format!("{at}.publicKey"), format!("peer {key} must be listed only once"));
            }
        }
        let tunnel = link::WireGuard {
            private_key: Some(SecretKey::from_source(key)),
            listen_port: self.listen_port.read("spec.listenPort", problems),
            fwmark: Some(self.fwmark.as_ref().map_or(Some(0), |mark| mark.read("spec.fwmark", problems))?),
            peers: Some(peers),
        };
        if self.interface.hardware_addr.is_some() {
            problems.invalid("spec.hardwareAddr", NO_HARDWARE);
        }
        tunnel.check("spec", problems);
        Some(tunnel)
    }
}

impl WireGuardPeerSpec {
    fn read(
        &self,
        namespace: &str,
        at: &str,
        problems: &mut Problems,
    ) -> Option<(PublicKey, WireGuardPeer, String)> {
        let key = self.public_key.read(format!("{at}.publicKey"), problems);
        let preshared = match &self.preshared_key_secret {
            Some(entry) => entry
                .read(namespace, &format!("{at}.presharedKeySecret"), problems)
                .map(SecretKey::from_source),
            None => Some(SecretKey::none()),
        };
        let endpoint = self.endpoint.as_ref();
        let ranges =
            each(&self.allowed_ips, &format!("{at}.allowedIPs"), |range, at| range.read(at, problems));
        let field = format!("{at}.persistentKeepalive");
        let keepalive =
            self.persistent_keepalive.as_ref().map_or(Some(0), |time| time.read(&field, problems));
        let in_bounds =
            keepalive.filter(|time| *time <= MAX_KEEPALIVE).and_then(|time| u16::try_from(time).ok());
        if let (Some(time), None) = (keepalive, in_bounds) {
            problems.invalid(field, format!("must be between 0 and {MAX_KEEPALIVE} seconds, got {time}"));
        }
        let peer = WireGuardPeer {
            preshared_key: preshared,
            endpoint: endpoint.and_then(|endpoint| endpoint.read(format!("{at}.endpoint"), problems)),
            allowed_ips: Some(ranges.into_iter().collect()),
            keepalive: in_bounds,
        };
        Some((key?, peer, at.to_owned()))
    }
}

impl ResourceKind for WireGuard {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] =
        &[LinkTypeInfo::new("wireguard", LowerLink::None, |_| Some(LinkKind::WireGuard(without_peers())))];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Port", type_: "integer", path: ".spec.listenPort", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let namespace = self.identity().namespace;
        let Some(tunnel) = spec.link(&namespace, &mut to.problems) else { return };
        to.interface(InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::WireGuard(tunnel),
            parent: None,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}

/// A WireGuard interface with a generated key and no peers, which a WireGuard object adds.
fn without_peers() -> link::WireGuard {
    link::WireGuard {
        private_key: Some(SecretKey::from_source(KeyRef::Generated { id: String::new() })),
        listen_port: Some(link::WIREGUARD_PORT),
        fwmark: Some(0),
        peers: Some(BTreeMap::new()),
    }
}
