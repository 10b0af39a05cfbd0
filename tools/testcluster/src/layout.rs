//! Names and addresses of everything in a cluster.
//!
//! All of them follow from the cluster's name and its slot. `down` relies on that: it finds links, cgroups, processes
//! and files by name even when nothing was recorded.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// The parent of every cluster's state directory.
pub const STATE_DIR: &str = "/var/lib/knit-cluster";
/// How many clusters fit on one machine: each slot has its own address ranges.
pub const SLOTS: u8 = 16;
pub const MAX_NODES: u8 = 16;
/// Service addresses exist only in the nodes' namespaces, so every cluster has the same ranges.
pub const SERVICES: &str = "10.96.0.0/16,fd00:96::/112";
/// The first Service address: the API server.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The Service address of CoreDNS.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The same over IPv6.
pub const DNS_SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0xa);
/// The cluster domain.
pub const DOMAIN: &str = "cluster.local";

/// The name prefix of every cluster's links.
pub const LINK_PREFIX: &str = "kn-";
/// The name prefix of every cluster's cgroups.
pub const CGROUP_PREFIX: &str = "knit-cluster-";
const MAX_NAME_LEN: usize = 8;

/// The names that follow from a cluster's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    name: String,
}

impl Names {
    /// Rejects names that are too long for link names or have other characters than a-z and 0-9.
    pub fn new(name: &str) -> Result<Self> {
        let fits = (1..=MAX_NAME_LEN).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            && name.starts_with(|letter: char| letter.is_ascii_lowercase());
        if !fits {
            bail!(
                "cluster name {name:?}: must be 1 to {MAX_NAME_LEN} letters a-z or digits and begin with a letter, because it \
                 becomes part of the names of links"
            );
        }
        Ok(Self { name: name.to_owned() })
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster's state directory.
    pub fn state(&self) -> PathBuf {
        Path::new(STATE_DIR).join(&self.name)
    }

    /// The bridge between the nodes.
    pub fn bridge(&self) -> String {
        format!("{LINK_PREFIX}{}", self.name)
    }

    /// A node's port on that bridge.
    pub fn port(&self, node: u8) -> String {
        format!("{LINK_PREFIX}{}-{node}", self.name)
    }

    /// Whether a link of the host's namespace belongs to this cluster.
    pub fn owns_link(&self, link: &str) -> bool {
        let Some(rest) = link.strip_prefix(&self.bridge()) else { return false };
        match rest.strip_prefix('-') {
            Some(node) => !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit()),
            None => rest.is_empty(),
        }
    }

    /// The cgroup of all of the cluster's processes, in every hierarchy.
    pub fn cgroup(&self) -> String {
        format!("{CGROUP_PREFIX}{}", self.name)
    }
}

/// A node's name in Kubernetes and its host name.
pub fn node_name(node: u8) -> String {
    format!("node{node}")
}

/// The addresses of one cluster. Clusters with different slots do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    slot: u8,
}

impl Addresses {
    /// The addresses of a slot.
    pub fn for_slot(slot: u8) -> Self {
        Self { slot }
    }

    /// The subnet of the nodes.
    pub fn node_subnet(self) -> String {
        format!("172.30.{}.0/24", self.slot)
    }

    /// The control plane's address on the node subnet, where the API server listens.
    pub fn control_plane(self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.slot, 1)
    }

    /// The same over IPv6.
    pub fn control_plane_v6(self) -> Ipv6Addr {
        self.node_subnet_v6(1)
    }

    /// A loopback address for the control plane's internal connections.
    pub fn loopback(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 30, self.slot, 1)
    }

    /// A node's address.
    pub fn node(self, node: u8) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.slot, 10 + node)
    }

    /// The same over IPv6.
    pub fn node_v6(self, node: u8) -> Ipv6Addr {
        self.node_subnet_v6(10 + u16::from(node))
    }

    /// The cluster's pod ranges, IPv4 and IPv6.
    pub fn pods(self) -> (String, String) {
        (format!("10.{}.0.0/16", 224 + self.slot), format!("fd00:{:x}::/56", 0xe0 + u16::from(self.slot)))
    }

    /// The URL of the API server.
    pub fn api(self) -> String {
        format!("https://{}:6443", self.control_plane())
    }

    fn node_subnet_v6(self, host: u16) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x30, u16::from(self.slot), 0, 0, 0, 0, host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_fit_into_a_link_are_rejected() {
        for bad in ["", "a-b", "Knit", "1st", "ninechars", "a/b", ".."] {
            assert!(Names::new(bad).is_err(), "{bad:?}");
        }
        let longest = Names::new("eightchr").unwrap();
        assert!(longest.port(MAX_NODES).len() <= 15);
    }

    #[test]
    fn a_cluster_owns_its_links_and_not_those_of_a_longer_name() {
        let names = Names::new("knit").unwrap();
        for own in ["kn-knit", "kn-knit-1", "kn-knit-16"] {
            assert!(names.owns_link(own), "{own}");
        }
        for other in ["kn-knit2", "kn-knit2-1", "kn-knit-", "kn-knit-x", "kn-kni", "eth0"] {
            assert!(!names.owns_link(other), "{other}");
        }
    }

    #[test]
    fn slots_do_not_share_addresses() {
        let (one, two) = (Addresses::for_slot(0), Addresses::for_slot(SLOTS - 1));
        assert_ne!(one.node_subnet(), two.node_subnet());
        assert_ne!(one.pods(), two.pods());
        assert_ne!(one.loopback(), two.loopback());
        assert_eq!(two.pods(), ("10.239.0.0/16".to_owned(), "fd00:ef::/56".to_owned()));
        assert_eq!(one.node_v6(2).to_string(), "fd00:30::c");
    }
}
