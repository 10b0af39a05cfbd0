//! Encodes veth pairs: the far end is a complete link nested in the near end's message.

use knit_model::IfName;
use knit_model::link::Veth;

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::constants::VETH_INFO_PEER;
use crate::netlink::{Attributes, Message};

impl WireKind for Veth {
    const CONFIG: &'static str = "CONFIG_VETH";
    const PROBES: &'static [Probe] =
        &[Probe::link("veth", "veth pairs", Self::CONFIG, |scratch| scratch.link("veth", |_| ()))
            .module("veth")
            .needed_for("every pod's interfaces")
            .required()];

    fn encode(&self, _selection: FieldSelection<'_>, related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(peer) = related.peer {
            data.nest(VETH_INFO_PEER, peer);
        }
    }

    /// The kernel reports only the peer's index, and only if its namespace has an id here.
    fn decode(_data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self { peer: None }
    }

    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }
}
