//! PodSocket: sockets that Knit opens for unprivileged processes in pods.

use std::net::SocketAddr;

use knit_model::intent::{IntentSpec, Socket, SocketBinding, SocketIntent};
use knit_model::{IfName, Problems};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{InterfaceName, IpText, Port, ProtocolText, SocketName, UserId, rule_list};
use crate::selector::{MAX_LABEL_VALUE, PodSelector};
use crate::status::PodsStatus;
use crate::translate::Translator;

const POD_LABEL: &str = "podnetwork.opdev.io/podsocket";

/// The maximum number of sockets of one object.
const MAX_SOCKETS: usize = 16;
const SOCKET_COUNT: &str = "sockets must have 1 to 16 entries";
const UNIQUE_NAME: &str = "name must be unique in sockets";
const TCP_UDP: &str = "port must be set and protocol must be unset for a tcp or udp socket";
const RAW: &str = "protocol must be set and port must be unset for a raw socket";
const PACKET: &str =
    "protocol and interface must be set, and address and port must be unset for a packet socket";
const FAMILY: &str = "address must be an IPv4 address for icmp and an IPv6 address for icmp6";

/// PodSocketSpec selects pods by the label `podnetwork.opdev.io/podsocket: <object name>` or by `selector`. A process
/// of a selected pod requests a socket on the abstract unix socket `@knit/sockets/<object name>`.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "PodSocket",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "PodSocket offers raw, packet and low-port sockets in the pod's network namespace to unprivileged processes. Knit opens the sockets and passes the file descriptors.",
    shortname = "psock"
)]
#[serde(rename_all = "camelCase")]
pub struct PodSocketSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/podsocket:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// uid restricts the sockets to processes of this user. In a pod with a user namespace it is the user ID on the
    /// node. Defaults to every process of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<UserId>,
    /// sockets lists the sockets, 1 to 16.
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 16,
        "x-kubernetes-list-type" = "atomic",
        "x-kubernetes-validations" = rule_list(&[("self.all(a, self.exists_one(b, a.name == b.name))", UNIQUE_NAME)]),
    ))]
    pub sockets: Vec<SocketEntry>,
}

/// SocketEntry describes one socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rule_list(&[
    ("!(self.type in ['tcp', 'udp']) || (has(self.port) && !has(self.protocol))", TCP_UDP),
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
    /// name is the name by which a process requests the socket.
    pub name: SocketName,
    /// type is the type of the socket. `raw`: IP packets of one protocol. `packet`: frames of one interface. `tcp`:
    /// listens on a port, which may be below 1024. `udp`: bound to a port, which may be below 1024.
    #[serde(rename = "type")]
    pub kind: SocketType,
    /// protocol is, for a raw socket, `icmp`, `icmp6` or a number from 1 to 255. For a packet socket it is `all`, `ip`,
    /// `ip6`, `arp` or an Ethernet type such as `0x88cc`. Must be unset for tcp and udp.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<ProtocolText>,
    /// interface is the interface of the pod that the socket is bound to. Required for a packet socket. Defaults to
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<InterfaceName>,
    /// address is the address of the pod that the socket is bound to. Defaults to all addresses: of both families for
    /// tcp and udp, of IPv4 for raw (IPv6 for `icmp6`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpText>,
    /// port is the port of a tcp or udp socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
}

/// SocketType is the type of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum SocketType {
    Raw,
    Packet,
    Tcp,
    Udp,
}

impl ResourceKind for PodSocket {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] =
        &[Column { name: "First", type_: "string", path: ".spec.sockets[0].name", wide: false }];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        if spec.selector.is_some() && to.object_name().len() > MAX_LABEL_VALUE {
            // The name is part of an abstract socket address, whose length is limited.
            let message =
                format!("must be at most {MAX_LABEL_VALUE} characters: it is part of the socket address");
            to.problems.invalid("metadata.name", message);
        }
        let uid = spec.uid.as_ref().and_then(|uid| uid.read("spec.uid", &mut to.problems));
        if !(1..=MAX_SOCKETS).contains(&spec.sockets.len()) {
            to.problems.invalid("spec.sockets", SOCKET_COUNT);
        }
        for (index, entry) in spec.sockets.iter().enumerate() {
            let field = format!("spec.sockets[{index}]");
            if spec.sockets[..index].iter().any(|before| before.name == entry.name) {
                to.problems.invalid(format!("{field}.name"), UNIQUE_NAME);
            }
            let name = entry.name.read(format!("{field}.name"), &mut to.problems);
            let socket = entry.read(&field, &mut to.problems);
            if let (Some(name), Some(socket)) = (name, socket) {
                let intent = SocketIntent { pods: pods.clone(), uid, name, socket };
                to.intent(&field, IntentSpec::Socket(Box::new(intent)));
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
                    problems.invalid(field, TCP_UDP);
                }
                let to = SocketAddr::new(address.unwrap_or(Socket::any(true)), port?);
                let bound = SocketBinding { to, interface };
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
        let is_complete = self.interface.is_some() && self.address.is_none() && self.port.is_none();
        let Some(protocol) = self.protocol.as_ref().filter(|_| is_complete) else {
            problems.invalid(field, PACKET);
            return None;
        };
        let ethertype = protocol.read_ethernet(format!("{field}.protocol"), problems)?;
        Some(Socket::Packet { ethertype, interface: interface? })
    }
}
