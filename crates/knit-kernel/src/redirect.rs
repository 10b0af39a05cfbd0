//! eBPF fast path for TCP between pods, bypassing bridge, routing and packet filter: a program on the host end of
//! each pod's veth pair, another on each uplink to other nodes, and maps with the location of each address. The
//! source, `crates/knit-ebpf/src/redirect.c`, documents which packets the programs redirect.
//!
//! Programs and maps are pinned in the BPF file system and outlive this process: packets flow while the agent
//! restarts, and a newer program replaces an older one atomically. The pinned state is read back on first use.
//!
//! An address is in the map only while the program is attached to its pod's port; it is removed from the map before
//! the port.

mod clsact;
mod ethernet;
mod map_entries;
mod pins;
mod tcx;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use knit_model::route::GatewayRoute;
use knit_model::{IfName, Mac};
use nix::net::if_::if_nametoindex;

use crate::netns::Netns;
use ethernet::EthernetLinks;
use map_entries::{Address, PortEntry};
use pins::Pins;

/// The mount point of the BPF file system.
const BPF_FS: &str = "/sys/fs/bpf";

/// A pod's port on the fast path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedirectPort {
    /// The host end of the pod's veth pair.
    pub link: IfName,
    /// The MAC address of the pod's end.
    pub mac: Mac,
    /// The pod's addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// The desired fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectSpec {
    /// The ports.
    pub ports: Vec<RedirectPort>,
    /// The bridge of the ports.
    pub bridge: Option<IfName>,
    /// Ranges of pods on other nodes. There may be very many: an unchanged list is not evaluated again.
    pub ranges: Arc<[GatewayRoute]>,
}

/// Why the fast path is not available.
#[derive(Debug, thiserror::Error)]
pub enum RedirectError {
    /// The BPF file system is not mounted.
    #[error("the BPF file system is not mounted at {path}: mount -t bpf bpf {path}")]
    NoFileSystem {
        /// Its mount point.
        path: &'static str,
    },
    /// A file or directory of the BPF file system.
    #[error("{}: {source}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel rejected the program or a map.
    #[error("{what}: {reason} (Linux 6.6 is required, with CONFIG_BPF_SYSCALL and CONFIG_NET_XGRESS)")]
    Load {
        /// The object.
        what: &'static str,
        /// The cause.
        reason: String,
    },
    /// An error in the host's network namespace.
    #[error(transparent)]
    Namespace(#[from] crate::Error),
}

/// How packets between pods are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatapathMode {
    /// Over the bridge: the fast path is disabled, or there are no pods.
    Bridge,
    /// Redirected from pod to pod.
    Redirect {
        /// The number of ports.
        ports: usize,
        /// The number of redirected packets.
        packets: u64,
    },
    /// Over the bridge: the fast path is enabled but not available.
    Unavailable {
        /// The cause.
        reason: String,
    },
}

/// The fast path of one host. Shared by all workers.
pub struct Redirect {
    object: Option<&'static [u8]>,
    root: PathBuf,
    state: Mutex<State>,
}

enum State {
    /// The pinned state has not been read yet.
    Unknown,
    /// Nothing is loaded.
    Absent,
    Loaded(Box<Loaded>),
    Unavailable(String),
}

struct Loaded {
    pins: Pins,
    /// The link index of each port.
    links: BTreeMap<IfName, u32>,
    /// The bridge, and the uplinks to other nodes.
    ethernet_links: EthernetLinks,
    /// The bridge and the ranges that were applied last.
    last_applied: Option<(Option<IfName>, Arc<[GatewayRoute]>)>,
}

impl fmt::Debug for Redirect {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Redirect").field("mode", &self.mode()).finish_non_exhaustive()
    }
}

impl Redirect {
    /// With the eBPF object file; without one, the pinned state of an earlier process is removed.
    pub fn new(object: Option<&'static [u8]>) -> Self {
        let root = PathBuf::from(BPF_FS).join("knit");
        Self { object, root, state: Mutex::new(State::Unknown) }
    }

    /// Applies the desired fast path. After an error all packets take the bridge, and later calls return without an
    /// error.
    pub fn apply(&self, host: &Netns, spec: &RedirectSpec) -> Result<(), RedirectError> {
        let mut state = self.lock();
        if matches!(*state, State::Unavailable(_)) {
            return Ok(());
        }
        let Err(error) = self.try_apply(&mut state, host, spec) else { return Ok(()) };
        *state = State::Unavailable(error.to_string());
        // The remaining entries would point to ports that are no longer maintained.
        if let Ok(cookie) = host.cookie() {
            let _ = in_host(host, || pins::remove(&self.root, cookie));
        }
        Err(error)
    }

    /// Adds ports to an applied fast path. Without one, the next [`Redirect::apply`] includes them.
    pub fn add_ports(&self, host: &Netns, ports: &[RedirectPort]) -> Result<(), RedirectError> {
        let mut state = self.lock();
        let State::Loaded(loaded) = &mut *state else { return Ok(()) };
        let Err(error) = in_host(host, || loaded.add_ports(ports)) else { return Ok(()) };
        *state = State::Unavailable(error.to_string());
        if let Ok(cookie) = host.cookie() {
            let _ = in_host(host, || pins::remove(&self.root, cookie));
        }
        Err(error)
    }

    /// These links were recreated or deleted: nothing is redirected to them until they are applied again.
    pub fn forget_links(&self, links: &BTreeSet<&IfName>) {
        let State::Loaded(loaded) = &mut *self.lock() else { return };
        for link in links {
            let Some(index) = loaded.links.remove(*link) else { continue };
            loaded.pins.retain_ports(|_, entry| entry.link() != index);
        }
    }

