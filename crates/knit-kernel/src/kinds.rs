//! Encodes and decodes the attributes of each link kind.
//!
//! A kind is one file in `kinds/`, declared by [`knit_model::link_kinds!`]: it writes its fields into `IFLA_INFO_DATA`,
//! reads them back, and probes whether the kernel supports it. The common attributes of links are not part of a kind.

mod tunnel;

use std::io;
use std::os::fd::OwnedFd;

use knit_model::link::*;
use knit_model::plan::FieldChange;
use knit_model::{IfName, Scope};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::features::Probe;
use crate::kernel::Session;
use crate::netlink::{Attributes, Message};

/// The netlink encoding of a link kind.
pub(crate) trait WireKind: LinkKind {
    /// The kernel's build option for it.
    const CONFIG: &'static str;

    /// How to detect whether the kernel supports it: one probe for each kernel name.
    const PROBES: &'static [Probe];

    /// Whether a detached link may wait for deferred deletion. Not where the kernel would reject a new link with the
    /// same parameters meanwhile.
    const ALLOWS_DEFERRED_DELETE: bool = true;

    /// Describes the existing link with which the kernel reports a conflict.
    fn conflicting_link(&self) -> Option<String> {
        None
    }

    /// Whether the kernel adds policy rules with the first such link of a namespace, which would outlive it. They are
    /// removed immediately: Knit's rules exist already.
    const KERNEL_ADDS_RULES: bool = false;

    /// Whether a change resets the fields that it omits to their defaults, and recomputes the MTU. The change is then
    /// encoded from the current link, with its MTU.
    const RESETS_OMITTED_FIELDS: bool = false;

    /// The build option, for kinds with several kernel names.
    fn config(_name: &str) -> &'static str {
        Self::CONFIG
    }

    /// Writes the selected fields.
    fn encode(&self, selection: FieldSelection<'_>, related: &RelatedLinks<'_>, data: &mut Message);

    /// Decodes every field that the kernel reports. Without attributes no field is set.
    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self;

    /// The same for kinds with several kernel names, where the name is not among the attributes.
    fn decode_as(_name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Self
    where
        Self: Sized,
    {
        Self::decode(data, parent)
    }

    /// The index of the parent. `link` is the common attribute (`IFLA_LINK`).
    fn parent_index(_data: Attributes<'_>, link: Option<u32>) -> Option<u32> {
        link
    }

    /// Its fields that are configured outside the link message, by [`WireKind::configure`] and
    /// [`WireKind::read_config`].
    const CONFIGURED_FIELDS: &'static [&'static str] = &[];

    /// Configures an existing link outside the link message.
    fn configure(&self, _selection: FieldSelection<'_>, _link: &mut LinkContext<'_, '_>) -> Result<()> {
        Ok(())
    }

    /// Reads the configuration outside the link message.
    fn read_config(&mut self, _link: &mut LinkContext<'_, '_>) -> Result<()> {
        Ok(())
    }

    /// Creates a link that netlink cannot create. It exists as long as the descriptor is open, or until
    /// [`WireKind::persist`], which is called after the link has its ownership mark.
    fn create_device(&self, _link: &mut LinkContext<'_, '_>) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// Makes a device persistent that was not created by netlink.
    fn persist(&self, _device: OwnedFd) -> io::Result<()> {
        Ok(())
    }

    /// The MTU to create the link with, if it differs; the final MTU is set afterwards.
    fn initial_mtu(mtu: u32) -> u32 {
        mtu
    }
}

/// The fields to write.
#[derive(Clone, Copy)]
pub(crate) enum FieldSelection<'a> {
    /// All fields with a value.
    All,
    /// Fields of these changes.
    Changed(&'a [FieldChange]),
}

impl FieldSelection<'_> {
    /// The value, if its field is selected.
    pub(crate) fn select<T: Copy>(self, field: &str, value: Option<T>) -> Option<T> {
        match self {
            Self::All => value,
            Self::Changed(changes) => value.filter(|_| changes.iter().any(|change| change.field == field)),
        }
    }

    /// The value before the change.
    pub(crate) fn old_value(&self, field: &str) -> Option<&Value> {
        match self {
            Self::All => None,
            Self::Changed(changes) => {
                changes.iter().find(|change| change.field == field).map(|change| &change.from)
            }
        }
    }
}

/// Related links.
#[derive(Default)]
pub(crate) struct RelatedLinks<'a> {
    /// The index of the parent, in the scope from which the link is created.
    pub(crate) parent: Option<u32>,
    /// Writes the far end of a pair.
    pub(crate) peer: Option<&'a dyn Fn(&mut Message)>,
}

/// An existing link that is configured outside the link message.
pub(crate) struct LinkContext<'a, 'r> {
    pub(crate) session: &'a mut Session<'r>,
    pub(crate) scope: &'a Scope,
    pub(crate) name: &'a IfName,
}

