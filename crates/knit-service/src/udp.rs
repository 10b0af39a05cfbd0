//! What conntrack may contain about UDP.
//!
//! The kernel translates a UDP flow as when it began, for as long as packets follow each other. A flow to a backend that is
//! gone, or from before there was a backend, has to be deleted from conntrack.

use std::collections::{BTreeMap, BTreeSet};

use crate::service::{Backend, Frontend};

/// The frontends of a Service for UDP, each with the backends to which flows may lead: all that serve, also those that
/// terminate or that new flows of this node do not use. A flow to another one, or to the frontend itself, is stale.
pub type UdpFrontends = BTreeMap<Frontend, BTreeSet<Backend>>;
