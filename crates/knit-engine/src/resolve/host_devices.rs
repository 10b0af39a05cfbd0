//! Host NICs that are moved into sandboxes.

use std::collections::BTreeSet;

use knit_model::link::{HostDevice, Link, LinkKind, OwnerId};
use knit_model::plan::fill_original_attrs;
use knit_model::problem::Reason;
use knit_model::{NetState, SandboxId, Scope};

use super::Resolved;
use super::interface::{Builder, RequestedInterface};
use crate::event::Unit;
use crate::state::UnitState;

impl Builder<'_> {
    /// Finds the NIC to move: that of an uplink which allows it, if no other sandbox has it.
    pub(super) fn find_device(
        &mut self,
        requested: &RequestedInterface,
        link: &mut Link,
    ) -> Result<(), (Reason, String)> {
        if let (None, Some(nic)) = (&requested.spec.parent, link.device()) {
            let message = format!(
                "NIC {nic} must not be moved into pods of namespace {}: no Uplink of it names that namespace and \
                 the kind host-device",
                self.sandbox.namespace
            );
            return Err((Reason::NotAllowed, message));
        }
        let name = requested.spec.parent.as_deref().unwrap_or_default();
        let uplink = self.state.uplink(&self.sandbox.namespace, name).ok_or_else(|| {
            (Reason::NotFound, format!("there is no Uplink {name}: a host-device is the NIC of one"))
        })?;
        let uplink = uplink.map_err(|message| (Reason::NotAllowed, message))?;
        if !uplink.allows_device_move() {
            let message =
                format!("uplink {name} is not open to host-device links: its `kinds` do not name them");
            return Err((Reason::NotAllowed, message));
        }
        let device = uplink.link.clone();
        let unit = Unit::Sandbox(self.sandbox.id.clone());
        let scope = self.scope();
        let mine = self.resolved.desired.state.scope(&scope).links.values();
        if self.state.is_name_taken(&device, &unit)
            || mine.filter_map(Link::device).any(|other| *other == device)
        {
            let message = format!("NIC {device} of uplink {name} is already moved into another pod");
            return Err((Reason::Conflict, message));
        }
        link.kind.set_parent(device.clone());
        link.parent_scope = Some(Scope::Host);
        self.resolved.observe.host_links.insert(device);
        Ok(())
    }
}

/// The owner marks of the NICs of a sandbox. When its network namespace ends, the kernel returns them to the host,
/// possibly under another name.
pub(super) fn moved_to(id: &SandboxId, had: &UnitState) -> BTreeSet<OwnerId> {
    let interfaces = had.interfaces.iter().map(|(_, interface)| interface);
    let moved = interfaces.filter(|interface| interface.kind == HostDevice::NAME);
    moved.map(|interface| OwnerId::derived(&format!("{id}/{}", interface.name))).collect()
}

/// Fills in the attributes of NICs that are not requested explicitly.
pub(super) fn settle(resolved: &mut Resolved, observed: &NetState) {
    fill_original_attrs(&mut resolved.desired.state, observed);
    let links = resolved.desired.state.scopes.values().flat_map(|state| state.links.values());
    for nic in links.filter(|link| link.kind.moved_device().is_some()) {
        let reports = resolved.unit_state.interfaces.iter_mut().map(|(_, report)| report);
        for report in reports.filter(|report| report.name == nic.name) {
            (report.mtu, report.mac) = (nic.attrs.mtu, nic.attrs.mac);
        }
    }
}
