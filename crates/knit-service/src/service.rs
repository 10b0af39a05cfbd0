//! Services, and what identifies their parts.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::filter::field::{IpFamily, Value};
use serde::{Deserialize, Serialize};

/// A Service by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A layer 4 protocol that Services support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Its name.
    pub key: ServiceKey,
    /// Its cluster IPs, at most one of each family. In a family without one it is not served.
    pub cluster_ips: Vec<IpAddr>,
    /// Its external IPs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub external_ips: Vec<IpAddr>,
    /// The IPs of its load balancer that packets still have as destination when they arrive (`ipMode: VIP`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_ips: Vec<IpAddr>,
    /// Whether Knit assigned the IPs of its load balancer: the node that announces one has it on a link.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub announced: bool,
    /// The sources that may use the IPs of its load balancer. A family without ranges is not restricted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// How many seconds after its last connection a client is still led to the same backend (`ClientIP` affinity).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<u32>,
    /// Whether its cluster IP leads only to backends of this node (`internalTrafficPolicy: Local`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// Whether clients outside the cluster reach only backends of this node (`externalTrafficPolicy: Local`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub external_local: bool,
    /// The port on which each node reports how many of the backends it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    /// When it was created, in seconds: the oldest of the Services with the same external IP and port, load balancer IP and
    /// port, or node port, has it. The IP of a load balancer comes before an external IP.
    #[serde(default)]
    pub created: i64,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Its name, which may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The port at its addresses.
    pub port: u16,
    /// The port at the addresses of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
}

/// Where connections to a Service arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Frontend {
    /// A port of an address.
    Address {
        /// The address.
        address: IpAddr,
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
    },
    /// A port of the node's addresses of a family.
    NodePort {
        /// The family.
        family: IpFamily,
        /// The protocol.
        protocol: Protocol,
        /// The port.
        port: u16,
    },
}

/// Where a connection is led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Backend {
    /// The address of an endpoint.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

impl Protocol {
    /// All.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// Its number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with this number.
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    pub(crate) fn value(self) -> Value {
        self.number().into()
    }
}

impl Service {
    /// Its cluster IP of a family.
    pub fn cluster_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.cluster_ips.iter().copied().find(|address| IpFamily::of(*address) == family)
    }

    /// The IPs of its load balancer of a family, each once.
    pub(crate) fn load_balancer_ips_of(&self, family: IpFamily) -> Vec<IpAddr> {
        self.distinct(&self.load_balancer_ips, &[], family)
    }

    /// Its external IPs of a family that are no load balancer's, each once.
    pub(crate) fn external_ips_of(&self, family: IpFamily) -> Vec<IpAddr> {
        self.distinct(&self.external_ips, &self.load_balancer_ips, family)
    }

    fn distinct(&self, addresses: &[IpAddr], except: &[IpAddr], family: IpFamily) -> Vec<IpAddr> {
        let mut distinct: Vec<IpAddr> = Vec::new();
        for address in addresses.iter().filter(|address| IpFamily::of(**address) == family) {
            if ![&distinct[..], except, &self.cluster_ips].iter().any(|other| other.contains(address)) {
                distinct.push(*address);
            }
        }
        distinct
    }

    /// Whether a port is reached in this family at other addresses than the cluster IP.
    pub(crate) fn is_external(&self, family: IpFamily, port: &ServicePort) -> bool {
        let is_external = |addresses: Vec<IpAddr>| !addresses.is_empty();
        port.node_port.is_some()
            || is_external(self.load_balancer_ips_of(family))
            || is_external(self.external_ips_of(family))
    }
}

impl Frontend {
    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Address { protocol, .. } | Self::NodePort { protocol, .. } => *protocol,
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { address, protocol, port } => {
                write!(out, "{}/{protocol}", std::net::SocketAddr::new(*address, *port))
            }
            Self::NodePort { family: IpFamily::V4, protocol, port } => {
                write!(out, "IPv4 node port {port}/{protocol}")
            }
            Self::NodePort { family: IpFamily::V6, protocol, port } => {
                write!(out, "IPv6 node port {port}/{protocol}")
            }
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::SocketAddr::new(self.address, self.port).fmt(out)
    }
}
