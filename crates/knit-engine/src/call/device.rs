//! A host device that a caller requests as a pod's interface.

use knit_model::IfName;
use serde::{Deserialize, Serialize};

/// A device by its bus address. Equality considers only the id: once the NIC is moved into a pod it is no longer
/// visible on the host, so a repeated request cannot name it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RequestedDevice {
    /// Its id: a PCI address such as `0000:00:1f.6`, or the name of an auxiliary device.
    pub id: String,
    /// The name of its NIC on the host, or why it has none. The node finds it before the engine handles the request.
    pub nic: Option<Result<IfName, String>>,
}

impl PartialEq for RequestedDevice {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for RequestedDevice {}
