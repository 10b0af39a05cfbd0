//! Blocks: equal parts of a range that nodes claim.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::{Family, bounds, number};

/// Default number of blocks of a range, as a power of two.
const DEFAULT_BLOCK_BITS: u8 = 4;

/// Layout of the blocks of a range. All blocks have the same size, so that an index identifies a block on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    range: IpNet,
    /// The prefix length of a block.
    prefix: u8,
}

impl BlockLayout {
    /// The default layout of a range, derived from the range alone.
    pub fn default_for(range: IpNet) -> Self {
        let prefix = range.prefix_len().saturating_add(DEFAULT_BLOCK_BITS).min(range.max_prefix_len());
        Self { range: range.trunc(), prefix }
    }

    /// Blocks of this prefix length; `None` if the range cannot be split so.
    pub fn into_blocks(range: IpNet, prefix: u8) -> Option<Self> {
        let is_part = (range.prefix_len()..=range.max_prefix_len()).contains(&prefix);
        is_part.then(|| Self { range: range.trunc(), prefix })
    }

    /// Blocks of one address each.
    pub fn into_addresses(range: IpNet) -> Self {
        Self { range: range.trunc(), prefix: range.max_prefix_len() }
    }

    /// Whether each block is a single address.
    pub fn is_of_addresses(self) -> bool {
        self.prefix == self.range.max_prefix_len()
    }

    /// Number of blocks.
    pub fn count(self) -> u128 {
        let bits = self.prefix - self.range.prefix_len();
        1_u128.checked_shl(bits.into()).unwrap_or(u128::MAX)
    }

    /// Bit position of the index in an address.
    fn shift(self) -> u32 {
        u32::from(self.range.max_prefix_len() - self.prefix)
    }

    /// The block with this index.
    pub fn block(self, index: u128) -> Option<IpNet> {
        if index >= self.count() {
            return None;
        }
        // A single block of the whole address space has index 0.
        let first = number(self.range.network()) + index.checked_shl(self.shift()).unwrap_or(0);
        IpNet::new(Family::of(self.range.addr()).address(first), self.prefix).ok()
    }

    /// All blocks in order.
    pub fn blocks(self) -> impl Iterator<Item = (u128, IpNet)> {
        (0..self.count()).filter_map(move |index| Some((index, self.block(index)?)))
    }

    /// Index of the block that contains an address.
    pub fn index_of(self, address: IpAddr) -> Option<u128> {
        if !self.range.contains(&address) {
            return None;
        }
        let distance = number(address) - number(self.range.network());
        Some(distance.checked_shr(self.shift()).unwrap_or(0))
    }

    /// The block that contains an address.
    pub fn block_of(self, address: IpAddr) -> Option<IpNet> {
        self.block(self.index_of(address)?)
    }
}

/// The last quarter of a range; `None` if it has less than four addresses.
pub fn last_quarter(range: IpNet) -> Option<IpNet> {
    BlockLayout::into_blocks(range, range.prefix_len().checked_add(2)?)?.block(3)
}

/// The intervals between `first` and `last` that are in none of the blocks.
pub(crate) fn gaps(first: u128, last: u128, blocks: &[IpNet]) -> Vec<(u128, u128)> {
    let mut sorted: Vec<(u128, u128)> = blocks.iter().map(|block| bounds(*block)).collect();
    sorted.sort_unstable();
    let mut gaps = Vec::new();
    let mut from = Some(first);
    for (begin, end) in sorted {
        let Some(start) = from.filter(|start| *start <= last) else { return gaps };
        if end < start || begin > last {
            continue;
        }
        if begin > start {
            gaps.push((start, begin - 1));
        }
        from = end.checked_add(1);
    }
    gaps.extend(from.filter(|start| *start <= last).map(|start| (start, last)));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(range: &str) -> BlockLayout {
        BlockLayout::default_for(range.parse().unwrap())
    }

    #[test]
    fn the_default_block_size_is_derived_from_the_range() {
        for (range, count, first, last) in [
            ("192.168.100.0/24", 16, "192.168.100.0/28", "192.168.100.240/28"),
            ("192.168.100.77/24", 16, "192.168.100.0/28", "192.168.100.240/28"),
            ("10.0.0.0/30", 4, "10.0.0.0/32", "10.0.0.3/32"),
            ("10.0.0.7/32", 1, "10.0.0.7/32", "10.0.0.7/32"),
            ("0.0.0.0/0", 16, "0.0.0.0/4", "240.0.0.0/4"),
            ("fd00::/64", 16, "fd00::/68", "fd00:0:0:0:f000::/68"),
            ("::/0", 16, "::/4", "f000::/4"),
            ("fd00::/127", 2, "fd00::/128", "fd00::1/128"),
        ] {
            let split = split(range);
            assert_eq!(split.count(), count, "{range}");
            assert_eq!(split.block(0), Some(first.parse().unwrap()), "{range}");
            assert_eq!(split.block(count - 1), Some(last.parse().unwrap()), "{range}");
            assert_eq!(split.block(count), None, "{range}");
        }
    }

    #[test]
    fn index_and_block_of_an_address_agree() {
        for range in ["192.168.100.0/24", "10.0.0.0/30", "fd00::/64", "::/0", "10.0.0.7/32"] {
            for (index, block) in split(range).blocks() {
                assert_eq!(split(range).index_of(block.network()), Some(index), "{block}");
                assert_eq!(split(range).index_of(block.broadcast()), Some(index), "{block}");
            }
        }
        assert_eq!(split("10.0.0.0/24").index_of("10.0.1.0".parse().unwrap()), None);
        assert_eq!(split("10.0.0.0/24").index_of("fd00::".parse().unwrap()), None);
    }

    #[test]
    fn blocks_may_have_an_explicit_size() {
        let split = |range: &str, prefix| BlockLayout::into_blocks(range.parse().unwrap(), prefix);
        let pods = split("10.240.0.0/16", 26).unwrap();
        assert_eq!(pods.count(), 1024);
        assert_eq!(pods.block(0x1b2), Some("10.240.108.128/26".parse().unwrap()));
        assert_eq!(pods.block(1024), None);
        assert_eq!(pods.index_of("10.240.108.191".parse().unwrap()), Some(0x1b2));
        assert_eq!(pods.block_of("10.240.0.63".parse().unwrap()), Some("10.240.0.0/26".parse().unwrap()));
        let six = split("fd24::/64", 112).unwrap();
        assert_eq!(six.count(), 1 << 48);
        assert_eq!(six.block((1 << 48) - 1), Some("fd24::ffff:ffff:ffff:0/112".parse().unwrap()));
        for (range, prefix) in [("::/0", 0), ("::/0", 128), ("10.0.0.0/8", 8), ("10.0.0.7/32", 32)] {
            let whole = split(range, prefix).unwrap();
            let first = whole.block(0).unwrap();
            assert_eq!(whole.index_of(first.network()), Some(0), "{range} by {prefix}");
        }
        assert_eq!(split("10.0.0.0/16", 15), None);
        assert_eq!(split("10.0.0.0/16", 33), None);
    }

    #[test]
    fn gaps_and_blocks_cover_the_interval() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let blocks = nets(&["0.0.0.8/29", "0.0.0.32/28", "0.0.1.0/28"]);
        assert_eq!(gaps(2, 60, &blocks), [(2, 7), (16, 31), (48, 60)]);
        assert_eq!(gaps(9, 10, &blocks), []);
        assert_eq!(gaps(5, 6, &[]), [(5, 6)]);
        assert_eq!(gaps(0, u128::MAX, &nets(&["::/0"])), []);
    }
}
