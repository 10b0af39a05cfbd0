//! host-device on the wire: nothing is made, so nothing is told; its mark says what it is.

use knit_model::IfName;
use knit_model::link::HostDevice;

use super::{Around, Wanted, WireKind};
use crate::netlink::{Attributes, Message};

impl WireKind for HostDevice {
    const CONFIG: &'static str = "CONFIG_NET_NS";
    const LINGERS: bool = false;

    fn encode(&self, _wanted: Wanted<'_>, _around: &Around<'_>, _data: &mut Message) {}

    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self::default()
    }

    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }
}
