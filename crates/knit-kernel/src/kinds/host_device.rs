//! Host devices: NICs that are moved, not created, so nothing is encoded; the ownership mark identifies them.

use knit_model::IfName;
use knit_model::link::HostDevice;

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

impl WireKind for HostDevice {
    const CONFIG: &'static str = "CONFIG_NET_NS";
    const PROBES: &'static [Probe] = &[];
    const ALLOWS_DEFERRED_DELETE: bool = false;

    fn encode(&self, _selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, _data: &mut Message) {}

    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self::default()
    }

    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }
}
