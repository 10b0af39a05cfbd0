//! A device of the node that becomes a pod's interface, as a caller names it.

use knit_model::IfName;
use serde::{Deserialize, Serialize};

/// A device by its address on a bus of the node. Two are the same when their ids are: the NIC of a device that is lent is
/// not seen on the host any more, so that who asks again cannot say its name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its id: a PCI address such as `0000:00:1f.6`, or the name of an auxiliary device.
    pub id: String,
    /// The name of its NIC on the host, or why there is none.
    pub nic: Result<IfName, String>,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Device {}
