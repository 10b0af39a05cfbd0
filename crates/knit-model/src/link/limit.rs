//! How fast packets may leave a link.

use serde::{Deserialize, Serialize};

/// The smallest and the largest limit, in bits per second.
pub const LEAST: u64 = 1_000;
/// See [`LEAST`].
pub const MOST: u64 = 1_000_000_000_000_000;
/// The fastest that a link is limited to, whatever is asked for: beyond it the kernel's bursts are too coarse to tell.
const FASTEST: u64 = 200_000_000_000;

/// Bursts are whole numbers of these bytes: the kernel tells a burst back by the time that it takes, which is not exact.
pub const GRAIN: u64 = 4_096;
/// The smallest burst that Knit chooses by itself: what a host hands over at once is seldom less.
const LEAST_BURST: u64 = 4 * GRAIN;
/// The largest burst.
const MOST_BURST: u64 = 64 << 20;
/// A burst takes at most so many seconds: the kernel tells a longer time back wrongly.
const LONGEST_BURST: u64 = 200;
/// Room for headers around a packet.
const HEADERS: u64 = 256;

/// How fast packets may leave a link. That there is no limit is a statement of its own, different from not saying anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Limit {
    /// So fast.
    To(Rate),
    /// As fast as they come: written as `""`.
    #[serde(with = "super::attrs::empty")]
    Nothing,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rate {
    /// Bits per second, in whole bytes.
    pub bits: u64,
    /// How many bytes may go at once.
    pub burst: u64,
}

impl Rate {
    /// A rate as the kernel can hold it. Without a burst Knit chooses one: what goes in 20 ms. It is never smaller than
    /// the largest packet, which would not pass at all.
    pub fn new(bits: u64, burst: Option<u64>, mtu: u32) -> Self {
        let bytes = bits.clamp(LEAST, FASTEST) / 8;
        let asked = burst.unwrap_or_else(|| (bytes / 50).max(LEAST_BURST));
        let packet = u64::from(mtu) + HEADERS;
        let longest = (bytes * LONGEST_BURST).min(MOST_BURST);
        let burst = asked.min(longest).max(packet).div_ceil(GRAIN) * GRAIN;
        Self { bits: bytes * 8, burst }
    }
}

impl Limit {
    /// The rate, if there is a limit.
    pub fn rate(self) -> Option<Rate> {
        match self {
            Self::To(rate) => Some(rate),
            Self::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_there_is_no_limit_survives_storing() {
        let limit = Limit::To(Rate { bits: 8_000, burst: 16_384 });
        for (limit, text) in [(limit, r#"{"bits":8000,"burst":16384}"#), (Limit::Nothing, r#""""#)] {
            assert_eq!(serde_json::to_string(&limit).unwrap(), text);
            assert_eq!(serde_json::from_str::<Limit>(text).unwrap(), limit);
        }
        assert!(serde_json::from_str::<Limit>(r#""10M""#).is_err());
    }

    #[test]
    fn a_burst_holds_the_largest_packet_and_is_one_that_the_kernel_tells_back() {
        assert_eq!(Rate::new(10_000_001, None, 1500), Rate { bits: 10_000_000, burst: 28_672 });
        assert_eq!(Rate::new(100_000, None, 1500).burst, LEAST_BURST);
        assert!(Rate::new(100_000, Some(1), 9_000).burst >= 9_000);
        for bits in [LEAST, 64_000, 10_000_000, FASTEST, MOST, u64::MAX] {
            let rate = Rate::new(bits, Some(u64::MAX), 1500);
            assert!(rate.burst <= MOST_BURST && rate.burst.is_multiple_of(GRAIN), "{rate:?}");
            // The kernel counts the burst's time in 64 ns, with 32 bits.
            assert!(rate.burst * 8 / rate.bits < 274, "{rate:?}");
        }
    }
}
