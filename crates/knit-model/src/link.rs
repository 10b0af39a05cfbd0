//! Links: what every link has, and what each kind has of its own.
//!
//! A kind is one file below `link/` and one line in [`kinds!`]. Its fields are its serde fields, so that comparing,
//! printing and storing need no code of its own; it only says which fields the kernel cannot change on a living link.

mod attrs;
mod bridge;
mod compare;
mod dummy;
mod geneve;
mod gre;
mod host_device;
mod iptunnel;
mod ipvlan;
mod kind;
mod lent;
mod limit;
mod macvlan;
mod or_none;
mod port;
mod tap;
mod tunnel;
mod veth;
mod vlan;
mod vrf;
mod vxlan;
mod wireguard;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use attrs::{Attrs, MAX_MTU, MIN_MTU, Master};
pub use bridge::{Bridge, DEFAULT_VLAN};
pub use compare::agrees;
pub use dummy::Dummy;
pub use geneve::{DEFAULT_PORT as GENEVE_PORT, Geneve, GeneveDf};
pub use gre::{Gre, GreForm};
pub use host_device::HostDevice;
pub use iptunnel::{Inner, IpTunnel, IpTunnelForm};
pub use ipvlan::{Ipvlan, IpvlanFlag, IpvlanMode};
pub use kind::{Enforcement, LinkKind};
pub use lent::Lent;
pub use limit::{GRAIN as BURST_GRAIN, LEAST as LEAST_LIMIT, Limit, MOST as MOST_LIMIT, Rate};
pub use macvlan::{Macvlan, MacvlanMode};
pub use or_none::OrNone;
pub use port::{MAX_VLAN, NotVlans, PortVlans, VlanSet};
pub use tap::{NOBODY as TAP_NOBODY, Tap};
pub use tunnel::{INHERIT_TOS, MAX_FLOW_LABEL};
pub use veth::{Peer, Veth};
pub use vlan::{QosMapping, Vlan, VlanProtocol};
pub use vrf::{VRF_RULE_PRIORITY, Vrf};
pub use vxlan::{DEFAULT_PORT as VXLAN_PORT, Vxlan};
pub use wireguard::{DEFAULT_PORT as WIREGUARD_PORT, WgPeer, WireGuard};

use crate::key::SecretKey;
use crate::name::IfName;
use crate::problem::Problems;
use crate::route::Route;
use crate::rule::Rule;
use crate::sandbox::Scope;

