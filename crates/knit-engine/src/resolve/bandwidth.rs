//! Bandwidth limits: a queueing discipline on the egress of each end of an interface.
//!
//! Traffic from the pod is shaped at the pod's end, traffic to the pod at the host's end. Both are egress queues,
//! which delay before they drop, and no packet is shaped twice. Removing a limit needs CAP_NET_ADMIN in the pod's
//! network namespace.

use knit_model::intent::RateIntent;
use knit_model::link::{Enforcement, Link};
use knit_model::problem::Reason;

use super::interface::{Builder, RequestedInterface};

impl Builder<'_> {
    /// Shapes the egress of the pod's end, and rejects limits that the kind does not support.
    pub(super) fn limit(
        &self,
        requested: &RequestedInterface,
        link: &mut Link,
    ) -> Result<(), (Reason, String)> {
        let limits = &requested.spec.limits;
        if limits.is_empty() {
            return Ok(());
        }
        let kind = link.kind.name();
        let rejected = |what: &str| {
            let title = self.sandbox.title();
            let message = format!("interface {} of pod {title} is a {kind}: {what}", link.name);
            Err((Reason::NotAllowed, message))
        };
        if link.kind.moved_device().is_some() {
            return rejected("bandwidth limits are not supported on a moved NIC");
        }
        if limits.ingress.is_some() && link.kind.enforcement() == Enforcement::PodEnd {
            return rejected("ingress cannot be limited without a host end");
        }
        link.attrs.limit = Some(RateIntent::to_rate_limit(limits.egress, link.attrs.mtu));
        Ok(())
    }
}
