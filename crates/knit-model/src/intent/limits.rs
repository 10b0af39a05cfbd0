//! How fast packets may come to and go from a pod's interface.

use serde::{Deserialize, Serialize};

use crate::link::{LEAST_LIMIT, Limit, MAX_MTU, MOST_LIMIT, Rate};
use crate::problem::Problems;

/// Limits of an interface. What is not limited is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Into the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<RateIntent>,
    /// Out of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<RateIntent>,
}

/// A limit as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateIntent {
    /// Bits per second.
    pub bits: u64,
    /// How many bytes may go at once; Knit's choice when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

impl Limits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RateIntent {
    /// A value that no link takes.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        if !(LEAST_LIMIT..=MOST_LIMIT).contains(&self.bits) {
            let message = format!("{} bits per second are outside 1k to 1P", self.bits);
            problems.invalid(path, message);
        }
    }

    /// The limit of a link of this MTU; without one, of the largest.
    pub fn on(wanted: Option<Self>, mtu: Option<u32>) -> Limit {
        let rate = |wanted: Self| Rate::new(wanted.bits, wanted.burst, mtu.unwrap_or(MAX_MTU));
        wanted.map_or(Limit::Nothing, |wanted| Limit::To(rate(wanted)))
    }
}