/// Builds [`Kind`] from the list of kinds.
macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        /// A link's kind, with the kind's own fields.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        pub enum Kind {
            $(#[allow(missing_docs)] $name($name),)*
            /// A link that Knit found and does not know: never made, only seen.
            Other {
                /// The kernel's word for it; empty for a physical link.
                name: String,
            },
        }

        impl Kind {
            /// All kinds that Knit makes, by the kernel's words.
            pub fn names() -> impl Iterator<Item = &'static str> {
                [$(<$name as LinkKind>::NAMES),*].into_iter().flatten().copied()
            }

            /// Those of them that may sit on a link of another scope.
            pub fn names_on_uplink() -> impl Iterator<Item = &'static str> {
                let on_uplink = [$((<$name as LinkKind>::ON_UPLINK, <$name as LinkKind>::NAMES)),*];
                on_uplink.into_iter().filter(|(on_uplink, _)| *on_uplink).flat_map(|(_, names)| names).copied()
            }

            /// The kernel's word for the kind.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name(kind) => kind.name(),)*
                    Self::Other { name } => name,
                }
            }

            /// The kernel's words for kinds like this one.
            pub fn forms(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::NAMES,)*
                    Self::Other { .. } => &[],
                }
            }

            /// Fields that the kernel takes only at birth.
            pub fn recreate(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::RECREATE,)*
                    Self::Other { .. } => &[],
                }
            }

            /// Where policy can be enforced.
            pub fn enforcement(&self) -> Enforcement {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::ENFORCEMENT,)*
                    Self::Other { .. } => Enforcement::PodEnd,
                }
            }

            /// Whether it carries Ethernet.
            pub fn is_ethernet(&self) -> bool {
                match self {
                    $(Self::$name(kind) => kind.is_ethernet(),)*
                    Self::Other { .. } => true,
                }
            }

            /// Whether it may sit on a link of another scope.
            pub fn on_uplink(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::ON_UPLINK,)*
                    Self::Other { .. } => true,
                }
            }

            /// Sysctls of the namespace that the kernel sets by itself when such a link goes up.
            pub fn sysctls(&self) -> &'static [(&'static str, &'static str)] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::SYSCTLS,)*
                    Self::Other { .. } => &[],
                }
            }

            /// Whether it has a hardware address of its own.
            pub fn has_own_mac(&self) -> bool {
                match self {
                    $(Self::$name(kind) => kind.has_own_mac(),)*
                    Self::Other { .. } => true,
                }
            }

            /// Whether its MTU follows its parent's also upwards.
            pub fn follows_mtu(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::FOLLOWS_MTU,)*
                    Self::Other { .. } => false,
                }
            }

            /// What a link of this kind has when nobody says anything.
            pub fn habits(&self) -> Attrs {
                match self {
                    $(Self::$name(kind) => kind.habits(),)*
                    Self::Other { .. } => Attrs::default(),
                }
            }

            /// Rules that stand in a scope before the first link of this kind.
            pub fn rules(&self) -> Vec<Rule> {
                match self {
                    $(Self::$name(kind) => kind.rules(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// Routes that come with a link of this kind.
            pub fn routes(&self) -> Vec<Route> {
                match self {
                    $(Self::$name(kind) => kind.routes(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// The table of the routes through its ports; `None` is the main one.
            pub fn table(&self) -> Option<u32> {
                match self {
                    $(Self::$name(kind) => kind.table(),)*
                    Self::Other { .. } => None,
                }
            }

            /// Bytes around each packet.
            pub fn overhead(&self) -> u32 {
                match self {
                    $(Self::$name(kind) => kind.overhead(),)*
                    Self::Other { .. } => 0,
                }
            }

            /// The link of the same scope that this one sits on.
            pub fn parent(&self) -> Option<&IfName> {
                match self {
                    $(Self::$name(kind) => kind.parent(),)*
                    Self::Other { .. } => None,
                }
            }

            /// The NIC of the host that it is, where it is not made but lent.
            pub fn lent(&self) -> Option<&Lent> {
                match self {
                    $(Self::$name(kind) => kind.lent(),)*
                    Self::Other { .. } => None,
                }
            }

            /// The same, to fill in what it was.
            pub fn lent_mut(&mut self) -> Option<&mut Lent> {
                match self {
                    $(Self::$name(kind) => kind.lent_mut(),)*
                    Self::Other { .. } => None,
                }
            }

            /// The same with the kernel's own value wherever nothing is stated and it can be set back.
            #[must_use]
            pub fn with_defaults(self) -> Self {
                match self {
                    $(Self::$name(kind) => Self::$name(kind.with_defaults()),)*
                    other => other,
                }
            }

            /// The field that keeps this link from becoming the wanted one while it lives: the kernel takes it only at
            /// birth, or not this change of it.
            pub fn cannot_become(&self, wanted: &Self) -> Option<&'static str> {
                let by_value = match (self, wanted) {
                    $((Self::$name(seen), Self::$name(wanted)) => seen.cannot_become(wanted),)*
                    _ => None,
                };
                let (seen, wanted_fields) = (self.fields(), wanted.fields());
                let differs = |field: &&&str| match (wanted_fields.get(**field), seen.get(**field)) {
                    (Some(wanted), Some(seen)) => !agrees(wanted, seen),
                    _ => false,
                };
                by_value.or_else(|| wanted.recreate().iter().find(differs).copied())
            }

            /// Puts the link on another one.
            pub fn set_parent(&mut self, parent: IfName) {
                match self {
                    $(Self::$name(kind) => kind.set_parent(parent),)*
                    Self::Other { .. } => {}
                }
            }

            /// Gives a tunnel its far end, and the near end that reaches it where none is stated.
            pub fn set_ends(&mut self, local: IpAddr, remote: IpAddr) {
                match self {
                    $(Self::$name(kind) => kind.set_ends(local, remote),)*
                    Self::Other { .. } => {}
                }
            }

            /// The secret keys among its fields.
            pub fn secrets(&mut self) -> Vec<&mut SecretKey> {
                match self {
                    $(Self::$name(kind) => kind.secrets(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// What others have to know of it, by the words of a status.
            pub fn shown(&self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$name(kind) => kind.shown(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// Values that no kernel takes.
            pub fn check(&self, path: &str, problems: &mut Problems) {
                match self {
                    $(Self::$name(kind) => kind.check(path, problems),)*
                    Self::Other { .. } => {}
                }
            }

            /// The kind's own fields that are stated.
            pub fn fields(&self) -> Fields {
                match self {
                    $(Self::$name(kind) => fields_of(kind),)*
                    Self::Other { .. } => Fields::new(),
                }
            }
        }
    };
}

kinds!(
    Veth, Bridge, Macvlan, Vxlan, Dummy, Vlan, Ipvlan, Vrf, WireGuard, Tap, HostDevice, Geneve, Gre, IpTunnel
);

/// Named values of a link. A field that is not stated is not there.
pub type Fields = BTreeMap<String, Value>;

/// A link, desired or observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its name, unique in its scope.
    pub name: IfName,
    /// Its kind with the kind's fields.
    #[serde(flatten)]
    pub kind: Kind,
    /// What every link has.
    #[serde(flatten)]
    pub attrs: Attrs,
    /// The scope that it is born from and whose link it sits on, when that is not its own: a macvlan of a sandbox on a
    /// link of the host. The kernel does not tell it back, so it is never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born_from: Option<Scope>,
    /// Whose it is. Desired: `None` is a link that Knit does not own and only changes in the stated fields.
    /// Observed: `None` is a link without Knit's mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
}

/// The id in a link's mark: the attachment's or the bridge's. At most 10 hexadecimal digits, so that it also fits
/// into a 15-byte host-side name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerId(pub String);

impl OwnerId {
    /// A stable id for whatever names the owner.
    pub fn derived(seed: &str) -> Self {
        Self(format!("{:010x}", crate::mac::fnv1a(seed.as_bytes()) & 0xff_ffff_ffff))
    }
}

impl Link {
    /// A link of this name and kind with nothing else stated.
    pub fn new(name: IfName, kind: Kind) -> Self {
        Self { name, kind, attrs: Attrs::default(), born_from: None, owner: None }
    }

    /// The name that it has on the host, if it is a NIC that is lent.
    pub fn device(&self) -> Option<&IfName> {
        self.kind.lent()?.device.as_ref()
    }

    /// All stated fields: the common ones by their name, the kind's own too (their names never clash; a test holds that).
    pub fn fields(&self) -> Fields {
        let mut all = self.attrs.fields();
        all.append(&mut self.kind.fields());
        all
    }

    /// Checks every value.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        self.attrs.check(path, problems);
        self.kind.check(path, problems);
    }
}

impl Attrs {
    /// All stated fields.
    pub fn fields(&self) -> Fields {
        fields_of(self)
    }
}

fn fields_of(value: &impl Serialize) -> Fields {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        // Kinds and attributes are structs of plain values, which always serialise to an object.
        _ => Fields::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kinds_fields_never_clash_with_the_common_ones() {
        let common: Vec<String> = fields_of(&Attrs::full_for_tests()).into_keys().collect();
        let kinds = [
            Kind::Bridge(Bridge::default()).fields(),
            Kind::Vxlan(Vxlan::full_for_tests()).fields(),
            Kind::Macvlan(Macvlan::full_for_tests()).fields(),
            Kind::WireGuard(WireGuard::full_for_tests()).fields(),
            Kind::Tap(Tap::full_for_tests()).fields(),
            Kind::HostDevice(HostDevice(Lent::full_for_tests())).fields(),
            Kind::Vlan(Vlan::full_for_tests()).fields(),
            Kind::Ipvlan(Ipvlan::full_for_tests()).fields(),
            Kind::Vrf(Vrf { table: 10 }).fields(),
            Kind::Geneve(Geneve::full_for_tests()).fields(),
            Kind::Gre(Gre::full_for_tests(GreForm::Ip6gretap)).fields(),
            Kind::IpTunnel(IpTunnel::full_for_tests(IpTunnelForm::Sit)).fields(),
        ];
        for fields in kinds {
            assert!(fields.keys().all(|field| !common.contains(field)), "{fields:?} and {common:?}");
        }
    }

    #[test]
    fn an_owner_id_fits_into_a_name() {
        let id = OwnerId::derived("some/sandbox/net1");
        assert_eq!(id.0.len(), 10);
        assert_eq!(id, OwnerId::derived("some/sandbox/net1"));
    }
}
