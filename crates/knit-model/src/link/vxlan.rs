//! vxlan: Ethernet over UDP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, tunnel};
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problems;

/// The IANA port of VXLAN (the kernel's default is an older one).
pub const VXLAN_PORT: u16 = 4789;

/// VXLAN-specific fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vxlan {
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Default remote endpoint or multicast group for destinations without an FDB entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// Local endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// UDP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Parent link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// TTL; 0: the system's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Whether remote endpoints are learnt from packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning: Option<bool>,
    /// Ageing time of learnt entries, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fdb_ageing: Option<u32>,
    /// All permanent FDB entries: hardware address to remote endpoint. Not observed on a link that learns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fdb: Option<BTreeMap<Mac, IpAddr>>,
    /// All remote endpoints for broadcast and unknown unicast. Mutually exclusive with `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<BTreeSet<IpAddr>>,
}

impl Vxlan {
    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            vni: 42,
            remote: Some(IpAddr::from([10, 0, 0, 2])),
            local: Some(IpAddr::from([10, 0, 0, 1])),
            port: Some(VXLAN_PORT),
            parent: Some(IfName::new("up0").expect("a valid name")),
            ttl: Some(64),
            learning: Some(true),
            fdb_ageing: Some(300),
            fdb: Some(BTreeMap::from([(Mac::derived("far"), IpAddr::from([10, 0, 0, 3]))])),
            flood: None,
        }
    }

    /// A VXLAN without learning that uses only its permanent FDB entries.
    pub fn unicast(vni: u32, port: u16, local: IpAddr, fdb: BTreeMap<Mac, IpAddr>) -> Self {
        Self {
            vni,
            remote: None,
            local: Some(local),
            port: Some(port),
            parent: None,
            ttl: None,
            learning: Some(false),
            fdb_ageing: None,
            fdb: Some(fdb),
            flood: None,
        }
    }

    /// A learning VXLAN that floods unknown destinations to all of these endpoints.
    pub fn flooding(vni: u32, port: u16, local: IpAddr, flood: BTreeSet<IpAddr>) -> Self {
        let unicast = Self::unicast(vni, port, local, BTreeMap::new());
        Self { learning: Some(true), fdb: None, flood: Some(flood), ..unicast }
    }

    /// Encapsulation overhead over this outer family.
    pub const fn overhead_over(is_ipv6: bool) -> u32 {
        let outer = if is_ipv6 { 40 } else { 20 };
        outer + 8 + 8 + 14
    }
}

impl LinkKind for Vxlan {
    const NAME: &'static str = "vxlan";
    const IMMUTABLE: &'static [&'static str] = &["vni", "port", "local", "parent", "learning"];
    const MAPS: &'static [&'static str] = &["fdb"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    fn samples() -> Vec<Self> {
        let ipv6 = |number: u16| Some(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]));
        vec![Self::full_for_tests(), Self { remote: ipv6(2), local: ipv6(1), ..Self::full_for_tests() }]
    }

    fn with_defaults(self) -> Self {
        Self { ttl: self.ttl.or(Some(0)), fdb_ageing: self.fdb_ageing.or(Some(300)), ..self }
    }

    fn overhead(&self) -> u32 {
        Self::overhead_over(self.remote.or(self.local).is_some_and(|address| address.is_ipv6()))
    }

    fn parent(&self) -> Option<&IfName> {
        self.parent.as_ref()
    }

    fn set_parent(&mut self, parent: IfName) {
        self.parent = Some(parent);
    }

    fn set_endpoints(&mut self, _local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        tunnel::check_vni_and_port(self.vni, self.port, path, problems);
        if let (Some(local), Some(remote)) = (self.local, self.remote)
            && local.is_ipv4() != remote.is_ipv4()
        {
            problems.invalid(
                format!("{path}.remote"),
                format!("{remote} and the local address {local} are of different families"),
            );
        }
        if self.local.is_some_and(|local| local.is_multicast() || local.is_unspecified()) {
            problems.invalid(format!("{path}.local"), "the local address must be a unicast address");
        }
        if self.remote.is_some_and(|remote| remote.is_multicast()) && self.parent.is_none() {
            problems.invalid(format!("{path}.parent"), "a multicast remote requires a parent");
        }
    }
}
