//! TCP between pods, past the bridge, the routes and the packet filter: an eBPF program at the host's end of each pod's pair,
//! another at each link to other nodes, and maps that say where which address is. Which packets the programs take is in their
//! source, `crates/knit-ebpf/src/redirect.c`.
//!
//! What is in the kernel outlives this process, by its pins in the eBPF file system: so packets flow on while an agent starts
//! again, and a newer program takes an older one's place in one step. What is there is read back at the first use.
//!
//! An address is in the map only while the program is at its pod's port; it leaves the map before its port goes.

mod attached;
mod ethernet;
mod pins;
mod ports;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use knit_model::route::Through;
use knit_model::{IfName, Mac};
use nix::net::if_::if_nametoindex;

use crate::netns::Netns;
use ethernet::Ethernets;
use pins::Pins;
use record::{Address, Place};

/// Where the kernel's eBPF file system is.
const FILE_SYSTEM: &str = "/sys/fs/bpf";

/// A pod's port that packets may be handed to and from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// The host's end of the pod's pair.
    pub link: IfName,
    /// The hardware address of the pod's end.
    pub mac: Mac,
    /// The pod's addresses.
    pub addresses: BTreeSet<IpAddr>,
}

/// What goes past the bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Packets between these ports.
    pub ports: Vec<Port>,
    /// Which are ports of this bridge.
    pub bridge: Option<IfName>,
    /// Packets between these ports and pods of other nodes. There may be very many: the same ones are not looked through again.
    pub ranges: Arc<[Through]>,
}

/// Why packets take the bridge.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nowhere to keep the program.
    #[error("the eBPF file system is not mounted at {path}: mount -t bpf bpf {path}")]
    NoFileSystem {
        /// Where it belongs.
        path: &'static str,
    },
    /// A folder or file of the eBPF file system.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The kernel does not take the program, or what belongs to it.
    #[error("{what}: {why} (it takes Linux 6.6 with CONFIG_BPF_SYSCALL and CONFIG_NET_XGRESS)")]
    Refused {
        /// What was tried.
        what: &'static str,
        /// Why not, in the words of whoever knew.
        why: String,
    },
    /// The host's network namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] crate::Error),
}

/// How packets between pods go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Over the bridge, because nobody asked for anything else or no pod is there.
    Bridge,
    /// From pod to pod.
    Direct {
        /// How many pods' ports.
        ports: usize,
        /// How many packets so far.
        packets: u64,
    },
    /// Over the bridge, though the other way was asked for.
    Lacking {
        /// Why, in words.
        why: String,
    },
}

/// The redirect on one host. Shared by all who work for it.
pub struct Redirect {
    object: Option<&'static [u8]>,
    root: PathBuf,
    state: Mutex<State>,
}

enum State {
    /// Nobody has looked yet at what is there.
    Unknown,
    /// There is nothing.
    Nothing,
    Held(Box<Held>),
    Lacking(String),
}

struct Held {
    pins: Pins,
    /// The number of each port's link.
    links: BTreeMap<IfName, u32>,
    /// The bridge, and links to other nodes.
    ethernets: Ethernets,
    /// The bridge and the ranges that were asked for last.
    asked: Option<(Option<IfName>, Arc<[Through]>)>,
}

impl fmt::Debug for Redirect {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Redirect").field("way", &self.way()).finish_non_exhaustive()
    }
}

impl Redirect {
    /// With the program's object file; without one, whatever an earlier process left is taken away.
    pub fn new(object: Option<&'static [u8]>) -> Self {
        let root = PathBuf::from(FILE_SYSTEM).join("knit");
        Self { object, root, state: Mutex::new(State::Unknown) }
    }

    /// Has exactly these packets go past the bridge. If that cannot be, all of them take the bridge, and this is the one time
    /// that it is said why.
    pub fn apply(&self, host: &Netns, wanted: &Wanted) -> Result<(), Error> {
        let mut state = self.lock();
        if matches!(*state, State::Lacking(_)) {
            return Ok(());
        }
        let Err(why) = self.try_apply(&mut state, host, wanted) else { return Ok(()) };
        *state = State::Lacking(why.to_string());
        // What is left would lead to ports that nobody looks after.
        if let Ok(cookie) = host.cookie() {
            let _ = in_host(host, || pins::remove(&self.root, cookie));
        }
        Err(why)
    }