macro_rules! kinds {
    ($($module:ident $name:ident),* $(,)?) => {
        $(pub(crate) mod $module;)*

        /// The probes of all kinds.
        pub(crate) fn probes() -> Vec<Probe> {
            [$(<$name as WireKind>::PROBES),*].concat()
        }

        /// Writes the fields of a kind.
        pub(crate) fn encode(kind: &Kind, selection: FieldSelection<'_>, related: &RelatedLinks<'_>, data: &mut Message) {
            match kind {
                $(Kind::$name(kind) => kind.encode(selection, related, data),)*
                Kind::Other { .. } => {}
            }
        }

        /// Decodes a kind by its kernel name.
        pub(crate) fn decode(name: &str, data: Attributes<'_>, parent: Option<IfName>) -> Kind {
            match name {
                $(_ if is::<$name>(name) => Kind::$name(<$name as WireKind>::decode_as(name, data, parent)),)*
                _ => Kind::Other { name: name.to_owned() },
            }
        }

        /// The index of the parent of a link.
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

        /// Whether a link of this kind may be deleted later.
        pub(crate) fn allows_deferred_delete(name: &str) -> bool {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::ALLOWS_DEFERRED_DELETE,)*
                _ => false,
            }
        }

        /// Describes the conflicting link.
        pub(crate) fn conflicting_link(kind: &Kind) -> Option<String> {
            match kind {
                $(Kind::$name(kind) => kind.conflicting_link(),)*
                Kind::Other { .. } => None,
            }
        }

        /// Whether the kernel adds policy rules with the first link of this kind.
        pub(crate) fn kernel_adds_rules(name: &str) -> bool {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::KERNEL_ADDS_RULES,)*
                _ => false,
            }
        }

        /// Whether a change of this kind resets omitted fields.
        pub(crate) fn resets_omitted_fields(name: &str) -> bool {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::RESETS_OMITTED_FIELDS,)*
                _ => false,
            }
        }

        /// The fields that are configured outside the link message.
        pub(crate) fn configured_fields(name: &str) -> &'static [&'static str] {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::CONFIGURED_FIELDS,)*
                _ => &[],
            }
        }

        /// Configures a link outside the link message.
        pub(crate) fn configure(kind: &Kind, selection: FieldSelection<'_>, link: &mut LinkContext<'_, '_>) -> Result<()> {
            match kind {
                $(Kind::$name(kind) => kind.configure(selection, link),)*
                Kind::Other { .. } => Ok(()),
            }
        }

        /// Reads the configuration outside the link message.
        pub(crate) fn read_config(kind: &mut Kind, link: &mut LinkContext<'_, '_>) -> Result<()> {
            match kind {
                $(Kind::$name(kind) => kind.read_config(link),)*
                Kind::Other { .. } => Ok(()),
            }
        }

        /// Creates a link that netlink cannot create.
        pub(crate) fn create_device(kind: &Kind, link: &mut LinkContext<'_, '_>) -> Result<Option<OwnedFd>> {
            match kind {
                $(Kind::$name(kind) => kind.create_device(link),)*
                Kind::Other { .. } => Ok(None),
            }
        }

        /// Makes a device persistent that was not created by netlink.
        pub(crate) fn persist(kind: &Kind, device: OwnedFd) -> io::Result<()> {
            match kind {
                $(Kind::$name(kind) => kind.persist(device),)*
                Kind::Other { .. } => Ok(()),
            }
        }

        /// The MTU to create a link of this kind with.
        pub(crate) fn initial_mtu(name: &str, mtu: u32) -> u32 {
            match name {
                $(_ if is::<$name>(name) => <$name as WireKind>::initial_mtu(mtu),)*
                _ => mtu,
            }
        }
    };
}

knit_model::link_kinds!(kinds);

/// Whether this is a kernel name of the kind.
fn is<T: LinkKind>(name: &str) -> bool {
    T::NAMES.contains(&name)
}

/// The kind with changes applied to the decoded attributes. Changes of common fields are ignored.
pub(crate) fn changed(name: &str, data: Attributes<'_>, changes: &[FieldChange]) -> Result<Kind> {
    let invalid = |error: serde_json::Error| Error::InvalidValue {
        context: format!("change a {name}").into(),
        reason: error.to_string(),
    };
    let mut value = serde_json::to_value(decode(name, data, None)).map_err(invalid)?;
    for change in changes {
        value[&change.field] = change.to.clone();
    }
    serde_json::from_value(value).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_every_kind_round_trips() {
        // A moved device is not encoded.
        for kind in Kind::samples().into_iter().filter(|kind| kind.moved_device().is_none()) {
            let mut message = Message::new(0, 0, "test");
            encode(&kind, FieldSelection::All, &RelatedLinks { parent: Some(7), peer: None }, &mut message);
            let data = Attributes::new(&message.as_bytes()[16..]);
            let decoded = decode(kind.name(), data, kind.parent().cloned());
            // Not those that are configured outside the link message.
            let fields = |kind: &Kind| {
                let mut fields = kind.fields();
                fields.retain(|field, _| !configured_fields(kind.name()).contains(&field.as_str()));
                fields
            };
            assert_eq!((decoded.name(), fields(&decoded)), (kind.name(), fields(&kind)));
        }
    }

    #[test]
    fn a_change_writes_only_its_field() {
        let change = FieldChange::new("ttl", 1, 9);
        let mtu = FieldChange::new("mtu", 1400, 1500);
        let changes = [change, mtu];
        let kind = changed("vxlan", Attributes::new(&[]), &changes).unwrap();
        let mut message = Message::new(0, 0, "test");
        encode(&kind, FieldSelection::Changed(&changes), &RelatedLinks::default(), &mut message);
        let written: Vec<_> = Attributes::new(&message.as_bytes()[16..]).map(|a| a.value.to_vec()).collect();
        assert_eq!(written, [vec![9]]);
    }

    #[test]
    fn every_kind_of_the_model_is_registered() {
        for name in Kind::names() {
            assert!(config(name).is_some_and(|config| config.starts_with("CONFIG_")), "{name}");
        }
        assert_eq!(config("nosuch"), None);
    }
}
