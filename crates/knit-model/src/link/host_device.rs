//! host-device: a NIC of the host that is lent to a sandbox, and goes back as it was.

use serde::{Deserialize, Serialize};

use super::{Enforcement, Lent, LinkKind};
use crate::name::IfName;
use crate::problem::Problems;

/// The NIC, and what it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostDevice(pub Lent);

impl LinkKind for HostDevice {
    /// The kernel has no word for it: it is whatever kind of link the NIC is.
    const NAME: &'static str = "host-device";
    const RECREATE: &'static [&'static str] = &["device"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    fn lent(&self) -> Option<&Lent> {
        Some(&self.0)
    }

    fn lent_mut(&mut self) -> Option<&mut Lent> {
        Some(&mut self.0)
    }

    /// It is the NIC that it comes from. It sits on nothing.
    fn set_parent(&mut self, parent: IfName) {
        self.0.device = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.0.device.is_none() {
            problems.invalid(format!("{path}.parent"), "a host-device needs the Uplink whose NIC it is");
        }
    }
}
