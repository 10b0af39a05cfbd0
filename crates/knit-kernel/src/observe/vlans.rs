//! Observes the VLANs of bridges and bridge ports. Each is requested separately, so that observing one port does not
//! dump all of them.

use std::collections::BTreeMap;

use knit_model::Scope;
use knit_model::link::{PortVlans, VlanSet};
use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::kernel::{Session, absent_is_none};
use crate::netlink::constants::*;
use crate::netlink::header::VlanHeader;
use crate::netlink::{Attribute, Header, Message};

/// VLAN ranges of one port with their flags.
pub(crate) type Entries = Vec<(u16, (u16, u16))>;

/// The VLANs of these bridges and bridge ports. Empty on a kernel without VLAN filtering.
pub(super) fn observe(
    session: &mut Session<'_>,
    scope: &Scope,
    indexes: &[u32],
) -> Result<BTreeMap<u32, PortVlans>> {
    let mut found = BTreeMap::new();
    for index in indexes {
        let mut message = Message::new(RTM_GETVLAN, 0, format!("list VLANs of link {index} on {scope}"));
        message.header(&VlanHeader { family: AF_BRIDGE, index: *index, ..Default::default() });
        let entries = session.socket(scope)?.dump(message, |_, body| entries(body));
        let entries = match absent_is_none(entries) {
            Err(Error::Rejected { errno: Errno::EOPNOTSUPP, .. }) => return Ok(BTreeMap::new()),
            // It left its bridge meanwhile.
            Err(Error::Rejected { errno: Errno::EINVAL, .. }) | Ok(None) => continue,
            entries => entries?.unwrap_or_default(),
        };
        found.insert(*index, vlans(&entries.concat()));
    }
    Ok(found)
}

/// The entries of one reply.
pub(crate) fn entries(body: &[u8]) -> Option<Entries> {
    let (_, attributes) = VlanHeader::split(body)?;
    let all = attributes.filter(|attribute| attribute.kind == BRIDGE_VLANDB_ENTRY);
    Some(all.filter_map(|entry| range(&entry)).collect())
}

fn range(entry: &Attribute<'_>) -> Option<(u16, (u16, u16))> {
    let inside = entry.nested();
    let [a, b, c, d] = <[u8; 4]>::try_from(inside.first(BRIDGE_VLANDB_ENTRY_INFO)?.value).ok()?;
    let first = u16::from_ne_bytes([c, d]);
    let last = inside.first(BRIDGE_VLANDB_ENTRY_RANGE).and_then(|last| last.u16()).unwrap_or(first);
    Some((u16::from_ne_bytes([a, b]), (first, last)))
}

/// The VLANs in the entries of a port.
pub(crate) fn vlans(entries: &[(u16, (u16, u16))]) -> PortVlans {
    let of = |matches: &dyn Fn(u16) -> bool| {
        VlanSet::new(entries.iter().filter(|(flags, _)| matches(*flags)).map(|(_, range)| *range))
    };
    let native = of(&|flags| flags & BRIDGE_VLAN_INFO_PVID != 0);
    PortVlans {
        pvid: native.ranges().first().map_or(0, |(id, _)| *id),
        tagged: of(&|flags| flags & BRIDGE_VLAN_INFO_UNTAGGED == 0),
        untagged: of(&|flags| flags & BRIDGE_VLAN_INFO_UNTAGGED != 0),
    }
}
