//! Encodes ipvlan links.

use knit_model::IfName;
use knit_model::link::{Ipvlan, IpvlanFlag, IpvlanMode};

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_link.h, IFLA_IPVLAN_*
const MODE: u16 = 1;
const FLAGS: u16 = 2;

/// The kernel's numbers for the modes.
const MODES: [(IpvlanMode, u16); 3] = [(IpvlanMode::L2, 0), (IpvlanMode::L3, 1), (IpvlanMode::L3s, 2)];

/// The kernel's flag bits, which are mutually exclusive.
const FLAG_BITS: [(IpvlanFlag, u16); 3] =
    [(IpvlanFlag::Bridge, 0), (IpvlanFlag::Private, 1), (IpvlanFlag::Vepa, 2)];

impl WireKind for Ipvlan {
    const CONFIG: &'static str = "CONFIG_IPVLAN";
    const PROBES: &'static [Probe] =
        &[Probe::link("ipvlan", "ipvlan", Self::CONFIG, |scratch| scratch.link_on_parent("ipvlan", |_| ()))
            .module("ipvlan")
            .needed_for("pods that share the MAC address of an uplink")];
    /// The kernel rejects its addresses on another ipvlan of the same parent, even while it is down.
    const ALLOWS_DEFERRED_DELETE: bool = false;

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        let mode = selection.select("mode", self.mode);
        if let Some((_, number)) = MODES.iter().find(|(name, _)| Some(*name) == mode) {
            data.put_u16(MODE, *number);
        }
        let flag = selection.select("flag", self.flag);
        if let Some((_, bits)) = FLAG_BITS.iter().find(|(name, _)| Some(*name) == flag) {
            data.put_u16(FLAGS, *bits);
        }
    }

    fn decode(data: Attributes<'_>, parent: Option<IfName>) -> Self {
        let number = |kind| data.first(kind).and_then(|value| value.u16());
        let mode = MODES.iter().find(|(_, other)| Some(*other) == number(MODE)).map(|(mode, _)| *mode);
        let flag = FLAG_BITS.iter().find(|(_, other)| Some(*other) == number(FLAGS)).map(|(flag, _)| *flag);
        Self { parent, mode, flag }
    }
}
