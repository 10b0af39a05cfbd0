//! What each kind of link says to the kernel, and how it reads the kernel's answer.
//!
//! A kind is one file below `kinds/` and one line in [`kinds!`]: it writes its own fields into `IFLA_INFO_DATA` and
//! reads them back. What every link has is not known here.

mod bridge;
mod dummy;
mod geneve;
mod gre;
mod host_device;
mod iptunnel;
mod ipvlan;
mod macvlan;
pub(crate) mod tap;
mod tunnel;
mod veth;
mod vlan;
mod vrf;
mod vxlan;
mod wireguard;

use std::io;
use std::os::fd::OwnedFd;

use knit_model::link::{
    Bridge, Dummy, Geneve, Gre, HostDevice, IpTunnel, Ipvlan, Kind, LinkKind, Macvlan, Tap, Veth, Vlan, Vrf,
    Vxlan, WireGuard,
};
use knit_model::plan::Change;
use knit_model::{IfName, Scope};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::kernel::Room;
use crate::netlink::{Attributes, Message};

/// One kind of link on the wire.
pub(crate) trait WireKind: LinkKind {
    /// The kernel's build option for it.
    const CONFIG: &'static str;

    /// Whether a link that is cut off may wait for its deletion. Not where the kernel would refuse a new link with
    /// the same fields meanwhile.
    const LINGERS: bool = true;

    /// What the kernel takes only one of, where it refuses a second link.
    fn twin(&self) -> Option<String> {
        None
    }

    /// Whether the kernel makes rules of its own with the first such link of a namespace, which would outlive it. They
    /// are taken away at once: Knit's own stand there already.
    const MAKES_RULES: bool = false;

    /// Whether the kernel forgets on a change what the change does not say: fields that are left out go to their
    /// default, and the MTU is reckoned anew. The change is then written from the link as it is, with its MTU.
    const RETOLD: bool = false;

    /// The build option where the kernel has several words for the kind.
    fn config(_name: &str) -> &'static str {
        Self::CONFIG
    }

    /// Writes the stated fields that are wanted.
    fn encode(&self, wanted: Wanted<'_>, around: &Around<'_>, data: &mut Message);

    /// Reads every field that the kernel tells. Of no attributes it makes a value that states nothing.
    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self;

    /// The same where the kernel has several words for the kind, and the word is not among the attributes.
    fn decode_as(_name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Self
    where
        Self: Sized,
    {
        Self::decode(data, parent)
    }

    /// The number of the link that this one sits on. `link` is what the kernel says for every link (`IFLA_LINK`).
    fn parent_index(_data: Attributes<'_>, link: Option<u32>) -> Option<u32> {
        link
    }

    /// Its own fields that are told and asked beside the link's own message, by [`WireKind::tell`] and
    /// [`WireKind::ask`].
    const TOLD: &'static [&'static str] = &[];

    /// Says what the link's own message cannot say, to a link that is there.
    fn tell(&self, _wanted: Wanted<'_>, _at: &mut At<'_, '_>) -> Result<()> {
        Ok(())
    }

    /// Reads what the link's own message does not tell.
    fn ask(&mut self, _at: &mut At<'_, '_>) -> Result<()> {
        Ok(())
    }

    /// Makes a link that the kernel does not make by a message. It stays as long as the descriptor is open, or until
    /// [`WireKind::keep`], which is called once it has Knit's mark.
    fn make(&self, _at: &mut At<'_, '_>) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Has a link stay that was made otherwise than by a message.
    fn keep(&self, _made: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    /// The MTU to be born with, when that may not be the wanted one; the wanted one is set right after.
    fn birth_mtu(mtu: u32) -> u32 {
        mtu
    }
}

/// Which fields to write.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// All that are stated.
    All,
    /// The changed ones.
    Changed(&'a [Change]),
}

impl Wanted<'_> {
    /// The value, if it is stated and its field is wanted.
    pub(crate) fn of<T: Copy>(self, field: &str, value: Option<T>) -> Option<T> {
        match self {
            Self::All => value,
            Self::Changed(changes) => value.filter(|_| changes.iter().any(|change| change.field == field)),
        }
    }

    /// What the field was before it was changed.
    pub(crate) fn before(&self, field: &str) -> Option<&Value> {
        match self {
            Self::All => None,
            Self::Changed(changes) => {
                changes.iter().find(|change| change.field == field).map(|change| &change.from)
            }
        }
    }
}

