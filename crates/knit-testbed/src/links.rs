//! Links and addresses that are ready for traffic when the call that creates them returns.
//!
//! The kernel processes carrier and new IPv6 addresses in the background. A packet sent too early costs a second,
//! the retransmission interval of neighbour solicitations.

use std::fs;
use std::net::Ipv6Addr;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::{Namespace, eventually};

const TIMEOUT: Duration = Duration::from_secs(20);

impl Namespace {
    /// Adds an address (`10.0.0.1/24`, `fd00::1/64`) to a link. IPv6 skips duplicate address detection, which
    /// would delay the address by one to two seconds.
    #[track_caller]
    pub fn address(&self, link: &str, address: &str) {
        let bare = address.split('/').next().unwrap_or(address);
        let Ok(bare) = bare.parse::<Ipv6Addr>() else {
            self.ip(&["address", "add", address, "dev", link]);
            return;
        };
        self.ip(&["address", "add", address, "dev", link, "nodad"]);
        if self.run(|| does_neighbour_discovery(link)) {
            let what =
                format!("namespace {}: {link} receives neighbour solicitations for {bare}", self.name());
            eventually(&what, TIMEOUT, || self.run(|| has_joined_solicited_node_group(link, bare)));
        }
    }

    /// Makes a link a port of a bridge (or of another master).
    #[track_caller]
    pub fn enslave(&self, link: &str, master: &str) {
        self.ip(&["link", "set", "dev", link, "master", master]);
    }

    /// Waits until the link has carrier.
    #[track_caller]
    pub(crate) fn wait_until_running(&self, link: &str) {
        let what = format!("namespace {}: {link} is running", self.name());
        eventually(&what, TIMEOUT, || {
            self.run(|| flags(link).is_some_and(|flags| flags.contains(InterfaceFlags::IFF_RUNNING)))
        });
    }
}

/// Whether the link does neighbour discovery now.
fn does_neighbour_discovery(link: &str) -> bool {
    let without_discovery = InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_NOARP;
    flags(link).is_some_and(|flags| {
        flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
            && !flags.intersects(without_discovery)
    })
}

/// The flags of a link in the calling thread's namespace.
fn flags(link: &str) -> Option<InterfaceFlags> {
    let mut links = getifaddrs().into_iter().flatten();
    links.find(|found| found.interface_name == link).map(|found| found.flags)
}

/// Whether the link has joined the solicited-node multicast group of this address.
fn has_joined_solicited_node_group(link: &str, address: Ipv6Addr) -> bool {
    let groups = fs::read_to_string("/proc/thread-self/net/igmp6").unwrap_or_default();
    has_group(&groups, link, solicited_node(address))
}

/// Each line of igmp6: index, link, group in hexadecimal, users, flags, timer.
fn has_group(groups: &str, link: &str, group: Ipv6Addr) -> bool {
    let hex = format!("{:032x}", group.to_bits());
    groups.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(link) && words.next() == Some(hex.as_str())
    })
}

/// RFC 4291, section 2.7.1.
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, u16::from_be_bytes([0xff, a]), u16::from_be_bytes([b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solicited_node_group_has_the_last_three_bytes() {
        let address = "fd00::12:3456".parse().unwrap();
        assert_eq!(solicited_node(address), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn group_is_found_by_link_and_address() {
        let groups = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
                      2    eth0            ff0200000000000000000001ff000002     1 00000004 0\n";
        let group = "ff02::1:ff00:2".parse().unwrap();
        assert!(has_group(groups, "eth0", group));
        assert!(!has_group(groups, "lo", group));
    }
}