    /// The current forwarding mode.
    pub fn mode(&self) -> DatapathMode {
        match &*self.lock() {
            State::Unknown | State::Absent => DatapathMode::Bridge,
            State::Loaded(loaded) => {
                DatapathMode::Redirect { ports: loaded.links.len(), packets: loaded.pins.packets() }
            }
            State::Unavailable(reason) => DatapathMode::Unavailable { reason: reason.clone() },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_apply(&self, state: &mut State, host: &Netns, spec: &RedirectSpec) -> Result<(), RedirectError> {
        let Some(object) = self.object.filter(|_| !spec.ports.is_empty()) else {
            if !matches!(state, State::Absent) {
                let cookie = host.cookie()?;
                in_host(host, || pins::remove(&self.root, cookie))?;
            }
            *state = State::Absent;
            return Ok(());
        };
        let cookie = host.cookie()?;
        in_host(host, || {
            if let State::Unknown | State::Absent = state {
                let pins = Pins::open(&self.root, cookie, object)?;
                let (links, ethernet_links) = (BTreeMap::new(), EthernetLinks::default());
                *state = State::Loaded(Box::new(Loaded { pins, links, ethernet_links, last_applied: None }));
            }
            let State::Loaded(loaded) = state else { return Ok(()) };
            loaded.apply(spec)
        })
    }
}

/// Runs a closure in the host's namespace.
fn in_host<T: Send>(
    host: &Netns,
    work: impl FnOnce() -> Result<T, RedirectError> + Send,
) -> Result<T, RedirectError> {
    if host.is_same(&Netns::current()?)? {
        return work();
    }
    host.enter(work)?
}

impl Loaded {
    /// Must be called in the host's namespace.
    fn apply(&mut self, spec: &RedirectSpec) -> Result<(), RedirectError> {
        // A missing link is skipped; its removal triggers another apply. Known indexes are reused: every attach
        // applies all ports of the node.
        let index =
            |link: &IfName| self.links.get(link).copied().or_else(|| if_nametoindex(link.as_str()).ok());
        let existing = spec.ports.iter().filter_map(|port| Some((port, index(&port.link)?)));
        let existing: Vec<(&RedirectPort, u32)> = existing.collect();
        let ports: BTreeMap<Address, PortEntry> = map_entries::port_entries(&existing);
        self.pins.retain_ports(|address, entry| ports.get(address) == Some(entry));
        self.links = existing.iter().map(|(port, index)| (port.link.clone(), *index)).collect();
        for index in self.links.values() {
            self.pins.port_filters.attach(*index)?;
        }
        self.pins.add_ports(&ports)?;
        let links: BTreeSet<u32> = self.links.values().copied().collect();
        self.pins.port_filters.detach_others(&links)?;
        self.apply_ranges(spec.bridge.as_ref(), &spec.ranges)
    }

    /// Must be called in the host's namespace. A missing link is skipped.
    fn add_ports(&mut self, ports: &[RedirectPort]) -> Result<(), RedirectError> {
        let existing = ports.iter().filter_map(|port| {
            let index = if_nametoindex(port.link.as_str()).ok()?;
            Some((port, index))
        });
        let existing: Vec<(&RedirectPort, u32)> = existing.collect();
        for (port, index) in &existing {
            self.links.insert(port.link.clone(), *index);
            self.pins.port_filters.attach(*index)?;
        }
        self.pins.add_ports(&map_entries::port_entries(&existing))
    }

    fn apply_ranges(
        &mut self,
        bridge: Option<&IfName>,
        ranges: &Arc<[GatewayRoute]>,
    ) -> Result<(), RedirectError> {
        let is_applied = |(of, known): &(Option<IfName>, Arc<[GatewayRoute]>)| {
            of.as_ref() == bridge && Arc::ptr_eq(known, ranges)
        };
        let is_changed = !self.last_applied.as_ref().is_some_and(is_applied);
        if is_changed {
            self.ethernet_links.set_names(bridge.into_iter().chain(ranges.iter().map(|range| &range.link)));
        }
        if !self.ethernet_links.refresh()? && !is_changed {
            return Ok(());
        }
        // Reset until everything is applied.
        self.last_applied = None;
        let last_applied = (bridge.cloned(), Arc::clone(ranges));
        let bridge = bridge.and_then(|bridge| self.ethernet_links.get(bridge));
        // Without a bridge there is no MAC address that pods use for the node.
        let ranges = ranges.iter().filter(|_| bridge.is_some());
        // Links that are missing or not Ethernet are left to routing.
        let existing = ranges.filter_map(|range| Some((range, self.ethernet_links.get(&range.link)?.index)));
        let existing: Vec<(&GatewayRoute, u32)> = existing.collect();
        let next_hops = map_entries::next_hops(&existing);
        self.pins.retain_next_hops(|prefix, next_hop| next_hops.get(prefix) == Some(next_hop));
        if let Some(bridge) = bridge {
            self.pins.set_bridge(bridge.mac)?;
        }
        for (range, index) in &existing {
            self.pins.uplinks.attach(range.link.as_str(), *index)?;
        }
        self.pins.add_next_hops(&next_hops)?;
        self.pins.uplinks.detach_others(&existing.iter().map(|(_, index)| *index).collect())?;
        self.last_applied = Some(last_applied);
        Ok(())
    }
}
