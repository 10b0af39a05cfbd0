//! Pools of load balancer addresses for Services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Selector;

/// Addresses for Services of type LoadBalancer, announced by one node each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceAddressIntent {
    /// Its name. Of two overlapping pools the first by name is used.
    pub name: String,
    /// Its ranges, which do not overlap.
    pub ranges: Vec<IpNet>,
    /// Namespaces whose Services use this pool. Empty: all namespaces that no other pool of the family lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The Services that may use it; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Selector>,
    /// Whether Services without a load balancer class use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_class: bool,
}

impl ServiceAddressIntent {
    /// Whether a Service may have this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| {
            let (first, last) = bounds(*range);
            range.addr().is_ipv4() == address.is_ipv4() && (first..=last).contains(&number(address))
        })
    }

    /// How many addresses of a family Services may have.
    pub fn capacity(&self, ipv6: bool) -> u64 {
        self.of_family(ipv6).map(size).fold(0, u64::saturating_add)
    }

    /// An address of a family by its index, which is less than the capacity.
    pub fn nth(&self, ipv6: bool, index: u64) -> Option<IpAddr> {
        let mut left = index;
        for range in self.of_family(ipv6) {
            if left < size(range) {
                let value = bounds(range).0 + u128::from(left);
                return Some(address(value, ipv6));
            }
            left -= size(range);
        }
        None
    }

    fn of_family(&self, ipv6: bool) -> impl Iterator<Item = IpNet> {
        self.ranges.iter().copied().filter(move |range| range.addr().is_ipv6() == ipv6)
    }
}

/// The first and the last address of a range that a Service may have: of IPv4 subnets neither the network nor the broadcast
/// address, of IPv6 subnets not the subnet-router anycast address. A range of one or two addresses is no subnet.
fn bounds(range: IpNet) -> (u128, u128) {
    let (first, last) = (number(range.network()), number(range.broadcast()));
    let is_subnet = range.prefix_len() + 1 < range.max_prefix_len();
    match (is_subnet, range) {
        (false, _) => (first, last),
        (true, IpNet::V4(_)) => (first + 1, last - 1),
        (true, IpNet::V6(_)) => (first + 1, last),
    }
}

fn size(range: IpNet) -> u64 {
    let (first, last) = bounds(range);
    u64::try_from(last - first).unwrap_or(u64::MAX).saturating_add(1)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

fn address(value: u128, ipv6: bool) -> IpAddr {
    match u32::try_from(value) {
        Ok(value) if !ipv6 => IpAddr::V4(Ipv4Addr::from(value)),
        _ => IpAddr::V6(Ipv6Addr::from(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(ranges: &[&str]) -> ServiceAddressIntent {
        let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let name = "lan".to_owned();
        ServiceAddressIntent { name, ranges, namespaces: Vec::new(), services: None, without_class: false }
    }

    fn all(pool: &ServiceAddressIntent, ipv6: bool) -> Vec<String> {
        let addresses = (0..pool.capacity(ipv6)).map(|index| pool.nth(ipv6, index).unwrap());
        addresses.map(|address| address.to_string()).collect()
    }

    #[test]
    fn network_broadcast_and_anycast_addresses_of_subnets_are_left_out() {
        let pool = pool(&["192.0.2.8/30", "2001:db8::/126", "192.0.2.0/32", "192.0.2.4/31"]);
        assert_eq!(all(&pool, false), ["192.0.2.9", "192.0.2.10", "192.0.2.0", "192.0.2.4", "192.0.2.5"]);
        assert_eq!(all(&pool, true), ["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        assert_eq!((pool.nth(false, 5), pool.nth(true, 3)), (None, None));
        let contains = |text: &str| pool.contains(text.parse().unwrap());
        assert!(contains("192.0.2.9") && contains("192.0.2.0") && contains("2001:db8::3"));
        for left_out in ["192.0.2.8", "192.0.2.11", "192.0.2.1", "2001:db8::", "2001:db8::4", "::192.0.2.9"] {
            assert!(!contains(left_out), "{left_out}");
        }
    }

    #[test]
    fn the_size_of_a_large_pool_is_counted() {
        assert_eq!(pool(&["10.0.0.0/8", "2001:db8::/96"]).capacity(false), (1 << 24) - 2);
        assert_eq!(pool(&["2001:db8::/96"]).capacity(true), (1 << 32) - 1);
    }
}