/// What a kind needs to know of other links.
#[derive(Default)]
pub(crate) struct Around<'a> {
    /// The number of the link it sits on, in the scope that it is born from.
    pub(crate) parent: Option<u32>,
    /// Writes the far end of a pair.
    pub(crate) far_end: Option<&'a dyn Fn(&mut Message)>,
}

/// A link that is told or asked something beside its own message, and the room to do it in.
pub(crate) struct At<'a, 'r> {
    pub(crate) room: &'a mut Room<'r>,
    pub(crate) scope: &'a Scope,
    pub(crate) link: &'a IfName,
}

macro_rules! kinds {
    ($($name:ident),* $(,)?) => {
        /// Writes a kind's own fields.
        pub(crate) fn encode(kind: &Kind, wanted: Wanted<'_>, around: &Around<'_>, data: &mut Message) {
            match kind {
                $(Kind::$name(kind) => kind.encode(wanted, around, data),)*
                Kind::Other { .. } => {}
            }
        }

        /// Reads a kind by the kernel's word for it.
        pub(crate) fn decode(name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Kind {
            match name {
                $(_ if is::<$name>(name) => Kind::$name(<$name as WireKind>::decode_as(name, data, parent)),)*
                _ => Kind::Other { name: name.to_owned() },
            }
        }

        /// The number of the link that a link of this kind sits on.
        pub(crate) fn parent_index(name: &str, data: Attributes<'_>, link: Option<u32>) -> Option<u32> {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::parent_index(data, link),)*
                _ => None,
            }
        }

        /// The kernel's build option for a kind.
        pub(crate) fn config(name: &str) -> Option<&'static str> {
            match name {
                $(_ if is::<$name>(name) => Some(<$name as WireKind>::config(name)),)*
                _ => None,
            }
        }

        /// Whether a link of this kind may wait for its deletion.
        pub(crate) fn lingers(name: &str) -> bool {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::LINGERS,)*
                _ => false,
            }
        }

        /// What the kernel takes only one of.
        pub(crate) fn twin(kind: &Kind) -> Option<String> {
            match kind {
                $(Kind::$name(kind) => kind.twin(),)*
                Kind::Other { .. } => None,
            }
        }

        /// Whether the kernel makes rules of its own with the first link of this kind.
        pub(crate) fn makes_rules(name: &str) -> bool {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::MAKES_RULES,)*
                _ => false,
            }
        }

        /// Whether the kernel forgets on a change of this kind what the change does not say.
        pub(crate) fn is_retold(name: &str) -> bool {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::RETOLD,)*
                _ => false,
            }
        }

        /// The kind's own fields that are told beside the link's own message.
        pub(crate) fn told(name: &str) -> &'static [&'static str] {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::TOLD,)*
                _ => &[],
            }
        }

        /// Says what the link's own message cannot say.
        pub(crate) fn tell(kind: &Kind, wanted: Wanted<'_>, at: &mut At<'_, '_>) -> Result<()> {
            match kind {
                $(Kind::$name(kind) => kind.tell(wanted, at),)*
                Kind::Other { .. } => Ok(()),
            }
        }

        /// Reads what the link's own message does not tell.
        pub(crate) fn ask(kind: &mut Kind, at: &mut At<'_, '_>) -> Result<()> {
            match kind {
                $(Kind::$name(kind) => kind.ask(at),)*
                Kind::Other { .. } => Ok(()),
            }
        }

        /// Makes a link that the kernel does not make by a message.
        pub(crate) fn make(kind: &Kind, at: &mut At<'_, '_>) -> Result<Option<OwnedFd>> {
            match kind {
                $(Kind::$name(kind) => kind.make(at),)*
                Kind::Other { .. } => Ok(None),
            }
        }

        /// Has a link stay that was made otherwise than by a message.
        pub(crate) fn keep(kind: &Kind, made: OwnedFd) -> io::Result<()> {
            match kind {
                $(Kind::$name(kind) => kind.keep(made),)*
                Kind::Other { .. } => Ok(()),
            }
        }

        /// The MTU that a link of this kind is born with.
        pub(crate) fn birth_mtu(name: &str, mtu: u32) -> u32 {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::birth_mtu(mtu),)*
                _ => mtu,
            }
        }
    };
}

kinds!(
    Veth, Bridge, Macvlan, Vxlan, Dummy, Vlan, Ipvlan, Vrf, WireGuard, Tap, HostDevice, Geneve, Gre, IpTunnel
);

