//! Enforces the namespace's quota on an interface.

use knit_model::IfName;
use knit_model::problem::Reason;
use knit_model::quota::ResourceCounts;

use super::interface::{Builder, RequestedInterface};
use crate::event::Unit;

impl Builder<'_> {
    /// How many addresses an interface may have. A new interface is denied as a whole; an existing one stays, but gets
    /// no more addresses.
    pub(super) fn check_quota(
        &mut self,
        requested: &RequestedInterface,
        name: &IfName,
        addresses: usize,
    ) -> Result<usize, (Reason, String)> {
        if requested.is_call() {
            return Ok(addresses);
        }
        let unit = Unit::Sandbox(self.sandbox.id.clone());
        let had = self.state.units.get(&unit).into_iter().flat_map(|unit_state| &unit_state.interfaces);
        let had = had.map(|(_, had)| had).find(|had| had.name == *name).map(|had| had.addresses.len());
        let more = ResourceCounts {
            interfaces: u64::from(had.is_none()),
            addresses: addresses.saturating_sub(had.unwrap_or_default()) as u64,
            bridges: 0,
        };
        if more.is_zero() {
            return Ok(addresses);
        }
        let Err(error) =
            self.state.check_namespace_quota(&self.sandbox.namespace, self.resolved.granted, more)
        else {
            self.resolved.granted = self.resolved.granted + more;
            return Ok(addresses);
        };
        self.resolved.denied = self.resolved.denied + more;
        let message = format!("interface {name} of pod {}: {error}", self.sandbox.title());
        let Some(had) = had else { return Err((Reason::QuotaExceeded, message)) };
        self.resolved.problem(
            &requested.object,
            requested.origin.field.clone(),
            Reason::QuotaExceeded,
            message,
        );
        Ok(had)
    }
}
