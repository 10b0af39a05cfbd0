//! veth on the wire: the far end is a whole link inside the near end's message.

use knit_model::IfName;
use knit_model::link::Veth;

use super::{Around, Wanted, WireKind};
use crate::netlink::constants::VETH_INFO_PEER;
use crate::netlink::{Attributes, Message};

impl WireKind for Veth {
    const CONFIG: &'static str = "CONFIG_VETH";

    fn encode(&self, _wanted: Wanted<'_>, around: &Around<'_>, data: &mut Message) {
        if let Some(far_end) = around.far_end {
            data.nest(VETH_INFO_PEER, far_end);
        }
    }

    /// The kernel tells only the far end's number, and that only if it knows its namespace.
    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self { peer: None }
    }

    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }
}
