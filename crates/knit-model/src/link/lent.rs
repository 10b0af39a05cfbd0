//! A NIC of the host that is lent to a sandbox: what is known of it, whatever kind of link says that it is one.

use serde::{Deserialize, Serialize};

use super::Attrs;
use crate::name::IfName;

/// What is known of a NIC that is lent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// Its name on the host, which it gets back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<IfName>,
    /// What it had there, and gets back. It is part of the mark that a lent NIC carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Box<Attrs>>,
}

impl Lent {
    /// What a NIC gets back: all that a pod may change of it.
    pub fn returned(nic: &Attrs) -> Attrs {
        Attrs { alias: None, master: None, vlans: None, hairpin: None, limit: None, ..nic.clone() }
    }

    /// Every field stated, for tests that go over all fields.
    #[doc(hidden)]
    pub fn full_for_tests() -> Self {
        let was = Self::returned(&Attrs::full_for_tests());
        Self { device: IfName::new("nic0").ok(), was: Some(Box::new(was)) }
    }
}
