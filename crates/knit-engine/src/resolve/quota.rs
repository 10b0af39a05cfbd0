//! What a namespace's quota leaves for an interface.

use knit_model::IfName;
use knit_model::problem::Reason;
use knit_model::quota::Counts;

use super::interface::{Builder, Wanted};
use crate::event::Unit;

impl Builder<'_> {
    /// How many of its addresses an interface may have. One that is new is refused as a whole; one that is there stays, and
    /// at most does not get more addresses than it has.
    pub(super) fn check_quota(
        &mut self,
        wanted: &Wanted,
        name: &IfName,
        addresses: usize,
    ) -> Result<usize, (Reason, String)> {
        if wanted.is_call() {
            return Ok(addresses);
        }
        let unit = Unit::Sandbox(self.sandbox.id.clone());
        let had = self.state.made.get(&unit).into_iter().flat_map(|made| &made.interfaces);
        let had = had.map(|(_, had)| had).find(|had| had.name == *name).map(|had| had.addresses.len());
        let more = Counts {
            interfaces: u64::from(had.is_none()),
            addresses: addresses.saturating_sub(had.unwrap_or_default()) as u64,
            bridges: 0,
        };
        if more.is_zero() {
            return Ok(addresses);
        }
        let Err(why) = self.state.has_room(&self.sandbox.namespace, self.resolved.granted, more) else {
            self.resolved.granted = self.resolved.granted + more;
            return Ok(addresses);
        };
        self.resolved.refused = self.resolved.refused + more;
        let message = format!("interface {name} of pod {}: {why}", self.sandbox.title());
        let Some(had) = had else { return Err((Reason::QuotaExceeded, message)) };
        self.resolved.problem(&wanted.object, wanted.why.field.clone(), Reason::QuotaExceeded, message);
        Ok(had)
    }
}
