//! Host NICs that are moved into a sandbox, and the attributes that are restored when they return.

use serde::{Deserialize, Serialize};

use super::Attrs;
use crate::name::IfName;

/// A host NIC that is moved into a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedDevice {
    /// Its name on the host, which is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<IfName>,
    /// Its attributes on the host, which are restored. They are part of the ownership mark of a moved NIC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<Box<Attrs>>,
}

impl MovedDevice {
    /// The attributes that are saved and restored: all that a pod may change.
    pub fn saved_attrs(nic: &Attrs) -> Attrs {
        Attrs { alias: None, master: None, vlans: None, hairpin: None, limit: None, ..nic.clone() }
    }

    /// Every field set, for tests that cover all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        let original = Self::saved_attrs(&Attrs::full_for_tests());
        Self { device: IfName::new("nic0").ok(), original: Some(Box::new(original)) }
    }
}
