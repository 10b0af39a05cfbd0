//! Encodes VRFs.

use knit_model::IfName;
use knit_model::link::Vrf;

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

/// `IFLA_VRF_TABLE`.
const TABLE: u16 = 1;

impl WireKind for Vrf {
    const CONFIG: &'static str = "CONFIG_NET_VRF";
    const PROBES: &'static [Probe] = &[Probe::link("vrf", "VRF", Self::CONFIG, |scratch| {
        scratch.link("vrf", |data| {
            data.put_u32(TABLE, 4242);
        })
    })
    .module("vrf")
    .needed_for("a routing table per tenant")];
    /// Its ports would remain enslaved.
    const ALLOWS_DEFERRED_DELETE: bool = false;
    const KERNEL_ADDS_RULES: bool = true;

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(table) = selection.select("table", Some(self.table)) {
            data.put_u32(TABLE, table);
        }
    }

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self { table: data.first(TABLE).and_then(|table| table.u32()).unwrap_or_default() }
    }
}
