//! A network that is one on all nodes.

use serde::{Deserialize, Serialize};

use crate::mac::fnv1a;

/// How a network is one on all nodes: by VXLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlayIntent {
    /// The number that is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// When its object was made, in a form whose order is that of time: of two with one number the older has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
}

impl OverlayIntent {
    /// The number of the network: what is asked for, or one that follows from its names and is the same on every node. It is
    /// never `taken`, unless that is asked for.
    pub fn vni(&self, namespace: &str, name: &str, taken: u32) -> u32 {
        self.vni.unwrap_or_else(|| {
            let hash = fnv1a(format!("{namespace}/{name}").as_bytes());
            // The upper bits are the better ones. 0 is no good number: some equipment means none by it.
            let vni = ((hash >> 40) as u32).clamp(1, MOST);
            if vni != taken {
                return vni;
            }
            if vni == MOST { vni - 1 } else { vni + 1 }
        })
    }
}

/// The largest number.
const MOST: u32 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_follows_from_the_names_and_is_never_the_clusters() {
        let want = OverlayIntent::default();
        let vni = want.vni("shop", "blue", 7_500);
        assert_eq!(vni, want.vni("shop", "blue", 7_500));
        assert_ne!(vni, want.vni("shop", "red", 7_500));
        assert_ne!(vni, want.vni("other", "blue", 7_500));
        assert!((1..=MOST).contains(&vni));
        assert_ne!(want.vni("shop", "blue", vni), vni);
        let stated = OverlayIntent { vni: Some(42), ..want };
        assert_eq!(stated.vni("shop", "blue", 42), 42, "whoever asks for it is told");
    }
}
