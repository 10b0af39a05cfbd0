//! NICs of the host that are lent to sandboxes.

use std::collections::BTreeSet;

use knit_model::link::{HostDevice, Link, LinkKind, OwnerId};
use knit_model::plan::settle_devices;
use knit_model::problem::Reason;
use knit_model::{NetState, SandboxId, Scope};

use super::Resolved;
use super::interface::{Builder, Wanted};
use crate::event::Unit;
use crate::state::Made;

impl Builder<'_> {
    /// Finds the NIC that is to be lent: that of an uplink which is open for just that, and which no other has.
    pub(super) fn find_device(&mut self, wanted: &Wanted, link: &mut Link) -> Result<(), (Reason, String)> {
        if let (None, Some(nic)) = (&wanted.want.parent, link.device()) {
            let message = format!(
                "NIC {nic} is not to be lent to pods of namespace {}: no Uplink of it names that namespace and \
                 the kind host-device",
                self.sandbox.namespace
            );
            return Err((Reason::NotAllowed, message));
        }
        let name = wanted.want.parent.as_deref().unwrap_or_default();
        let uplink = self.state.uplink(&self.sandbox.namespace, name).ok_or_else(|| {
            (Reason::NotFound, format!("there is no Uplink {name}: a host-device is the NIC of one"))
        })?;
        let uplink = uplink.map_err(|message| (Reason::NotAllowed, message))?;
        if !uplink.lends() {
            let message =
                format!("uplink {name} is not open to host-device links: its `kinds` do not name them");
            return Err((Reason::NotAllowed, message));
        }
        let device = uplink.link.clone();
        let unit = Unit::Sandbox(self.sandbox.id.clone());
        let scope = self.scope();
        let mine = self.resolved.desired.state.scope(&scope).links.values();
        if self.state.is_taken(&device, &unit) || mine.filter_map(Link::device).any(|other| *other == device)
        {
            let message = format!("NIC {device} of uplink {name} is lent already: one pod at a time has it");
            return Err((Reason::Conflict, message));
        }
        link.kind.set_parent(device.clone());
        link.born_from = Some(Scope::Host);
        self.resolved.look.host_links.insert(device);
        Ok(())
    }
}

/// The marks of the NICs that a sandbox had. When it ends before it gives them back, they come home by themselves, under
/// any name.
pub(super) fn lent_to(id: &SandboxId, had: &Made) -> BTreeSet<OwnerId> {
    let interfaces = had.interfaces.iter().map(|(_, interface)| interface);
    let lent = interfaces.filter(|interface| interface.kind == HostDevice::NAME);
    lent.map(|interface| OwnerId::derived(&format!("{id}/{}", interface.name))).collect()
}

/// Settles what NICs have where nothing else is asked for.
pub(super) fn settle(resolved: &mut Resolved, seen: &NetState) {
    settle_devices(&mut resolved.desired.state, seen);
    let links = resolved.desired.state.scopes.values().flat_map(|state| state.links.values());
    for nic in links.filter(|link| link.kind.lent().is_some()) {
        let reports = resolved.made.interfaces.iter_mut().map(|(_, report)| report);
        for report in reports.filter(|report| report.name == nic.name) {
            (report.mtu, report.mac) = (nic.attrs.mtu, nic.attrs.mac);
        }
    }
}
