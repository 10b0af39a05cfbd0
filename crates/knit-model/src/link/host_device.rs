//! host-device: a NIC of the host that is moved into a sandbox and restored afterwards.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind, MovedDevice};
use crate::name::IfName;
use crate::problem::Problems;

/// The moved NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostDevice(pub MovedDevice);

impl LinkKind for HostDevice {
    /// Not a kernel kind: the NIC keeps its own kind.
    const NAME: &'static str = "host-device";
    const IMMUTABLE: &'static [&'static str] = &["device"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;

    fn samples() -> Vec<Self> {
        vec![Self(MovedDevice::full_for_tests())]
    }

    fn moved_device(&self) -> Option<&MovedDevice> {
        Some(&self.0)
    }

    fn moved_device_mut(&mut self) -> Option<&mut MovedDevice> {
        Some(&mut self.0)
    }

    /// The Uplink's NIC is the device itself, not a parent.
    fn set_parent(&mut self, parent: IfName) {
        self.0.device = Some(parent);
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        if self.0.device.is_none() {
            problems.invalid(format!("{path}.parent"), "a host-device needs the Uplink whose NIC it is");
        }
    }
}
