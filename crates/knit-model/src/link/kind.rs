//! The trait that every link kind implements.

use std::net::IpAddr;

use serde::Serialize;

use super::{Attrs, MovedDevice};
use crate::key::SecretKey;
use crate::name::IfName;
use crate::problem::Problems;
use crate::route::Route;
use crate::rule::Rule;

/// Where policy can be enforced on a kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// On the host end of the link, which sees all traffic of the pod.
    HostEnd,
    /// Only inside the sandbox, because the link has no host end.
    PodEnd,
}

/// Properties of a link kind beside its fields.
pub trait LinkKind: Serialize {
    /// The kernel's name of the kind (`IFLA_INFO_KIND`).
    const NAME: &'static str;
    /// All kernel names of the kind, if its fields select one of several.
    const NAMES: &'static [&'static str] = &[Self::NAME];
    /// Fields that the kernel accepts only when the link is created; changing one recreates the link.
    const IMMUTABLE: &'static [&'static str];
    /// Fields that are maps, of which a change sets and removes single entries.
    const MAPS: &'static [&'static str] = &[];
    /// Where policy can be enforced.
    const ENFORCEMENT: Enforcement;
    /// Whether it carries Ethernet. Other links have no hardware address, and no ARP or multicast by default.
    const ETHERNET: bool = true;
    /// Whether it may have an uplink (a link of another scope) as parent. False for kinds without a parent and for kinds
    /// whose parent the kernel looks up in the link's own scope.
    const ON_UPLINK: bool = true;
    /// Whether the kernel also raises its MTU with that of its parent. All kinds follow downwards.
    const FOLLOWS_MTU: bool = false;
    /// Whether the kernel attaches a link of this kind on another such link to the parent of that link.
    const SHARES_PARENT: bool = false;
    /// Whether it passes the frames of links on it to its parent unmodified, VLAN tags included.
    const TRANSPARENT: bool = false;
    /// Whether the kernel gives its ports its own MTU and hardware address, and lets only a link that is down join. Such
    /// ports are recreated to join or leave.
    const CONFIGURES_PORTS: bool = false;
    /// Sysctls of the namespace that the kernel itself changes when such a link comes up. They are part of desired state so
    /// that their old values are recorded and restored.
    const SYSCTLS: &'static [(&'static str, &'static str)] = &[];

    /// Links with every field set, for tests that cover all kinds.
    #[doc(hidden)]
    fn samples() -> Vec<Self>
    where
        Self: Sized;

    /// The kernel's name of this link's kind.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Whether this link carries Ethernet.
    fn is_ethernet(&self) -> bool {
        Self::ETHERNET
    }

    /// Whether this link has its own, settable hardware address.
    fn has_own_mac(&self) -> bool {
        self.is_ethernet()
    }

    /// Default attributes of this kind that differ from those of most links.
    fn default_attrs(&self) -> Attrs {
        Attrs::default()
    }

    /// Policy rules that must exist in a scope from before the first to the last link of this kind.
    fn rules(&self) -> Vec<Rule> {
        Vec::new()
    }

    /// Routes that a link of this kind requires.
    fn routes(&self) -> Vec<Route> {
        Vec::new()
    }

    /// Routing table of its ports; `None`: the main table.
    fn table(&self) -> Option<u32> {
        None
    }

    /// Encapsulation overhead in bytes per packet.
    fn overhead(&self) -> u32 {
        0
    }

    /// The parent (lower) link.
    fn parent(&self) -> Option<&IfName> {
        None
    }

    /// The host NIC, if the link is a device that is moved into the sandbox.
    fn moved_device(&self) -> Option<&MovedDevice> {
        None
    }

    /// Mutable access to [`LinkKind::moved_device`].
    fn moved_device_mut(&mut self) -> Option<&mut MovedDevice> {
        None
    }

    /// The kind with kernel defaults for all unset fields that can be reset on an existing link, so that a field that is
    /// removed from an object is reset.
    #[must_use]
    fn with_defaults(self) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// The field that requires the link to be recreated to reach `desired`, where that depends on the values.
    fn recreate_field(&self, _desired: &Self) -> Option<&'static str>
    where
        Self: Sized,
    {
        None
    }

    /// Sets the parent link. Kinds without a parent ignore it.
    fn set_parent(&mut self, _parent: IfName) {}

    /// Sets the remote endpoint of a tunnel, and its local endpoint if that is unset. Other kinds ignore it.
    fn set_endpoints(&mut self, _local: IpAddr, _remote: IpAddr) {}

    /// The secret keys among its fields.
    fn secret_keys(&mut self) -> Vec<&mut SecretKey> {
        Vec::new()
    }

    /// Details for the status of an interface, such as a public key.
    fn details(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Checks the kind-specific fields.
    fn check(&self, _path: &str, _problems: &mut Problems) {}
}
