//! dummy on the wire: it has nothing to say.

use knit_model::IfName;
use knit_model::link::Dummy;

use super::{Around, Wanted, WireKind};
use crate::netlink::{Attributes, Message};

impl WireKind for Dummy {
    const CONFIG: &'static str = "CONFIG_DUMMY";

    fn encode(&self, _wanted: Wanted<'_>, _around: &Around<'_>, _data: &mut Message) {}

    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self {}
    }
}
