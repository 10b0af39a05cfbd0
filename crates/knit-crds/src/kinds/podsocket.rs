//! PodSocket: sockets that pods without privileges may ask for.

use std::net::SocketAddr;

use knit_model::intent::{Bound, IntentSpec, Socket, SocketIntent};
use knit_model::{IfName, Problems};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{InterfaceName, IpText, Port, ProtocolText, SocketName, UserId, rule_list};
use crate::selector::{MAX_LABEL_VALUE, PodSelector};
use crate::status::PodsStatus;
use crate::translate::Translator;

const POD_LABEL: &str = "podnetwork.opdev.io/podsocket";

/// One object offers at most this many sockets.
const MOST_SOCKETS: usize = 16;
const TOO_MANY: &str = "one object offers 1 to 16 sockets";
const TWICE: &str = "the same name twice: a socket is asked for by its name";
const ADDRESSED: &str = "a tcp or udp socket has a `port`, and no `protocol`";
const RAW: &str = "a raw socket has a `protocol`, and no `port`";
const PACKET: &str = "a packet socket has a `protocol` and an `interface`, and neither `address` nor `port`";
const FAMILY: &str = "protocol icmp is for IPv4 and icmp6 for IPv6: the `address` is of the other family";

/// Sockets for the pods that are labelled `podnetwork.opdev.io/podsocket: <name of this object>`, or that `selector`
/// matches. A process of such a pod gets them at the abstract unix socket `@knit/sockets/<name of this object>`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodSocket",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Raw, packet and low-port sockets of the pods' own network, opened by Knit and handed to processes without privileges.",
    shortname = "psock"
)]
#[serde(rename_all = "camelCase")]
pub struct PodSocketSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/podsocket: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// Only processes of this user get a socket. Default: every process of the pod. Of a pod with a user namespace of its
    /// own it is the user's number on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<UserId>,
    /// The sockets.
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 16,
        "x-kubernetes-list-type" = "atomic",
        "x-kubernetes-validations" = rule_list(&[("self.all(a, self.exists_one(b, a.name == b.name))", TWICE)]),
    ))]
    pub sockets: Vec<SocketEntry>,
}

/// One socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[
    ("!(self.type in ['tcp', 'udp']) || (has(self.port) && !has(self.protocol))", ADDRESSED),
    ("self.type != 'raw' || (has(self.protocol) && !has(self.port))", RAW),
    (
        "self.type != 'packet' || (has(self.protocol) && has(self.interface) && !has(self.address) && !has(self.port))",
        PACKET,
    ),
    (
        "self.type != 'raw' || !has(self.protocol) || !has(self.address) || !isIP(self.address) \
         || !(self.protocol in ['icmp', 'icmp6']) || (self.protocol == 'icmp') == (ip(self.address).family() == 4)",
        FAMILY,
    ),
])))]
pub struct SocketEntry {
    /// The name that a process asks for it by.
    pub name: SocketName,
    /// `raw`: IP packets of one protocol. `packet`: whole frames of one interface. `tcp`: listens at a port, also one below
    /// 1024. `udp`: bound to such a port.
    #[serde(rename = "type")]
    pub kind: SocketType,
    /// Of a raw socket: `icmp`, `icmp6`, or a number from 1 to 255. Of a packet socket: `all`, `ip`, `ip6`, `arp`, or an
    /// Ethernet type such as `0x88cc`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolText>,
    /// The interface of the pod that it is bound to. Default: none, except for a packet socket, which needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceName>,
    /// The address of the pod that it is bound to. Default: all of them, for tcp and udp those of both families, for raw
    /// those of IPv4 (of IPv6 for `icmp6`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpText>,
    /// The port of a tcp or udp socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
}

/// What a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum SocketType {
    Raw,
    Packet,
    Tcp,
    Udp,
}

impl Kind for PodSocket {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "First", type_: "string", path: ".spec.sockets[0].name", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        if spec.selector.is_some() && to.object_name().len() > MAX_LABEL_VALUE {
            // Both may be long, but an abstract name may not.
            let message = format!("the name has more than {MAX_LABEL_VALUE} characters: pods ask by it");
            to.problems.invalid("metadata.name", message);
        }
        let uid = spec.uid.as_ref().and_then(|uid| uid.read("spec.uid", &mut to.problems));
        if !(1..=MOST_SOCKETS).contains(&spec.sockets.len()) {
            to.problems.invalid("spec.sockets", TOO_MANY);
        }
        for (index, entry) in spec.sockets.iter().enumerate() {
            let field = format!("spec.sockets[{index}]");
            if spec.sockets[..index].iter().any(|before| before.name == entry.name) {
                to.problems.invalid(format!("{field}.name"), TWICE);
            }
            let name = entry.name.read(format!("{field}.name"), &mut to.problems);
            let socket = entry.read(&field, &mut to.problems);
            if let (Some(name), Some(socket)) = (name, socket) {
                let want = SocketIntent { pods: pods.clone(), uid, name, socket };
                to.want(&field, IntentSpec::Socket(Box::new(want)));
            }
        }
    }
}

impl SocketEntry {
    fn read(&self, field: &str, problems: &mut Problems) -> Option<Socket> {
        let before = problems.0.len();
        let at = |name: &str| format!("{field}.{name}");
        let interface = self.interface.as_ref().and_then(|name| name.read(at("interface"), problems));
        let address = self.address.as_ref().and_then(|address| address.read(at("address"), problems));
        let port = self.port.as_ref().and_then(|port| port.read(at("port"), problems));
        let protocol = self.protocol.as_ref();
        let socket = match self.kind {
            SocketType::Tcp | SocketType::Udp => {
                if self.port.is_none() || protocol.is_some() {
                    problems.invalid(field, ADDRESSED);
                }
                let to = SocketAddr::new(address.unwrap_or(Socket::any(true)), port?);
                let bound = Bound { to, interface };
                if self.kind == SocketType::Tcp { Socket::Tcp(bound) } else { Socket::Udp(bound) }
            }
            SocketType::Raw => {
                let Some(protocol) = protocol.filter(|_| self.port.is_none()) else {
                    problems.invalid(field, RAW);
                    return None;
                };
                let number = protocol.read_ip(at("protocol"), problems)?;
                let address = address.unwrap_or(Socket::any(protocol.0 == "icmp6"));
                let other = if address.is_ipv6() { "icmp" } else { "icmp6" };
                if protocol.0 == other {
                    problems.invalid(field, FAMILY);
                }
                Socket::Raw { protocol: number, address, interface }
            }
            SocketType::Packet => self.read_packet(field, interface, problems)?,
        };
        (problems.0.len() == before).then_some(socket)
    }

    fn read_packet(&self, field: &str, interface: Option<IfName>, problems: &mut Problems) -> Option<Socket> {
        let is_named = self.interface.is_some() && self.address.is_none() && self.port.is_none();
        let Some(protocol) = self.protocol.as_ref().filter(|_| is_named) else {
            problems.invalid(field, PACKET);
            return None;
        };
        let ethertype = protocol.read_ethernet(format!("{field}.protocol"), problems)?;
        Some(Socket::Packet { ethertype, interface: interface? })
    }
}
