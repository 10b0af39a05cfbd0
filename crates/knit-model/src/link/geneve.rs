//! geneve: Ethernet over UDP, point to point.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MAX_FLOW_LABEL, tunnel};
use crate::problem::Problems;

/// The IANA port of Geneve.
pub const GENEVE_PORT: u16 = 6081;

/// UDP, Geneve and inner Ethernet headers.
const INNER_HEADERS: u32 = 8 + 8 + 14;

/// Geneve-specific fields. A Geneve tunnel has no parent; outer packets follow the routes of its scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geneve {
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Remote endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// UDP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// TTL; 0: the system's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Whether the TTL is inherited from the inner packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_inherit: Option<bool>,
    /// Outer DS field; [`super::INHERIT_TOS`]: inherited from the inner packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// IPv4 only: DF bit of outer packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub df: Option<GeneveDf>,
    /// IPv6 only: flow label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<u32>,
    /// Whether outer UDP packets have a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_csum: Option<bool>,
}

/// DF bit of outer packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GeneveDf {
    /// Not set.
    Unset,
    /// Set.
    Set,
    /// Inherited from the inner packet.
    Inherit,
}

impl Geneve {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            vni: 42,
            remote: Some(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2])),
            port: Some(GENEVE_PORT),
            ttl: Some(64),
            ttl_inherit: Some(false),
            tos: Some(0x10),
            df: Some(GeneveDf::Inherit),
            flow_label: Some(0x4_2042),
            udp_csum: Some(true),
        }
    }
}

impl LinkKind for Geneve {
    const NAME: &'static str = "geneve";
    const IMMUTABLE: &'static [&'static str] = &["vni", "port", "udp_csum"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    fn samples() -> Vec<Self> {
        let ipv4 = Self { remote: Some([10, 0, 0, 2].into()), flow_label: Some(0), ..Self::full_for_tests() };
        vec![Self::full_for_tests(), ipv4]
    }

    fn overhead(&self) -> u32 {
        tunnel::outer_header(self.remote.is_some_and(|remote| remote.is_ipv6()), None) + INNER_HEADERS
    }

    fn set_endpoints(&mut self, _local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
    }

    fn with_defaults(self) -> Self {
        Self {
            port: self.port.or(Some(GENEVE_PORT)),
            ttl: self.ttl.or(Some(0)),
            ttl_inherit: self.ttl_inherit.or(Some(false)),
            tos: self.tos.or(Some(0)),
            df: self.df.or(Some(GeneveDf::Unset)),
            flow_label: self.flow_label.or(Some(0)),
            udp_csum: self.udp_csum.or(Some(true)),
            ..self
        }
    }

    /// The address family is fixed when the link is created.
    fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
        (self.remote?.is_ipv6() != desired.remote?.is_ipv6()).then_some("remote")
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        tunnel::check_vni_and_port(self.vni, self.port, path, problems);
        if self.remote.is_some_and(|remote| remote.is_multicast() || remote.is_unspecified()) {
            problems.invalid(format!("{path}.remote"), "the remote address must be a unicast address");
        }
        if self.ttl_inherit == Some(true) && self.ttl.is_some_and(|ttl| ttl != 0) {
            problems.invalid(format!("{path}.ttlInherit"), "mutually exclusive with `ttl`");
        }
        match self.flow_label {
            Some(label) if label > MAX_FLOW_LABEL => {
                problems.invalid(format!("{path}.flowLabel"), format!("flow label {label} exceeds 20 bits"));
            }
            Some(1..) if self.remote.is_some_and(|remote| remote.is_ipv4()) => {
                problems.invalid(format!("{path}.flowLabel"), "flow labels require an IPv6 remote address");
            }
            _ => {}
        }
    }
}
