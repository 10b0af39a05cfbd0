//! Egress rate limits of links (token bucket filter).

use serde::{Deserialize, Serialize};

/// Smallest rate limit, in bits per second.
pub const MIN_RATE: u64 = 1_000;
/// Largest rate limit, in bits per second.
pub const MAX_RATE: u64 = 1_000_000_000_000_000;
/// Largest rate that is applied, whatever is requested: above it the resolution of the kernel's bursts is too coarse.
const MAX_APPLIED_RATE: u64 = 200_000_000_000;

/// Bursts are multiples of this many bytes: the kernel reports a burst as its duration, which is not exact.
pub const BURST_GRANULARITY: u64 = 4_096;
/// Smallest burst that Knit chooses: a host seldom hands over less at once.
const MIN_DEFAULT_BURST: u64 = 4 * BURST_GRANULARITY;
/// Largest burst in bytes.
const MAX_BURST: u64 = 64 << 20;
/// Longest duration of a burst: the kernel misreports longer ones.
const MAX_BURST_SECONDS: u64 = 200;
/// Allowance for packet headers.
const HEADER_BYTES: u64 = 256;

/// Egress rate limit of a link. "Unlimited" is a value, distinct from unset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RateLimit {
    /// Limited by a token bucket.
    Limited(TokenBucket),
    /// No limit, serialized as `""`.
    #[serde(with = "super::attrs::empty")]
    Unlimited,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenBucket {
    /// Bits per second, a multiple of 8.
    pub bits: u64,
    /// Burst in bytes.
    pub burst: u64,
}

impl TokenBucket {
    /// A token bucket that the kernel can represent. The default burst is 20 ms of traffic. A burst is never smaller than
    /// the largest packet, which would be dropped otherwise.
    pub fn new(bits: u64, burst: Option<u64>, mtu: u32) -> Self {
        let bytes = bits.clamp(MIN_RATE, MAX_APPLIED_RATE) / 8;
        let requested = burst.unwrap_or_else(|| (bytes / 50).max(MIN_DEFAULT_BURST));
        let packet = u64::from(mtu) + HEADER_BYTES;
        let longest = (bytes * MAX_BURST_SECONDS).min(MAX_BURST);
        let burst = requested.min(longest).max(packet).div_ceil(BURST_GRANULARITY) * BURST_GRANULARITY;
        Self { bits: bytes * 8, burst }
    }
}

impl RateLimit {
    /// The token bucket, if there is a limit.
    pub fn bucket(self) -> Option<TokenBucket> {
        match self {
            Self::Limited(bucket) => Some(bucket),
            Self::Unlimited => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlimited_is_a_value_and_round_trips() {
        let limit = RateLimit::Limited(TokenBucket { bits: 8_000, burst: 16_384 });
        for (limit, text) in [(limit, r#"{"bits":8000,"burst":16384}"#), (RateLimit::Unlimited, r#""""#)] {
            assert_eq!(serde_json::to_string(&limit).unwrap(), text);
            assert_eq!(serde_json::from_str::<RateLimit>(text).unwrap(), limit);
        }
        assert!(serde_json::from_str::<RateLimit>(r#""10M""#).is_err());
    }

    #[test]
    fn a_burst_holds_the_largest_packet_and_is_reported_exactly_by_the_kernel() {
        assert_eq!(TokenBucket::new(10_000_001, None, 1500), TokenBucket { bits: 10_000_000, burst: 28_672 });
        assert_eq!(TokenBucket::new(100_000, None, 1500).burst, MIN_DEFAULT_BURST);
        assert!(TokenBucket::new(100_000, Some(1), 9_000).burst >= 9_000);
        for bits in [MIN_RATE, 64_000, 10_000_000, MAX_APPLIED_RATE, MAX_RATE, u64::MAX] {
            let rate = TokenBucket::new(bits, Some(u64::MAX), 1500);
            assert!(rate.burst <= MAX_BURST && rate.burst.is_multiple_of(BURST_GRANULARITY), "{rate:?}");
            // The kernel stores the duration of a burst in units of 64 ns, in 32 bits.
            assert!(rate.burst * 8 / rate.bits < 274, "{rate:?}");
        }
    }
}