    /// These links of the host are other ones from now on, or none: nothing is handed to them until they are asked for again.
    pub fn forget(&self, links: &BTreeSet<&IfName>) {
        let State::Held(held) = &mut *self.lock() else { return };
        for link in links {
            let Some(index) = held.links.remove(*link) else { continue };
            held.pins.keep_places(|_, place| place.link() != index);
        }
    }

    /// How packets go.
    pub fn way(&self) -> Way {
        match &*self.lock() {
            State::Unknown | State::Nothing => Way::Bridge,
            State::Held(held) => Way::Direct { ports: held.links.len(), packets: held.pins.packets() },
            State::Lacking(why) => Way::Lacking { why: why.clone() },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_apply(&self, state: &mut State, host: &Netns, wanted: &Wanted) -> Result<(), Error> {
        let Some(object) = self.object.filter(|_| !wanted.ports.is_empty()) else {
            if !matches!(state, State::Nothing) {
                let cookie = host.cookie()?;
                in_host(host, || pins::remove(&self.root, cookie))?;
            }
            *state = State::Nothing;
            return Ok(());
        };
        let cookie = host.cookie()?;
        in_host(host, || {
            if let State::Unknown | State::Nothing = state {
                let pins = Pins::open(&self.root, cookie, object)?;
                let (links, ethernets) = (BTreeMap::new(), Ethernets::default());
                *state = State::Held(Box::new(Held { pins, links, ethernets, asked: None }));
            }
            let State::Held(held) = state else { return Ok(()) };
            held.apply(wanted)
        })
    }
}

/// Does something in the host's namespace.
fn in_host<T: Send>(host: &Netns, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    if host.is_same(&Netns::current()?)? {
        return work();
    }
    host.enter(work)?
}

impl Held {
    /// The calling thread is in the host's namespace.
    fn apply(&mut self, wanted: &Wanted) -> Result<(), Error> {
        // A link that is gone took its pod's packets with it; whoever removed it will ask again. One that is known is not asked
        // for anew: each attach comes by here, with all ports of the node.
        let index =
            |link: &IfName| self.links.get(link).copied().or_else(|| if_nametoindex(link.as_str()).ok());
        let there = wanted.ports.iter().filter_map(|port| Some((port, index(&port.link)?)));
        let there: Vec<(&Port, u32)> = there.collect();
        let places: BTreeMap<Address, Place> = record::places(&there);
        self.pins.keep_places(|address, place| places.get(address) == Some(place));
        self.links = there.iter().map(|(port, index)| (port.link.clone(), *index)).collect();
        for index in self.links.values() {
            self.pins.ports.attach(*index)?;
        }
        self.pins.add_places(&places)?;
        let links: BTreeSet<u32> = self.links.values().copied().collect();
        self.pins.ports.detach_others(&links)?;
        self.apply_ranges(wanted.bridge.as_ref(), &wanted.ranges)
    }

    fn apply_ranges(&mut self, bridge: Option<&IfName>, ranges: &Arc<[Through]>) -> Result<(), Error> {
        let is_known = |(of, known): &(Option<IfName>, Arc<[Through]>)| {
            of.as_ref() == bridge && Arc::ptr_eq(known, ranges)
        };
        let is_news = !self.asked.as_ref().is_some_and(is_known);
        if is_news {
            self.ethernets.name(bridge.into_iter().chain(ranges.iter().map(|range| &range.link)));
        }
        if !self.ethernets.look()? && !is_news {
            return Ok(());
        }
        // Until all of it is done, none of it counts.
        self.asked = None;
        let asked = (bridge.cloned(), Arc::clone(ranges));
        let bridge = bridge.and_then(|bridge| self.ethernets.get(bridge));
        // Without a bridge there is no hardware address that pods know the node by.
        let ranges = ranges.iter().filter(|_| bridge.is_some());
        // What is no Ethernet, or not there, is the routes' affair.
        let there = ranges.filter_map(|range| Some((range, self.ethernets.get(&range.link)?.index)));
        let there: Vec<(&Through, u32)> = there.collect();
        let ways = record::ways(&there);
        self.pins.keep_ways(|bits, way| ways.get(bits) == Some(way));
        if let Some(bridge) = bridge {
            self.pins.set_bridge(bridge.mac)?;
        }
        for (range, index) in &there {
            self.pins.uplinks.attach(range.link.as_str(), *index)?;
        }
        self.pins.add_ways(&ways)?;
        self.pins.uplinks.detach_others(&there.iter().map(|(_, index)| *index).collect())?;
        self.asked = Some(asked);
        Ok(())
    }
}
