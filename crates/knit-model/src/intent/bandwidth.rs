//! Bandwidth limits of a pod's interface.

use serde::{Deserialize, Serialize};

use crate::link::{MAX_MTU, MAX_RATE, MIN_RATE, RateLimit, TokenBucket};
use crate::problem::Problems;

/// Bandwidth limits of an interface; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BandwidthLimits {
    /// Into the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<RateIntent>,
    /// Out of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<RateIntent>,
}

/// A requested rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateIntent {
    /// Bits per second.
    pub bits: u64,
    /// Burst in bytes; `None`: chosen by Knit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

impl BandwidthLimits {
    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl RateIntent {
    /// Checks the value.
    pub fn check(&self, path: &str, problems: &mut Problems) {
        if !(MIN_RATE..=MAX_RATE).contains(&self.bits) {
            let message = format!("{} bits per second are outside 1k to 1P", self.bits);
            problems.invalid(path, message);
        }
    }

    /// The rate limit of a link with this MTU; `None` assumes the largest MTU.
    pub fn to_rate_limit(intent: Option<Self>, mtu: Option<u32>) -> RateLimit {
        let bucket = |intent: Self| TokenBucket::new(intent.bits, intent.burst, mtu.unwrap_or(MAX_MTU));
        intent.map_or(RateLimit::Unlimited, |intent| RateLimit::Limited(bucket(intent)))
    }
}
