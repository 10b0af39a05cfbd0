//! Names of blocks: identical on every node for the same network and range, and valid API object names.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{BlockLayout, Pool};
use knit_model::mac::fnv1a;

use super::{Block, PoolKey};
use crate::{cluster, pools};

/// The longest name without an index; API object names have at most 253 bytes.
const MAX_NAME_LEN: usize = 200;
/// How much of a shortened name stays readable.
const HASHED_NAME_PREFIX: usize = 120;

impl PoolKey {
    /// The key of a pool.
    pub(crate) fn of(pool: &Pool) -> Self {
        Self { network: pool.network.clone(), range: pool.range.trunc() }
    }

    /// Whether this is a PodAddressPool, whose blocks are pod ranges of nodes: only ids of networks contain a `/`.
    pub(crate) fn is_pod_address_pool(&self) -> bool {
        !self.network.contains('/')
    }

    /// The network whose addresses are leased from this range.
    pub(crate) fn addresses_of(&self) -> String {
        if self.is_pod_address_pool() { cluster::network_id() } else { self.network.clone() }
    }

    /// The range with its network, parseable: `default/pnobr0/192.168.100.0/24`, or with the pool's name:
    /// `pods/10.240.0.0/16`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.network, self.range.trunc())
    }

    /// Parses a [`PoolKey::title`].
    pub fn parse(title: &str) -> Option<Self> {
        let (start, prefix) = title.rsplit_once('/')?;
        let (network, address) = start.rsplit_once('/')?;
        let range: IpNet = format!("{address}/{prefix}").parse().ok()?;
        Some(Self { network: network.to_owned(), range })
    }

    /// The name of a block's object.
    pub fn block_name(&self, index: u128) -> String {
        format!("{}-{index:x}", self.name())
    }

    /// The name of the object of an individually claimed address.
    pub fn single_address_name(&self, address: IpAddr) -> Option<String> {
        let split = BlockLayout::default_for(self.range);
        if split.is_of_addresses() {
            return Some(self.block_name(split.index_of(address)?));
        }
        let index = BlockLayout::into_addresses(self.range).index_of(address)?;
        Some(format!("{}-a{index:x}", self.name()))
    }

    /// `default.pnobr0.192.168.100.0-24`. Names that are too long or contain invalid characters end in a hash.
    fn name(&self) -> String {
        let network = match self.network.split('/').collect::<Vec<_>>()[..] {
            // With a kind in the middle no two names differ only in case.
            [namespace, kind, name] => format!("{namespace}.{}.{name}", kind.to_lowercase()),
            _ => self.network.replace('/', "."),
        };
        let range = self.range.trunc().to_string().replace('/', "-");
        let plain = format!("{network}.{range}");
        // A dot within a part could make two networks look alike.
        let has_dot = self.network.contains('.');
        if !has_dot && plain.len() <= MAX_NAME_LEN && is_name(&plain) {
            return plain;
        }
        let letter =
            |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
        let start: String = plain.chars().map(letter).take(HASHED_NAME_PREFIX).collect();
        format!("{start}-{:016x}", fnv1a(self.title().as_bytes()))
    }
}

impl Block {
    /// The range that it belongs to, if its name matches its contents.
    pub(crate) fn pool_key(&self) -> Option<PoolKey> {
        let pool = PoolKey::parse(&self.pool)?;
        if pool.is_pod_address_pool() {
            return (pools::block_name(&pool, self.cidr)? == self.name).then_some(pool);
        }
        if self.is_single_address() {
            return (pool.single_address_name(self.cidr.addr())? == self.name).then_some(pool);
        }
        let split = BlockLayout::default_for(pool.range);
        let index = split.index_of(self.cidr.network())?;
        let is_named = split.block(index) == Some(self.cidr) && pool.block_name(index) == self.name;
        is_named.then_some(pool)
    }

    /// Whether it is an individually claimed address rather than a block of the range.
    pub(crate) fn is_single_address(&self) -> bool {
        let pool = PoolKey::parse(&self.pool).filter(|pool| !pool.is_pod_address_pool());
        let is_single = self.cidr.prefix_len() == self.cidr.max_prefix_len();
        is_single && pool.is_some_and(|pool| !BlockLayout::default_for(pool.range).is_of_addresses())
    }

    /// Its index in the range; `None` for blocks of pools and individually claimed addresses.
    pub(crate) fn index(&self) -> Option<u128> {
        let pool = PoolKey::parse(&self.pool)
            .filter(|pool| !pool.is_pod_address_pool() && !self.is_single_address())?;
        BlockLayout::default_for(pool.range).index_of(self.cidr.network())
    }
}

/// Whether this is a valid API object name: lower case words separated by dots.
fn is_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let letters = word.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        letters && !word.is_empty() && !word.starts_with('-') && !word.ends_with('-')
    };
    text.split('.').all(is_word)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pool(network: &str, range: &str) -> PoolKey {
        PoolKey { network: network.to_owned(), range: range.parse().unwrap() }
    }

    #[test]
    fn a_name_says_network_range_and_index() {
        let name = |network: &str, range: &str, index| pool(network, range).block_name(index);
        assert_eq!(name("default/pnobr0", "192.168.100.0/24", 0), "default.pnobr0.192.168.100.0-24-0");
        assert_eq!(name("default/Veth/a", "10.0.0.9/24", 15), "default.veth.a.10.0.0.0-24-f");
        assert_eq!(name("shop/network/blue", "10.0.0.0/8", 10), "shop.network.blue.10.0.0.0-8-a");
        let single = |range: &str, address: &str| {
            pool("shop/network/blue", range).single_address_name(address.parse().unwrap())
        };
        assert_eq!(single("10.0.0.0/24", "10.0.0.200").unwrap(), "shop.network.blue.10.0.0.0-24-ac8");
        assert_eq!(
            single("10.0.0.0/28", "10.0.0.14").unwrap(),
            "shop.network.blue.10.0.0.0-28-e",
            "it is a block"
        );
        assert_eq!(single("10.0.0.0/24", "10.0.1.1"), None);
    }

    #[test]
    fn names_that_an_api_server_would_refuse_or_that_look_alike_end_in_a_hash() {
        let long = format!("default/Veth/{}", "a".repeat(253));
        let all = [
            pool("default/br0", "fd00::/64"),
            pool("default/br0", "fd00:0:0:1::/64"),
            pool("default/BR0", "10.0.0.0/24"),
            pool("default/br_0", "10.0.0.0/24"),
            pool("default/br-", "10.0.0.0/24"),
            pool("default/network.x", "10.0.0.0/24"),
            pool("default/network/x", "10.0.0.0/24"),
            pool("default/br0", "10.0.0.0/24"),
            pool(&long, "10.0.0.0/24"),
            pool(&format!("{long}b"), "10.0.0.0/24"),
        ];
        let names: BTreeSet<String> = all.iter().map(|pool| pool.block_name(7)).collect();
        assert_eq!(names.len(), all.len(), "{names:#?}");
        for name in names {
            assert!(is_name(&name) && name.len() <= 253, "{name}");
        }
    }

    #[test]
    fn a_title_can_be_read_back() {
        for pool in [pool("default/br0", "10.0.0.0/24"), pool("a/network/b", "fd00::/64")] {
            assert_eq!(PoolKey::parse(&pool.title()), Some(pool));
        }
        assert_eq!(PoolKey::parse("what"), None);
        assert_eq!(PoolKey::parse("a/b/c/d"), None);
    }
}
