//! WireGuard: an encrypted tunnel to peers that are known by their public keys.

use std::collections::BTreeMap;

use knit_model::link::{self, Kind as LinkKind, LinkKind as _, WgPeer};
use knit_model::{KeyRef, Problems, PublicKey, SecretKey};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{
    EndpointText, InterfaceName, Mark, NamePrefix, Port, PrefixText, PublicKeyText, Seconds, SecretEntry,
};
use crate::interface::{InterfaceFields, each, read_name, rules_with};
use crate::rules::PORT_OF_ONE;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/wireguard";
const NO_HARDWARE: &str = "a WireGuard tunnel carries no Ethernet: it has no hardware address";
/// The kernel counts them in 16 bits.
const MAX_KEEPALIVE: u32 = 65_535;

/// A WireGuard tunnel for each of the pods that are labelled `podnetwork.opdev.io/wireguard: <name of this object>`, or
/// that `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "WireGuard",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "An encrypted tunnel for each pod. It is added to running pods, and taken away with the object, the label or the pod. All of its fields change without dropping the tunnel.",
    shortname = "kwg"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct WireGuardSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/wireguard: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// The private key: an entry of a Secret of this namespace, in base64 as `wg genkey` prints it. Every pod that
    /// matches gets the same one, so it makes sense with one pod. Default: a key is made on the node for each pod. The
    /// status shows its public key; the key itself never leaves the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_key_secret: Option<SecretEntry>,
    /// The UDP port it listens on. Default: 51820.
    #[serde(default = "default_port")]
    pub listen_port: Port,
    /// The mark of the packets that it sends, for policy rules. Default: 0, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
    /// The peers. A peer that is added, changed or removed leaves the tunnels to all others as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["publicKey"]))]
    pub peers: Vec<Peer>,
    /// A VRF in the pod that it is a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Its public key in base64.
    pub public_key: PublicKeyText,
    /// A second secret that both sides share: an entry of a Secret of this namespace, as `wg genpsk` prints it.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preshared_key_secret: Option<SecretEntry>,
    /// Where it is, such as `192.0.2.1:51820`. Default: it is learnt from the peer's packets, so that the peer may move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointText>,
    /// The ranges behind it: what goes there is sent to it, and only what comes from there is taken from it.
    #[serde(default, rename = "allowedIPs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "set"))]
    pub allowed_ips: Vec<PrefixText>,
    /// Seconds between packets that keep a way through NAT open, 0 to 65535; 0 is none. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_keepalive: Option<Seconds>,
}

fn default_port() -> Port {
    Port(link::WIREGUARD_PORT.into())
}

fn rules() -> serde_json::Value {
    let hardware = ("!has(self.hardwareAddr)", NO_HARDWARE);
    rules_with(&[hardware, PORT_OF_ONE])
}

impl WireGuardSpec {
    fn link(&self, namespace: &str, problems: &mut Problems) -> Option<link::WireGuard> {
        let made = KeyRef::Made { id: String::new() };
        let key = match &self.private_key_secret {
            Some(entry) => entry.read(namespace, "spec.privateKeySecret", problems)?,
            None => made,
        };
        let mut peers: BTreeMap<PublicKey, WgPeer> = BTreeMap::new();
        for (key, peer, at) in each(&self.peers, "spec.peers", |peer, at| peer.read(namespace, at, problems))
        {
            if peers.insert(key, peer).is_some() {
                problems.invalid(format!("{at}.publicKey"), format!("peer {key} is listed twice"));
            }
        }
        let tunnel = link::WireGuard {
            private_key: Some(SecretKey::from(key)),
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

impl Peer {
    fn read(
        &self,
        namespace: &str,
        at: &str,
        problems: &mut Problems,
    ) -> Option<(PublicKey, WgPeer, String)> {
        let key = self.public_key.read(format!("{at}.publicKey"), problems);
        let preshared = match &self.preshared_key_secret {
            Some(entry) => {
                entry.read(namespace, &format!("{at}.presharedKeySecret"), problems).map(SecretKey::from)
            }
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
            problems.invalid(field, format!("{time} seconds are outside 0 to {MAX_KEEPALIVE}"));
        }
        let peer = WgPeer {
            preshared_key: preshared,
            endpoint: endpoint.and_then(|endpoint| endpoint.read(format!("{at}.endpoint"), problems)),
            allowed: Some(ranges.into_iter().collect()),
            keepalive: in_bounds,
        };
        Some((key?, peer, at.to_owned()))
    }
}

impl Kind for WireGuard {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Port", type_: "integer", path: ".spec.listenPort", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let namespace = self.identity().namespace;
        let Some(tunnel) = spec.link(&namespace, &mut to.problems) else { return };
        to.interface(Entry {
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
