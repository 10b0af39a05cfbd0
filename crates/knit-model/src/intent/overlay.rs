//! Networks that span all nodes by an overlay.

use serde::{Deserialize, Serialize};

use crate::mac::fnv1a;

/// VXLAN overlay of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayIntent {
    /// The requested VNI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Creation time of the object, in a format that sorts by time: of two networks with the same VNI the older has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
}

impl OverlayIntent {
    /// The VNI of the network: the requested one, or a hash of its names that is the same on every node. It is never
    /// `reserved`, unless that is requested.
    pub fn vni(&self, namespace: &str, name: &str, reserved: u32) -> u32 {
        self.vni.unwrap_or_else(|| {
            let hash = fnv1a(format!("{namespace}/{name}").as_bytes());
            // The upper bits of FNV are better distributed. VNI 0 is avoided: some equipment treats it as unset.
            let vni = ((hash >> 40) as u32).clamp(1, MAX_VNI);
            if vni != reserved {
                return vni;
            }
            if vni == MAX_VNI { vni - 1 } else { vni + 1 }
        })
    }
}

/// The largest VNI.
const MAX_VNI: u32 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vni_is_derived_from_names_and_never_the_reserved_one() {
        let intent = OverlayIntent::default();
        let vni = intent.vni("shop", "blue", 7_500);
        assert_eq!(vni, intent.vni("shop", "blue", 7_500));
        assert_ne!(vni, intent.vni("shop", "red", 7_500));
        assert_ne!(vni, intent.vni("other", "blue", 7_500));
        assert!((1..=MAX_VNI).contains(&vni));
        assert_ne!(intent.vni("shop", "blue", vni), vni);
        let requested = OverlayIntent { vni: Some(42), ..intent };
        assert_eq!(requested.vni("shop", "blue", 42), 42, "a requested VNI is used as is");
    }
}
