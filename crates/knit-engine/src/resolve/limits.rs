//! How fast packets may come to and go from a pod: a limit on what leaves each end of the interface's link.
//!
//! What the pod sends is limited where it leaves the pod's end, what it gets where it leaves the host's. So both are
//! queues, which delay before they drop, and no packet is limited twice. A pod cannot take the limit away: that needs
//! CAP_NET_ADMIN in its namespace.

use knit_model::intent::RateIntent;
use knit_model::link::{Enforcement, Link};
use knit_model::problem::Reason;

use super::interface::{Builder, Wanted};

impl Builder<'_> {
    /// Limits what leaves the pod's end of an interface, and refuses what its kind cannot do.
    pub(super) fn limit(&self, wanted: &Wanted, link: &mut Link) -> Result<(), (Reason, String)> {
        let limits = &wanted.want.limits;
        if limits.is_empty() {
            return Ok(());
        }
        let kind = link.kind.name();
        let refused = |what: &str| {
            let title = self.sandbox.title();
            let message = format!("interface {} of pod {title} is a {kind}: {what}", link.name);
            Err((Reason::NotAllowed, message))
        };
        if link.kind.lent().is_some() {
            return refused("a NIC that is lent keeps its own queues, and has no limits");
        }
        if limits.ingress.is_some() && link.kind.enforcement() == Enforcement::PodEnd {
            return refused("it has no end on the node where what comes in could be limited");
        }
        link.attrs.limit = Some(RateIntent::on(limits.egress, link.attrs.mtu));
        Ok(())
    }
}
