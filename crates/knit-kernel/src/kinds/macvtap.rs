//! Encodes macvtap links. Their attributes are those of macvlans.

use knit_model::link::{Macvtap, MacvtapMode};
use knit_model::{IfName, Mac};

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_link.h, IFLA_MACVLAN_*
const MODE: u16 = 1;
const MACADDR_MODE: u16 = 3;
const MACADDR: u16 = 4;
const MACADDR_DATA: u16 = 5;

// if_link.h, MACVLAN_MACADDR_*
const MACADDR_FLUSH: u32 = 2;
const MACADDR_SET: u32 = 3;

/// The kernel's numbers for the modes.
const MODES: [(MacvtapMode, u32); 5] = [
    (MacvtapMode::Private, 1),
    (MacvtapMode::Vepa, 2),
    (MacvtapMode::Bridge, 4),
    (MacvtapMode::Passthru, 8),
    (MacvtapMode::Source, 16),
];

impl WireKind for Macvtap {
    const CONFIG: &'static str = "CONFIG_MACVTAP";
    const PROBES: &'static [Probe] = &[Probe::link("macvtap", "macvtap", Self::CONFIG, |scratch| {
        scratch.link_on_parent("macvtap", |data| {
            data.put_u32(MODE, 4);
        })
    })
    .module("macvtap")
    .needed_for("virtual machines in pods, on an uplink")];

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        let mode = selection.select("mode", self.mode);
        if let Some((_, number)) = MODES.iter().find(|(name, _)| Some(*name) == mode) {
            data.put_u32(MODE, *number);
        }
        // Only a link in mode source has sources; the kernel removes them when it leaves that mode.
        let Some(sources) = selection.select("sources", self.sources.as_ref()) else { return };
        let is_source = mode.is_none_or(|mode| mode == MacvtapMode::Source);
        match (sources.is_empty(), is_source) {
            (false, true) => {
                data.put_u32(MACADDR_MODE, MACADDR_SET);
                data.nest(MACADDR_DATA, |list| {
                    for source in sources {
                        list.put_bytes(MACADDR, &source.bytes());
                    }
                });
            }
            (true, true) if mode.is_none() => {
                data.put_u32(MACADDR_MODE, MACADDR_FLUSH);
            }
            _ => {}
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let number = data.first(MODE).and_then(|mode| mode.u32());
        let mode = MODES.iter().find(|(_, other)| Some(*other) == number).map(|(mode, _)| *mode);
        let mut sources = Vec::new();
        if let Some(list) = data.first(MACADDR_DATA) {
            let bytes = list.nested().filter_map(|entry| <[u8; 6]>::try_from(entry.value).ok());
            sources.extend(bytes.map(Mac::from_bytes));
        }
        // In the order of the kernel's hash table.
        sources.sort_unstable();
        Self { parent, mode, sources: mode.map(|_| sources) }
    }
}
