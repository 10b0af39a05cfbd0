//! What a kind of link says about itself: the one trait that each file beside this one implements.

use std::net::IpAddr;

use serde::Serialize;

use super::{Attrs, Lent};
use crate::key::SecretKey;
use crate::name::IfName;
use crate::problem::Problems;
use crate::route::Route;
use crate::rule::Rule;

/// Where policy can be enforced on a kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// The host has an end of it, which sees everything the pod sends.
    HostEnd,
    /// There is no host end: only inside the sandbox.
    PodEnd,
}

/// What a kind of link says about itself, beside its fields.
pub trait LinkKind: Serialize {
    /// The kernel's word for it (`IFLA_INFO_KIND`).
    const NAME: &'static str;
    /// All of the kernel's words for it, where its fields decide which of them it is.
    const NAMES: &'static [&'static str] = &[Self::NAME];
    /// Fields that the kernel takes only at birth: a change makes the link again.
    const RECREATE: &'static [&'static str];
    /// Where policy can be enforced.
    const ENFORCEMENT: Enforcement;
    /// Whether it carries Ethernet. A link that does not has no hardware address, and neither ARP nor multicast by itself.
    const ETHERNET: bool = true;
    /// Whether it may sit on a link of another scope. Not where it sits on nothing, nor where the kernel looks for its
    /// parent in the scope that it lives in.
    const ON_UPLINK: bool = true;
    /// Whether its MTU follows that of the link it sits on also upwards. Downwards all do.
    const FOLLOWS_MTU: bool = false;
    /// Sysctls of the namespace that the kernel sets by itself when such a link goes up. They are part of what is wanted,
    /// so that their old values are remembered and come back.
    const SYSCTLS: &'static [(&'static str, &'static str)] = &[];

    /// The kernel's word for this one.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Whether this one carries Ethernet.
    fn is_ethernet(&self) -> bool {
        Self::ETHERNET
    }

    /// Whether this one has a hardware address of its own, which can be chosen.
    fn has_own_mac(&self) -> bool {
        self.is_ethernet()
    }

    /// What a link of this kind has when nobody says anything, where that is not what most links have.
    fn habits(&self) -> Attrs {
        Attrs::default()
    }

    /// Rules that stand in a scope before the first link of this kind, and go with the last.
    fn rules(&self) -> Vec<Rule> {
        Vec::new()
    }

    /// Routes that come with a link of this kind.
    fn routes(&self) -> Vec<Route> {
        Vec::new()
    }

    /// The table of the routes through its ports; `None` is the main one.
    fn table(&self) -> Option<u32> {
        None
    }

    /// Bytes that the kind adds around each packet, which its MTU has to leave room for.
    fn overhead(&self) -> u32 {
        0
    }

    /// The link of the same scope that this one sits on.
    fn parent(&self) -> Option<&IfName> {
        None
    }

    /// The NIC of the host that it is, where it is not made but lent.
    fn lent(&self) -> Option<&Lent> {
        None
    }

    /// The same, to fill in what it was.
    fn lent_mut(&mut self) -> Option<&mut Lent> {
        None
    }

    /// The same with the kernel's own value wherever nothing is stated and a living link can be set back to it, so that
    /// a field that is taken out of an object goes back.
    #[must_use]
    fn with_defaults(self) -> Self
    where
        Self: Sized,
    {
        self
    }

    /// The field that keeps this link from becoming the wanted one while it lives, where that depends on the values.
    fn cannot_become(&self, _wanted: &Self) -> Option<&'static str>
    where
        Self: Sized,
    {
        None
    }

    /// Puts the link on another one. Kinds that sit on nothing ignore it.
    fn set_parent(&mut self, _parent: IfName) {}

    /// Gives a tunnel its far end, and the near end that reaches it where none is stated. Kinds that have none ignore it.
    fn set_ends(&mut self, _local: IpAddr, _remote: IpAddr) {}

    /// The secret keys among its fields.
    fn secrets(&mut self) -> Vec<&mut SecretKey> {
        Vec::new()
    }

    /// What others have to know of it, by the words of a status.
    fn shown(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Values that no kernel takes.
    fn check(&self, _path: &str, _problems: &mut Problems) {}
}
