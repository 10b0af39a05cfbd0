//! Encodes dummy links, which have no fields.

use knit_model::IfName;
use knit_model::link::Dummy;

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

impl WireKind for Dummy {
    const CONFIG: &'static str = "CONFIG_DUMMY";
    const PROBES: &'static [Probe] =
        &[Probe::link("dummy", "dummy links", Self::CONFIG, |scratch| scratch.link("dummy", |_| ()))
            .module("dummy")
            .makes_devices()
            .needed_for("addresses that belong to no interface")];

    fn encode(&self, _selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, _data: &mut Message) {}

    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self {}
    }
}
