//! VLANs of bridge ports.

use knit_model::intent::BridgePortIntent;
use knit_model::link::PortVlans;
use knit_model::problem::Reason;

use super::attachment;
use super::bridge::filters_vlans;
use super::interface::{Builder, RequestedInterface, bridge_of, interfaces_for};
use crate::call::Attachment;
use crate::event::Unit;
use crate::state::{BridgeKey, State};

/// Whether an interface of this sandbox needs VLAN filtering, which the existing bridge does not have yet.
pub(crate) fn needs_vlan_filter(state: &State, id: &knit_model::SandboxId, key: &BridgeKey) -> bool {
    let Some(sandbox) = state.sandboxes.get(id) else { return false };
    let bridge =
        state.units.get(&Unit::Bridge(key.clone())).and_then(|unit_state| unit_state.bridge.as_ref());
    let is_port = |attachment: &Attachment| {
        attachment::needs_vlan_filter(attachment)
            && attachment::bridge(state, attachment).as_ref() == Some(key)
    };
    bridge.is_some_and(|bridge| bridge.default_vlan.is_none())
        && (state.attachments.of(id).any(is_port)
            || state
                .objects
                .of_namespace(&sandbox.namespace)
                .flat_map(|(object, stored)| interfaces_for(sandbox, object, stored))
                .any(|(_, spec)| {
                    spec.port.as_ref().is_some_and(BridgePortIntent::needs_filter)
                        && bridge_of(spec, spec.tenant(&sandbox.namespace)).as_ref() == Some(key)
                }))
        && filters_vlans(state, key)
}

/// Whether the bridge filters VLANs although no port needs it any more.
pub(crate) fn can_disable_vlan_filter(state: &State, key: &BridgeKey) -> bool {
    let bridge =
        state.units.get(&Unit::Bridge(key.clone())).and_then(|unit_state| unit_state.bridge.as_ref());
    bridge.is_some_and(|bridge| bridge.default_vlan.is_some()) && !filters_vlans(state, key)
}

impl Builder<'_> {
    /// The VLANs of the interface's host end. On a bridge with VLAN filtering every port has some.
    pub(super) fn port_vlans(
        &self,
        requested: &RequestedInterface,
    ) -> Result<Option<PortVlans>, (Reason, String)> {
        let Some(key) = requested.bridge() else { return Ok(None) };
        let unit = Unit::Bridge(key.clone());
        let bridge = self.state.units.get(&unit).and_then(|unit_state| unit_state.bridge.as_ref());
        let port = requested.spec.port.as_ref();
        if let Some(default) = bridge.and_then(|bridge| bridge.default_vlan) {
            let configured = port.map(|port| port.vlans(default));
            return Ok(Some(configured.unwrap_or_else(|| PortVlans::access(default))));
        }
        if port.is_some_and(BridgePortIntent::needs_filter) {
            let problems = self.state.problems.get(&unit).and_then(|problems| problems.first());
            let error = problems.map_or_else(
                || "its Bridge says `vlanFiltering: false`".to_owned(),
                |(_, problem)| problem.message.clone(),
            );
            return Err((Reason::Conflict, format!("bridge {} does not filter VLANs: {error}", key.name)));
        }
        Ok(None)
    }
}
