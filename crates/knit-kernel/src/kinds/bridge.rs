//! Encodes bridges.

use knit_model::IfName;
use knit_model::link::{Bridge, DEFAULT_VLAN, VlanProtocol};

use super::vlan::PROTOCOLS;
use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_link.h, IFLA_BR_*
const FORWARD_DELAY: u16 = 1;
const AGEING_TIME: u16 = 4;
const STP_STATE: u16 = 5;
const PRIORITY: u16 = 6;
const VLAN_FILTERING: u16 = 7;
const VLAN_PROTOCOL: u16 = 8;
const MCAST_SNOOPING: u16 = 23;
const NF_CALL_IPTABLES: u16 = 36;
const NF_CALL_IP6TABLES: u16 = 37;
const VLAN_DEFAULT_PVID: u16 = 39;

/// Bridge timers are in hundredths of a second (`USER_HZ`).
const TICKS: u32 = 100;

impl WireKind for Bridge {
    const CONFIG: &'static str = "CONFIG_BRIDGE";
    const PROBES: &'static [Probe] =
        &[Probe::link("bridge", "bridges", Self::CONFIG, |scratch| scratch.link("bridge", |_| ()))
            .module("bridge")
            .needed_for("pods of a network on one node")
            .required()];

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(seconds) = selection.select("forward_delay", self.forward_delay) {
            data.put_u32(FORWARD_DELAY, seconds.saturating_mul(TICKS));
        }
        if let Some(seconds) = selection.select("ageing", self.ageing) {
            data.put_u32(AGEING_TIME, seconds.saturating_mul(TICKS));
        }
        if let Some(on) = selection.select("stp", self.stp) {
            data.put_u32(STP_STATE, on.into());
        }
        if let Some(priority) = selection.select("priority", self.priority) {
            data.put_u16(PRIORITY, priority);
        }
        // Off is the default; a kernel without VLAN filtering rejects the attribute even with the value off.
        let changes = matches!(selection, FieldSelection::Changed(_));
        if let Some(on) = selection.select("vlan_filtering", self.vlan_filtering).filter(|on| *on || changes)
        {
            data.put_u8(VLAN_FILTERING, on.into());
        }
        let protocol = selection.select("vlan_protocol", self.vlan_protocol);
        let protocol = protocol.filter(|protocol| *protocol != VlanProtocol::Dot1q || changes);
        if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| Some(*name) == protocol) {
            data.put_be16(VLAN_PROTOCOL, *number);
        }
        let pvid = selection.select("default_pvid", self.default_pvid);
        if let Some(pvid) = pvid.filter(|pvid| *pvid != DEFAULT_VLAN || changes) {
            data.put_u16(VLAN_DEFAULT_PVID, pvid);
        }
        if let Some(on) = selection.select("multicast_snooping", self.multicast_snooping) {
            data.put_u8(MCAST_SNOOPING, on.into());
        }
        if let Some(on) = selection.select("ip_filter", self.ip_filter) {
            data.put_u8(NF_CALL_IPTABLES, on.into()).put_u8(NF_CALL_IP6TABLES, on.into());
        }
    }

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        let is_on = |kind| data.first(kind).and_then(|on| on.u8()).map(|on| on != 0);
        let seconds = |kind| data.first(kind).and_then(|ticks| ticks.u32()).map(|ticks| ticks / TICKS);
        Self {
            stp: data.first(STP_STATE).and_then(|state| state.u32()).map(|state| state != 0),
            forward_delay: seconds(FORWARD_DELAY),
            ageing: seconds(AGEING_TIME),
            priority: data.first(PRIORITY).and_then(|priority| priority.u16()),
            vlan_filtering: is_on(VLAN_FILTERING),
            default_pvid: data.first(VLAN_DEFAULT_PVID).and_then(|pvid| pvid.u16()),
            vlan_protocol: data
                .first(VLAN_PROTOCOL)
                .and_then(|protocol| protocol.be16())
                .and_then(|number| PROTOCOLS.iter().find(|(_, known)| *known == number))
                .map(|(name, _)| *name),
            multicast_snooping: is_on(MCAST_SNOOPING),
            ip_filter: is_on(NF_CALL_IPTABLES).zip(is_on(NF_CALL_IP6TABLES)).map(|(v4, v6)| v4 && v6),
        }
    }

    /// The kernel sets a bridge's MTU to the smallest of its ports until the MTU is *changed* explicitly. An MTU
    /// given at creation, or equal to the current one, is not a change.
    fn initial_mtu(mtu: u32) -> u32 {
        if mtu > knit_model::link::MIN_MTU { mtu - 1 } else { mtu + 1 }
    }
}
