//! vxlan: Ethernet in UDP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::mac::Mac;
use crate::name::IfName;
use crate::problem::Problems;

/// The port that IANA gave to VXLAN. (The kernel's own default is an older one.)
pub const DEFAULT_PORT: u16 = 4789;

/// A VXLAN's own fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vxlan {
    /// The network's number, 24 bits.
    pub vni: u32,
    /// The far end (or multicast group) for what has no entry of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<IpAddr>,
    /// The near end's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// The UDP port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The link that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<IfName>,
    /// Hops; 0 takes the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u8>,
    /// Whether addresses are learnt from packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning: Option<bool>,
    /// Seconds after which a silent address is forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fdb_ageing: Option<u32>,
    /// Where frames to a hardware address go: all the fixed entries that there are. Of a link that learns nothing is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fdb: Option<BTreeMap<Mac, IpAddr>>,
    /// Where frames to everyone go, and those whose place is not known: all the places. It goes without `remote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flood: Option<BTreeSet<IpAddr>>,
}

impl Vxlan {
    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        Self {
            vni: 42,
            remote: Some(IpAddr::from([10, 0, 0, 2])),
            local: Some(IpAddr::from([10, 0, 0, 1])),
            port: Some(DEFAULT_PORT),
            parent: Some(IfName::new("up0").expect("a valid name")),
            ttl: Some(64),
            learning: Some(true),
            fdb_ageing: Some(300),
            fdb: Some(BTreeMap::from([(Mac::derived("far"), IpAddr::from([10, 0, 0, 3]))])),
            flood: None,
        }
    }

    /// A link that goes only where its entries say, from this address of the node.
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

    /// A link that learns who is where, from this address of the node. What it does not know goes to all of these.
    pub fn flooding(vni: u32, port: u16, local: IpAddr, flood: BTreeSet<IpAddr>) -> Self {
        let unicast = Self::unicast(vni, port, local, BTreeMap::new());
        Self { learning: Some(true), fdb: None, flood: Some(flood), ..unicast }
    }

    /// The bytes that it puts around each packet, over this family.
    pub const fn overhead_over(is_ipv6: bool) -> u32 {
        let outer = if is_ipv6 { 40 } else { 20 };
        outer + 8 + 8 + 14
    }
}

impl LinkKind for Vxlan {
    const NAME: &'static str = "vxlan";
    const RECREATE: &'static [&'static str] = &["vni", "port", "local", "parent", "learning"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

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

    fn set_ends(&mut self, _local: IpAddr, remote: IpAddr) {
        self.remote = Some(remote);
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
            problems.invalid(format!("{path}.parent"), "a multicast remote needs a parent to send it on");
        }
    }
}
