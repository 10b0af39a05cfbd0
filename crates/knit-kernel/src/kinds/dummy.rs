//! Encodes dummy links, which have no fields.

use knit_model::IfName;
use knit_model::link::Dummy;

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::netlink::{Attributes, Message};

impl WireKind for Dummy {
    const CONFIG: &'static str = "CONFIG_DUMMY";

    fn encode(&self, _selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, _data: &mut Message) {}

    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self {}
    }
}
