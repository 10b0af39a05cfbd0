//! Blocks: the parts in which nodes share a range.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::{Family, bounds, number};

/// A range has at most 2 to the power of this many blocks.
const BITS: u8 = 4;

/// How a range is split. All blocks of a range have one size, which follows from the range alone, so that every node
/// means the same by an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split(IpNet);

impl Split {
    /// How this range is split.
    pub fn of(range: IpNet) -> Self {
        Self(range.trunc())
    }

    /// How many blocks there are.
    pub fn count(self) -> u8 {
        1 << (self.prefix() - self.0.prefix_len())
    }

    fn prefix(self) -> u8 {
        (self.0.prefix_len() + BITS).min(self.0.max_prefix_len())
    }

    /// The block with this index.
    pub fn block(self, index: u8) -> Option<IpNet> {
        if index >= self.count() {
            return None;
        }
        let first = number(self.0.network());
        let shift = u32::from(self.0.max_prefix_len() - self.prefix());
        let first = first + (u128::from(index) << shift);
        IpNet::new(Family::of(self.0.addr()).address(first), self.prefix()).ok()
    }

    /// Every block, in order.
    pub fn blocks(self) -> impl Iterator<Item = (u8, IpNet)> {
        (0..self.count()).filter_map(move |index| Some((index, self.block(index)?)))
    }

    /// The index of the block that an address is in.
    pub fn index_of(self, address: IpAddr) -> Option<u8> {
        if !self.0.contains(&address) {
            return None;
        }
        let shift = u32::from(self.0.max_prefix_len() - self.prefix());
        u8::try_from((number(address) - number(self.0.network())) >> shift).ok()
    }
}

/// What lies from first to last and in none of these.
pub(crate) fn gaps(first: u128, last: u128, blocks: &[IpNet]) -> Vec<(u128, u128)> {
    let mut mine: Vec<(u128, u128)> = blocks.iter().map(|block| bounds(*block)).collect();
    mine.sort_unstable();
    let mut gaps = Vec::new();
    let mut from = Some(first);
    for (begin, end) in mine {
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

    fn split(range: &str) -> Split {
        Split::of(range.parse().unwrap())
    }

    #[test]
    fn the_size_of_blocks_follows_from_the_range() {
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
    fn an_address_is_in_the_block_that_its_index_says() {
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
    fn gaps_and_blocks_make_up_the_whole() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
        let blocks = nets(&["0.0.0.8/29", "0.0.0.32/28", "0.0.1.0/28"]);
        assert_eq!(gaps(2, 60, &blocks), [(2, 7), (16, 31), (48, 60)]);
        assert_eq!(gaps(9, 10, &blocks), []);
        assert_eq!(gaps(5, 6, &[]), [(5, 6)]);
        assert_eq!(gaps(0, u128::MAX, &nets(&["::/0"])), []);
    }
}
