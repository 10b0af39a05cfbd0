//! Encodes the VLANs of bridge ports.
//!
//! The messages state all VLANs of the port and remove all others, whatever it had. So the same two messages serve
//! creation, a change, and recovery after a crash. Additions come first, so that traffic of VLANs that stay is never
//! dropped.

use knit_model::link::{PortVlans, VlanSet};
use knit_model::{IfName, Scope};

use super::transaction::{Failure, Op, Tolerate, Transaction};
use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::VlanHeader;

/// Puts a bridge or a bridge port into exactly these VLANs.
pub(super) fn set(
    transaction: &mut Transaction<'_, '_>,
    step: usize,
    scope: &Scope,
    name: &IfName,
    vlans: &PortVlans,
) -> Result<(), Failure> {
    let index = match transaction.rolling_back {
        true => transaction.find_index(step, scope, name)?,
        false => Some(transaction.require_index(step, scope, name)?),
    };
    let Some(index) = index else { return Ok(()) };
    let tolerate = if transaction.rolling_back { Tolerate::Absence } else { Tolerate::Nothing };
    let all = vlans.all();
    // The kernel rejects a message without VLANs.
    let join = (!all.is_empty()).then(|| join(scope, name, index, vlans));
    let leave = (all != VlanSet::all()).then(|| leave(scope, name, index, vlans));
    for message in join.into_iter().chain(leave) {
        transaction.push(scope, Op { divisible: true, ..Op::new(step, message, tolerate) })?;
    }
    Ok(())
}

fn join(scope: &Scope, name: &IfName, index: u32, vlans: &PortVlans) -> Message {
    let mut message = message(RTM_NEWVLAN, scope, name, index);
    let native = VlanSet::new((vlans.pvid != 0).then_some((vlans.pvid, vlans.pvid)));
    for (set, flags) in [(&vlans.tagged, 0), (&vlans.untagged, BRIDGE_VLAN_INFO_UNTAGGED)] {
        // The kernel does not accept the PVID as part of a range.
        put(&mut message, &set.without(&native), flags);
        if set.contains(vlans.pvid) {
            put(&mut message, &native, flags | BRIDGE_VLAN_INFO_PVID);
        }
    }
    message
}

fn leave(scope: &Scope, name: &IfName, index: u32, vlans: &PortVlans) -> Message {
    let mut message = message(RTM_DELVLAN, scope, name, index);
    put(&mut message, &VlanSet::all().without(&vlans.all()), 0);
    message
}

fn message(kind: u16, scope: &Scope, name: &IfName, index: u32) -> Message {
    let mut message = Message::new(kind, 0, format!("set VLANs of link {name} on {scope}"));
    message.header(&VlanHeader { family: AF_BRIDGE, index, ..Default::default() });
    message
}

fn put(message: &mut Message, set: &VlanSet, flags: u16) {
    for (first, last) in set.ranges() {
        message.nest(BRIDGE_VLANDB_ENTRY, |entry| {
            let [a, b] = flags.to_ne_bytes();
            let [c, d] = first.to_ne_bytes();
            entry.put_bytes(BRIDGE_VLANDB_ENTRY_INFO, &[a, b, c, d]);
            if first != last {
                entry.put_u16(BRIDGE_VLANDB_ENTRY_RANGE, *last);
            }
        });
    }
}
