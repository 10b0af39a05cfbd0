//! host-device: a NIC of the host that is lent to a sandbox, and goes back as it was.

use serde::{Deserialize, Serialize};

use super::{Attrs, Enforcement, LinkKind};
use crate::name::IfName;
use crate::problem::Problems;

/// What is known of a NIC that is lent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDevice {
    /// Its name on the host, which it gets back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<IfName>,
    /// What it had there, and gets back. It is part of the mark that a lent NIC carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Box<Attrs>>,
}

impl HostDevice {
    /// What a NIC gets back: all that a pod may change of it.
    pub fn returned(nic: &Attrs) -> Attrs {
        Attrs { alias: None, master: None, vlans: None, limit: None, ..nic.clone() }
    }

    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        let was = Self::returned(&Attrs::full_for_tests());
        Self { device: IfName::new("nic0").ok(), was: Some(Box::new(was)) }
    }
}

impl LinkKind for HostDevice {
    /// The kernel has no word for it: it is whatever kind of link the NIC is.
    const NAME: &'static str = "host-device";
    const RECREATE: &'static [&'static str] = &["device"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    /// It is the NIC that it comes from. It sits on nothing.
    fn set_parent(&mut self, parent: IfName) {
        self.device = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.device.is_none() {
            problems.invalid(format!("{path}.parent"), "a host-device needs the Uplink whose NIC it is");
        }
    }
}
