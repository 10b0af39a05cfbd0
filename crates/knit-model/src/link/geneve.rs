//! geneve: Ethernet in UDP, from one end to another.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MAX_FLOW_LABEL, tunnel};
use crate::problem::Problems;

/// The port that IANA gave to Geneve.
pub const DEFAULT_PORT: u16 = 6081;

/// The headers of UDP and Geneve, and that of the Ethernet inside.
const INNER_HEADERS: u32 = 8 + 8 + 14;

/// A Geneve tunnel's own fields. It sits on no link: the routes of its scope decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geneve {
    /// The network's number, 24 bits.
    pub vni: u32,
    /// The far end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// The UDP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Hops; 0 takes the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Whether hops are copied from the packet inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_inherit: Option<bool>,
    /// The outer DS field; [`super::INHERIT_TOS`] copies that of the packet inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// Over IPv4: whether outer packets must not be fragmented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub df: Option<GeneveDf>,
    /// Over IPv6: the flow label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<u32>,
    /// Whether the UDP packets have a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_csum: Option<bool>,
}

/// Whether outer packets must not be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GeneveDf {
    /// They may be.
    Unset,
    /// They must not.
    Set,
    /// As the packet inside says.
    Inherit,
}

impl Geneve {
    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            vni: 42,
            remote: Some(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 2])),
            port: Some(DEFAULT_PORT),
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
    const RECREATE: &'static [&'static str] = &["vni", "port", "udp_csum"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;

    fn overhead(&self) -> u32 {
        tunnel::outer_header(self.remote.is_some_and(|remote| remote.is_ipv6()), None) + INNER_HEADERS
    }

    fn set_ends(&mut self, _local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
    }

    fn with_defaults(self) -> Self {
        Self {
            port: self.port.or(Some(DEFAULT_PORT)),
            ttl: self.ttl.or(Some(0)),
            ttl_inherit: self.ttl_inherit.or(Some(false)),
            tos: self.tos.or(Some(0)),
            df: self.df.or(Some(GeneveDf::Unset)),
            flow_label: self.flow_label.or(Some(0)),
            udp_csum: self.udp_csum.or(Some(true)),
            ..self
        }
    }

    /// The family is fixed at birth.
    fn cannot_become(&self, wanted: &Self) -> Option<&'static str> {
        (self.remote?.is_ipv6() != wanted.remote?.is_ipv6()).then_some("remote")
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.vni >= 1 << 24 {
            problems.invalid(
                format!("{path}.vni"),
                format!("VNI {} needs more than 24 bits, the largest is 16777215", self.vni),
            );
        }
        if self.port == Some(0) {
            problems.invalid(format!("{path}.port"), "port 0 is no port");
        }
        if self.remote.is_some_and(|remote| remote.is_multicast() || remote.is_unspecified()) {
            problems.invalid(format!("{path}.remote"), "the far end must be a unicast address");
        }
        if self.ttl_inherit == Some(true) && self.ttl.is_some_and(|ttl| ttl != 0) {
            problems.invalid(format!("{path}.ttlInherit"), "the TTL is stated by `ttl`: state one of them");
        }
        match self.flow_label {
            Some(label) if label > MAX_FLOW_LABEL => {
                problems.invalid(
                    format!("{path}.flowLabel"),
                    format!("flow label {label} needs more than 20 bits"),
                );
            }
            Some(1..) if self.remote.is_some_and(|remote| remote.is_ipv4()) => {
                problems.invalid(format!("{path}.flowLabel"), "a far end of IPv4 has no flow labels");
            }
            _ => {}
        }
    }
}
