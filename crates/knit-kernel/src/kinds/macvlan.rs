//! Encodes macvlan links.

use knit_model::IfName;
use knit_model::link::{Macvlan, MacvlanMode};

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

/// `IFLA_MACVLAN_MODE`.
const MODE: u16 = 1;

/// The kernel's numbers for the modes.
const MODES: [(MacvlanMode, u32); 4] =
    [(MacvlanMode::Private, 1), (MacvlanMode::Vepa, 2), (MacvlanMode::Bridge, 4), (MacvlanMode::Passthru, 8)];

impl WireKind for Macvlan {
    const CONFIG: &'static str = "CONFIG_MACVLAN";
    const PROBES: &'static [Probe] = &[Probe::link("macvlan", "macvlan", Self::CONFIG, |scratch| {
        scratch.link_on_parent("macvlan", |data| {
            data.put_u32(MODE, 4);
        })
    })
    .module("macvlan")
    .needed_for("pods with their own MAC address on an uplink")];

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        let mode = selection.select("mode", self.mode);
        if let Some((_, number)) = MODES.iter().find(|(name, _)| Some(*name) == mode) {
            data.put_u32(MODE, *number);
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let number = data.first(MODE).and_then(|mode| mode.u32());
        let mode = MODES.iter().find(|(_, other)| Some(*other) == number).map(|(mode, _)| *mode);
        Self { parent, mode }
    }
}
