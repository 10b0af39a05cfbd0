//! vrf on the wire.

use knit_model::IfName;
use knit_model::link::Vrf;

use super::{Around, Wanted, WireKind};
use crate::netlink::{Attributes, Message};

/// `IFLA_VRF_TABLE`.
const TABLE: u16 = 1;

impl WireKind for Vrf {
    const CONFIG: &'static str = "CONFIG_NET_VRF";
    /// Its ports would stay in it.
    const LINGERS: bool = false;
    const MAKES_RULES: bool = true;

    fn encode(&self, wanted: Wanted<'_>, _around: &Around<'_>, data: &mut Message) {
        if let Some(table) = wanted.of("table", Some(self.table)) {
            data.put_u32(TABLE, table);
        }
    }

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        Self { table: data.first(TABLE).and_then(|table| table.u32()).unwrap_or_default() }
    }
}
