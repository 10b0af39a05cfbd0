//! VLANs of the ports of bridges.

use knit_model::intent::BridgePortIntent;
use knit_model::link::PortVlans;
use knit_model::problem::Reason;

use super::attachment;
use super::bridge::is_to_filter;
use super::interface::{Builder, Wanted, bridge_of, interfaces_for};
use crate::call::Attachment;
use crate::event::Unit;
use crate::state::{BridgeKey, State};

/// Whether the bridge is there and has yet to filter VLANs, for an interface that this sandbox is to have.
pub(crate) fn needs_filter(state: &State, id: &knit_model::SandboxId, key: &BridgeKey) -> bool {
    let Some(sandbox) = state.sandboxes.get(id) else { return false };
    let bridge = state.made.get(&Unit::Bridge(key.clone())).and_then(|made| made.bridge.as_ref());
    let is_asked = |there: &Attachment| {
        attachment::needs_filter(there) && attachment::bridge(state, there).as_ref() == Some(key)
    };
    bridge.is_some_and(|bridge| bridge.default_vlan.is_none())
        && (state.called.of(id).any(is_asked)
            || state.objects.iter().flat_map(|(object, stored)| interfaces_for(sandbox, object, stored)).any(
                |(_, want)| {
                    want.port.as_ref().is_some_and(BridgePortIntent::needs_filter)
                        && bridge_of(want, want.tenant(&sandbox.namespace)).as_ref() == Some(key)
                },
            ))
        && is_to_filter(state, key)
}

/// Whether the bridge filters VLANs and nobody needs that any more.
pub(crate) fn may_stop_to_filter(state: &State, key: &BridgeKey) -> bool {
    let bridge = state.made.get(&Unit::Bridge(key.clone())).and_then(|made| made.bridge.as_ref());
    bridge.is_some_and(|bridge| bridge.default_vlan.is_some()) && !is_to_filter(state, key)
}

impl Builder<'_> {
    /// The VLANs of the interface's end on the host. On a bridge that filters each port has some.
    pub(super) fn port_vlans(&self, wanted: &Wanted) -> Result<Option<PortVlans>, (Reason, String)> {
        let Some(key) = wanted.bridge() else { return Ok(None) };
        let unit = Unit::Bridge(key.clone());
        let bridge = self.state.made.get(&unit).and_then(|made| made.bridge.as_ref());
        let port = wanted.want.port.as_ref();
        if let Some(default) = bridge.and_then(|bridge| bridge.default_vlan) {
            let said = port.map(|port| port.vlans(default));
            return Ok(Some(said.unwrap_or_else(|| PortVlans::access(default))));
        }
        if port.is_some_and(BridgePortIntent::needs_filter) {
            let problems = self.state.problems.get(&unit).and_then(|problems| problems.first());
            let why = problems.map_or_else(
                || "its Bridge says `vlanFiltering: false`".to_owned(),
                |(_, problem)| problem.message.clone(),
            );
            return Err((Reason::Conflict, format!("bridge {} does not filter VLANs: {why}", key.name)));
        }
        Ok(None)
    }
}
