//! Links: common attributes and kind-specific fields.
//!
//! A kind is one file below `link/` and one line in [`link_kinds!`](crate::link_kinds). Its fields are its serde fields, so
//! that comparing, printing and storing need no code per kind; a kind only states which fields the kernel cannot change on
//! an existing link.

mod attrs;
mod compare;
mod differences;
mod kind;
mod moved_device;
mod number_or_none;
mod port_vlans;
mod rate_limit;
mod tunnel;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use attrs::{Attrs, MAX_MTU, MIN_MTU, Master};
pub use compare::values_match;
pub use differences::FieldDifference;
pub use kind::{Enforcement, LinkKind};
pub use moved_device::MovedDevice;
pub use number_or_none::NumberOrNone;
pub use port_vlans::{MAX_VLAN, ParseVlansError, PortVlans, VlanSet};
pub use rate_limit::{BURST_GRANULARITY, MAX_RATE, MIN_RATE, RateLimit, TokenBucket};
pub use tunnel::{INHERIT_TOS, MAX_FLOW_LABEL, TunnelFields};

use crate::key::SecretKey;
use crate::name::IfName;
use crate::problem::Problems;
use crate::route::Route;
use crate::rule::Rule;
use crate::sandbox::Scope;

/// Declares the modules of the kinds, and builds [`Kind`].
macro_rules! kinds {
    ($($module:ident $name:ident),* $(,)?) => {
        $(mod $module;
        pub use $module::*;)*

        /// The kind of a link, with its kind-specific fields.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        pub enum Kind {
            $(#[allow(missing_docs)] $name($name),)*
            /// A kind that Knit does not support: observed, never created.
            Other {
                /// The kernel's name of the kind; empty for a physical link. A serialized link has its own `name`.
                #[serde(rename = "kernelKind")]
                name: String,
            },
        }

        impl Kind {
            /// The kernel's names of all supported kinds.
            pub fn names() -> impl Iterator<Item = &'static str> {
                [$(<$name as LinkKind>::NAMES),*].into_iter().flatten().copied()
            }

            /// Names of the kinds that may have an uplink (a link of another scope) as parent.
            pub fn names_on_uplink() -> impl Iterator<Item = &'static str> {
                let on_uplink = [$((<$name as LinkKind>::ON_UPLINK, <$name as LinkKind>::NAMES)),*];
                on_uplink.into_iter().filter(|(on_uplink, _)| *on_uplink).flat_map(|(_, names)| names).copied()
            }

            /// The kernel's name of the kind (`IFLA_INFO_KIND`).
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name(kind) => kind.name(),)*
                    Self::Other { name } => name,
                }
            }

            /// All kernel names that this kind of link can have.
            pub fn kernel_kinds(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::NAMES,)*
                    Self::Other { .. } => &[],
                }
            }

            /// Fields that the kernel accepts only when the link is created.
            pub fn immutable_fields(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::IMMUTABLE,)*
                    Self::Other { .. } => &[],
                }
            }

            /// Fields that are maps, of which a change sets and removes single entries.
            pub fn map_fields(&self) -> &'static [&'static str] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::MAPS,)*
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

            /// Whether it may have an uplink (a link of another scope) as parent.
            pub fn on_uplink(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::ON_UPLINK,)*
                    Self::Other { .. } => true,
                }
            }

            /// Sysctls of the namespace that the kernel itself changes when such a link comes up.
            pub fn sysctls(&self) -> &'static [(&'static str, &'static str)] {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::SYSCTLS,)*
                    Self::Other { .. } => &[],
                }
            }

            /// Whether it has its own hardware address.
            pub fn has_own_mac(&self) -> bool {
                match self {
                    $(Self::$name(kind) => kind.has_own_mac(),)*
                    Self::Other { .. } => true,
                }
            }

            /// Whether a link of this kind on another such link is attached to the parent of that link.
            pub fn shares_parent(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::SHARES_PARENT,)*
                    Self::Other { .. } => false,
                }
            }

            /// Whether it passes the frames of links on it to its parent unmodified.
            pub fn is_transparent(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::TRANSPARENT,)*
                    Self::Other { .. } => false,
                }
            }

            /// Whether its ports have its MTU and hardware address, and are recreated to join or leave it.
            pub fn configures_ports(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::CONFIGURES_PORTS,)*
                    Self::Other { .. } => false,
                }
            }

            /// Whether its MTU is also raised when the MTU of its parent is raised.
            pub fn follows_mtu(&self) -> bool {
                match self {
                    $(Self::$name(_) => <$name as LinkKind>::FOLLOWS_MTU,)*
                    Self::Other { .. } => false,
                }
            }

            /// Default attributes of this kind.
            pub fn default_attrs(&self) -> Attrs {
                match self {
                    $(Self::$name(kind) => kind.default_attrs(),)*
                    Self::Other { .. } => Attrs::default(),
                }
            }

            /// Policy rules that must exist in a scope before the first link of this kind.
            pub fn rules(&self) -> Vec<Rule> {
                match self {
                    $(Self::$name(kind) => kind.rules(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// Routes that a link of this kind requires.
            pub fn routes(&self) -> Vec<Route> {
                match self {
                    $(Self::$name(kind) => kind.routes(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// Routing table of its ports; `None`: the main table.
            pub fn table(&self) -> Option<u32> {
                match self {
                    $(Self::$name(kind) => kind.table(),)*
                    Self::Other { .. } => None,
                }
            }

            /// Encapsulation overhead in bytes per packet.
            pub fn overhead(&self) -> u32 {
                match self {
                    $(Self::$name(kind) => kind.overhead(),)*
                    Self::Other { .. } => 0,
                }
            }

            /// The parent (lower) link.
            pub fn parent(&self) -> Option<&IfName> {
                match self {
                    $(Self::$name(kind) => kind.parent(),)*
                    Self::Other { .. } => None,
                }
            }

            /// The host NIC, if the link is a device that is moved into the sandbox.
            pub fn moved_device(&self) -> Option<&MovedDevice> {
                match self {
                    $(Self::$name(kind) => kind.moved_device(),)*
                    Self::Other { .. } => None,
                }
            }

            /// Mutable access to [`Kind::moved_device`].
            pub fn moved_device_mut(&mut self) -> Option<&mut MovedDevice> {
                match self {
                    $(Self::$name(kind) => kind.moved_device_mut(),)*
                    Self::Other { .. } => None,
                }
            }

            /// The kind with kernel defaults for all unset fields that can be reset on an existing link.
            #[must_use]
            pub fn with_defaults(self) -> Self {
                match self {
                    $(Self::$name(kind) => Self::$name(kind.with_defaults()),)*
                    other => other,
                }
            }

            /// The field that requires the link to be recreated to reach `desired`: the kernel cannot change it, or not to
            /// this value, on an existing link.
            pub fn recreate_field(&self, desired: &Self) -> Option<&'static str> {
                let by_value = match (self, desired) {
                    $((Self::$name(observed), Self::$name(desired)) => observed.recreate_field(desired),)*
                    _ => None,
                };
                // A veth's peer is not observed, so it cannot be compared.
                if by_value.is_some() || self == desired || matches!(self, Self::Veth(Veth { peer: None })) {
                    return by_value;
                }
                let (observed_fields, desired_fields) = (self.fields(), desired.fields());
                let differs = |field: &&&str| match (desired_fields.get(**field), observed_fields.get(**field)) {
                    (Some(desired), Some(observed)) => !values_match(desired, observed),
                    _ => false,
                };
                desired.immutable_fields().iter().find(differs).copied()
            }

            /// Sets the parent link.
            pub fn set_parent(&mut self, parent: IfName) {
                match self {
                    $(Self::$name(kind) => kind.set_parent(parent),)*
                    Self::Other { .. } => {}
                }
            }

            /// Sets the remote endpoint of a tunnel, and its local endpoint if that is unset.
            pub fn set_endpoints(&mut self, local: IpAddr, remote: IpAddr) {
                match self {
                    $(Self::$name(kind) => kind.set_endpoints(local, remote),)*
                    Self::Other { .. } => {}
                }
            }

            /// The secret keys among its fields.
            pub fn secret_keys(&mut self) -> Vec<&mut SecretKey> {
                match self {
                    $(Self::$name(kind) => kind.secret_keys(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// Details for the status of an interface, such as a public key.
            pub fn details(&self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$name(kind) => kind.details(),)*
                    Self::Other { .. } => Vec::new(),
                }
            }

            /// Checks the kind-specific fields.
            pub fn check(&self, path: &str, problems: &mut Problems) {
                match self {
                    $(Self::$name(kind) => kind.check(path, problems),)*
                    Self::Other { .. } => {}
                }
            }

            /// Links of every kind with every field set, for tests that cover all kinds.
            #[doc(hidden)]
            pub fn samples() -> Vec<Self> {
                let mut all = Vec::new();
                $(all.extend(<$name as LinkKind>::samples().into_iter().map(Self::$name));)*
                all
            }

            /// All set fields of the kind.
            pub fn fields(&self) -> Fields {
                match self {
                    $(Self::$name(kind) => fields_of(kind),)*
                    Self::Other { .. } => Fields::new(),
                }
            }
        }
    };
}

crate::link_kinds!(kinds);

/// Fields of a link by name. Unset fields are absent.
pub type Fields = BTreeMap<String, Value>;

/// A link, desired or observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its name, unique in its scope.
    pub name: IfName,
    /// Its kind and kind-specific fields.
    #[serde(flatten)]
    pub kind: Kind,
    /// Attributes that every link has.
    #[serde(flatten)]
    pub attrs: Attrs,
    /// The scope of its parent, if that is another scope: a macvlan of a sandbox on a link of the host. The link is created
    /// from that scope. The kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_scope: Option<Scope>,
    /// Owner. Desired: `None` is a link that Knit does not own and of which it only changes the set fields. Observed: `None`
    /// is a link without an ownership mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerId>,
}

/// The id in a link's ownership mark: that of the attachment or bridge. At most 10 hexadecimal digits, so that it also
/// fits into a host-side name of 15 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerId(pub String);

impl OwnerId {
    /// A stable id derived from the owner's name.
    pub fn derived(seed: &str) -> Self {
        Self(format!("{:010x}", crate::mac::fnv1a(seed.as_bytes()) & 0xff_ffff_ffff))
    }
}

impl Link {
    /// A link of this name and kind with everything else unset.
    pub fn new(name: IfName, kind: Kind) -> Self {
        Self { name, kind, attrs: Attrs::default(), parent_scope: None, owner: None }
    }

    /// Its name on the host, if it is a moved device.
    pub fn device(&self) -> Option<&IfName> {
        self.kind.moved_device()?.device.as_ref()
    }

    /// All set fields, common and kind-specific (a test ensures that the names do not clash).
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
    /// All set fields.
    pub fn fields(&self) -> Fields {
        fields_of(self)
    }
}

fn fields_of(value: &impl Serialize) -> Fields {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        // Kinds and attributes are structs of plain values, which always serialize to an object.
        _ => Fields::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mac;

    #[test]
    fn kind_specific_fields_never_clash_with_common_ones() {
        let common: Vec<String> = fields_of(&Attrs::full_for_tests()).into_keys().collect();
        for fields in Kind::samples().iter().map(Kind::fields) {
            assert!(fields.keys().all(|field| !common.contains(field)), "{fields:?} and {common:?}");
        }
    }

    #[test]
    fn every_link_survives_json() {
        let mut kinds = Kind::samples();
        kinds.push(Kind::Other { name: "ifb".to_owned() });
        for kind in kinds {
            let mut link = Link::new("a0".parse().unwrap(), kind);
            link.attrs = Attrs::full_for_tests();
            // As the kernel shows the loopback link.
            link.attrs.mac = Some(Mac::from_bytes([0; 6]));
            let text = serde_json::to_string(&link).unwrap();
            assert_eq!(serde_json::from_str::<Link>(&text).unwrap(), link, "{text}");
        }
    }

    #[test]
    fn an_owner_id_fits_into_an_interface_name() {
        let id = OwnerId::derived("some/sandbox/net1");
        assert_eq!(id.0.len(), 10);
        assert_eq!(id, OwnerId::derived("some/sandbox/net1"));
    }
}