/// Whether the kernel's word is one for this kind.
fn is<T: LinkKind>(name: &str) -> bool {
    T::NAMES.contains(&name)
}

/// A kind that states what the changes say of it, over what was read of it. Changes of the common fields are left out.
pub(crate) fn changed(name: &str, data: Attributes<'_>, changes: &[Change]) -> Result<Kind> {
    let unsayable = |why: serde_json::Error| Error::Unsayable {
        context: format!("change a {name}").into(),
        why: why.to_string(),
    };
    let mut value = serde_json::to_value(decode(name, data, None)).map_err(unsayable)?;
    for change in changes {
        value[&change.field] = change.to.clone();
    }
    serde_json::from_value(value).map_err(unsayable)
}

#[cfg(test)]
mod tests {
    use knit_model::link::{GreForm, INHERIT_TOS, IpTunnelForm, Kind, MacvlanMode, VlanProtocol};

    use super::*;

    /// What a kind writes is what it reads, for every field of the model.
    #[test]
    fn what_a_kind_writes_it_reads_back() {
        let bridge = Bridge {
            stp: Some(true),
            forward_delay: Some(4),
            ageing: Some(60),
            priority: Some(4096),
            vlan_filtering: Some(true),
            default_pvid: Some(7),
            vlan_protocol: Some(VlanProtocol::Dot1ad),
            multicast_snooping: Some(false),
        };
        // Its entries are told beside the link's own message.
        let vxlan = Vxlan { fdb: None, flood: None, ..Vxlan::full_for_tests() };
        let ipv6 = Vxlan {
            remote: Some("fd00::2".parse().unwrap()),
            local: Some("fd00::1".parse().unwrap()),
            ..vxlan.clone()
        };
        let kinds = [
            Kind::Bridge(bridge),
            Kind::Macvlan(Macvlan { mode: Some(MacvlanMode::Vepa), ..Macvlan::full_for_tests() }),
            Kind::Vxlan(vxlan),
            Kind::Vxlan(ipv6),
            Kind::Veth(Veth { peer: None }),
            Kind::Dummy(Dummy {}),
            Kind::Vlan(Vlan::full_for_tests()),
            Kind::Ipvlan(Ipvlan::full_for_tests()),
            Kind::Vrf(Vrf { table: 10 }),
            Kind::Geneve(Geneve::full_for_tests()),
            Kind::Geneve(Geneve {
                remote: Some([10, 0, 0, 2].into()),
                flow_label: Some(0),
                ..Geneve::full_for_tests()
            }),
            Kind::Gre(Gre::full_for_tests(GreForm::Gre)),
            Kind::Gre(Gre::full_for_tests(GreForm::Gretap)),
            Kind::Gre(Gre::full_for_tests(GreForm::Ip6gre)),
            Kind::Gre(Gre { tos: Some(INHERIT_TOS), ..Gre::full_for_tests(GreForm::Ip6gretap) }),
            Kind::IpTunnel(IpTunnel::full_for_tests(IpTunnelForm::Ipip)),
            Kind::IpTunnel(IpTunnel::full_for_tests(IpTunnelForm::Sit)),
            Kind::IpTunnel(IpTunnel::full_for_tests(IpTunnelForm::Ip6tnl)),
        ];
        for kind in kinds {
            let mut message = Message::new(0, 0, "test");
            encode(&kind, Wanted::All, &Around { parent: Some(7), far_end: None }, &mut message);
            let data = Attributes::new(&message.as_bytes()[16..]);
            assert_eq!(decode(kind.name(), data, kind.parent().cloned()), kind);
        }
    }

    #[test]
    fn a_change_writes_its_field_alone() {
        let change = Change { field: "ttl".to_owned(), from: 1.into(), to: 9.into() };
        let mtu = Change { field: "mtu".to_owned(), from: 1400.into(), to: 1500.into() };
        let changes = [change, mtu];
        let kind = changed("vxlan", Attributes::new(&[]), &changes).unwrap();
        let mut message = Message::new(0, 0, "test");
        encode(&kind, Wanted::Changed(&changes), &Around::default(), &mut message);
        let written: Vec<_> = Attributes::new(&message.as_bytes()[16..]).map(|a| a.value.to_vec()).collect();
        assert_eq!(written, [vec![9]]);
    }

    #[test]
    fn every_kind_of_the_model_is_in_the_list() {
        for name in Kind::names() {
            assert!(config(name).is_some_and(|config| config.starts_with("CONFIG_")), "{name}");
        }
        assert_eq!(config("nosuch"), None);
    }
}
