//! Programs, maps and attachments in the BPF file system.
//!
//! `knit/<cookie>/<layout>` holds the maps by name, a directory `links/<index>` for each pod port with a program, and
//! a pin `uplinks/<index>` for each uplink. The cookie is that of the host's network namespace, to which link indexes
//! are relative. Increment the layout when the contents of a map change: the new programs then use new maps, and the
//! old ones are removed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::{Ebpf, EbpfLoader};
use knit_model::Mac;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::clsact::{self, ClsactFilters};
use super::map_entries::{Address, NextHopEntry, PortEntry, PrefixKey};
use super::tcx::TcxProgram;
use super::{BPF_FS, RedirectError};
use crate::memory;

/// The version of the map layout.
const LAYOUT: &str = "4";
/// What error messages call the program.
const PROGRAM: &str = "the eBPF program";

/// The loaded programs and maps.
pub(super) struct Pins {
    maps: Maps,
    /// The contents of the map of ports.
    port_entries: BTreeMap<Address, PortEntry>,
    /// The contents of the map of next hops.
    next_hops: BTreeMap<PrefixKey, NextHopEntry>,
    /// The program on pods' ports.
    pub(super) port_filters: ClsactFilters,
    /// The program on uplinks.
    pub(super) uplinks: TcxProgram,
}

struct Maps {
    ports: HashMap<MapData, Address, [u8; 12]>,
    next_hops: LpmTrie<MapData, Address, [u8; 24]>,
    bridge: Array<MapData, [u8; 8]>,
    redirected: PerCpuArray<MapData, u64>,
}

impl Pins {
    /// Loads the programs and replaces older ones. Must be called in the host's namespace.
    pub(super) fn open(root: &Path, cookie: u64, object: &[u8]) -> Result<Self, RedirectError> {
        if !statfs(BPF_FS).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
            return Err(RedirectError::NoFileSystem { path: BPF_FS });
        }
        let host_dir = root.join(cookie.to_string());
        remove_other_layouts(&host_dir)?;
        let directory = host_dir.join(LAYOUT);
        create_dir(&directory)?;
        let mut loader = EbpfLoader::new();
        let mut all = loader
            .btf(None)
            .default_map_pin_directory(&directory)
            .load(object)
            .map_err(load_error(PROGRAM))?;
        let port_filters = ClsactFilters::open(&mut all, "from_pod", &directory, "links")?;
        let uplinks = TcxProgram::open(&mut all, "from_node", &directory, "uplinks")?;
        let maps = Maps::of(&mut all)?;
        drop(all);
        let mut pins =
            Self { maps, port_entries: BTreeMap::new(), next_hops: BTreeMap::new(), port_filters, uplinks };
        pins.read_back()?;
        // The loader has read the BTF of the whole kernel.
        memory::trim();
        Ok(pins)
    }

    /// The number of packets that the programs have redirected.
    pub(super) fn packets(&self) -> u64 {
        self.maps.redirected.get(&0, 0).map_or(0, |each| each.iter().sum())
    }

    /// Removes all other ports from the map.
    pub(super) fn retain_ports(&mut self, is_kept: impl Fn(&Address, &PortEntry) -> bool) {
        let map = &mut self.maps.ports;
        self.port_entries.retain(|address, port| {
            let keep = is_kept(address, port);
            if !keep {
                // A missing entry is fine.
                let _ = map.remove(address);
            }
            keep
        });
    }

    /// Adds ports to the map.
    pub(super) fn add_ports(&mut self, ports: &BTreeMap<Address, PortEntry>) -> Result<(), RedirectError> {
        for (address, port) in ports {
            if self.port_entries.get(address) != Some(port) {
                self.maps.ports.insert(address, port.0, 0).map_err(load_error("adding a pod's address"))?;
                self.port_entries.insert(*address, *port);
            }
        }
        Ok(())
    }

    /// Removes all other next hops from the map.
    pub(super) fn retain_next_hops(&mut self, is_kept: impl Fn(&PrefixKey, &NextHopEntry) -> bool) {
        let map = &mut self.maps.next_hops;
        self.next_hops.retain(|(bits, address), next_hop| {
            let keep = is_kept(&(*bits, *address), next_hop);
            if !keep {
                let _ = map.remove(&Key::new(*bits, *address));
            }
            keep
        });
    }

    /// Adds next hops to the map.
    pub(super) fn add_next_hops(
        &mut self,
        next_hops: &BTreeMap<PrefixKey, NextHopEntry>,
    ) -> Result<(), RedirectError> {
        for ((bits, address), next_hop) in next_hops {
            if self.next_hops.get(&(*bits, *address)) != Some(next_hop) {
                let key = Key::new(*bits, *address);
                self.maps.next_hops.insert(&key, next_hop.0, 0).map_err(load_error("adding a next hop"))?;
                self.next_hops.insert((*bits, *address), *next_hop);
            }
        }
        Ok(())
    }

    /// Sets the bridge's MAC address, which pods use for the node.
    pub(super) fn set_bridge(&mut self, mac: Mac) -> Result<(), RedirectError> {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&mac.bytes());
        self.maps.bridge.set(0, bytes, 0).map_err(load_error("setting the bridge's MAC address"))
    }

    /// Reads the maps of an earlier process.
    fn read_back(&mut self) -> Result<(), RedirectError> {
        for entry in self.maps.ports.iter() {
            let (address, port) = entry.map_err(load_error("reading the map of ports"))?;
            self.port_entries.insert(address, PortEntry(port));
        }
        for entry in self.maps.next_hops.iter() {
            let (key, next_hop) = entry.map_err(load_error("reading the map of next hops"))?;
            self.next_hops.insert((key.prefix_len(), key.data()), NextHopEntry(next_hop));
        }
        // Entries for ports without the program are invalid.
        let links = self.port_filters.links().clone();
        self.retain_ports(|_, port| links.contains(&port.link()));
        Ok(())
    }
}

impl Maps {
    fn of(all: &mut Ebpf) -> Result<Self, RedirectError> {
        Ok(Self {
            ports: map(all, "ports")?,
            next_hops: map(all, "remote_ranges")?,
            bridge: map(all, "bridge")?,
            redirected: map(all, "redirected")?,
        })
    }
}

fn map<M: TryFrom<Map, Error = MapError>>(all: &mut Ebpf, name: &str) -> Result<M, RedirectError> {
    all.take_map(name).ok_or_else(|| missing_in_object(name))?.try_into().map_err(load_error(PROGRAM))
}

/// The object file lacks a program or map.
pub(super) fn missing_in_object(what: &str) -> RedirectError {
    RedirectError::Load { what: PROGRAM, reason: format!("the object has no {what}") }
}

/// Removes everything pinned for a host. Must be called in its namespace.
pub(super) fn remove(root: &Path, cookie: u64) -> Result<(), RedirectError> {
    let host_dir = root.join(cookie.to_string());
    for (path, _) in list(&host_dir)? {
        remove_layout(&path)?;
    }
    remove_directory(&host_dir)?;
    // Other hosts may have entries.
    let _ = fs::remove_dir(root);
    Ok(())
}

fn remove_other_layouts(host_dir: &Path) -> Result<(), RedirectError> {
    let others = list(host_dir)?.into_iter().filter(|(_, name)| name != LAYOUT);
    others.into_iter().try_for_each(|(path, _)| remove_layout(&path))
}

/// Detaches the programs before their maps are removed.
fn remove_layout(directory: &Path) -> Result<(), RedirectError> {
    let (links, uplinks) = (directory.join("links"), directory.join("uplinks"));
    clsact::remove(&links)?;
    list(&uplinks)?.iter().try_for_each(|(path, _)| unpin(path))?;
    remove_directory(&links)?;
    remove_directory(&uplinks)?;
    list(directory)?.iter().try_for_each(|(path, _)| unpin(path))?;
    remove_directory(directory)
}

/// The entries of a directory; empty if it does not exist.
pub(super) fn list(directory: &Path) -> Result<Vec<(PathBuf, String)>, RedirectError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(RedirectError::File { path: directory.into(), source }),
    };
    let named = |entry: fs::DirEntry| (entry.path(), entry.file_name().to_string_lossy().into_owned());
    entries
        .map(|entry| {
            entry.map(named).map_err(|source| RedirectError::File { path: directory.into(), source })
        })
        .collect()
}

pub(super) fn create_dir(directory: &Path) -> Result<(), RedirectError> {
    fs::create_dir_all(directory).map_err(|source| RedirectError::File { path: directory.into(), source })
}

pub(super) fn unpin(path: &Path) -> Result<(), RedirectError> {
    ignore_missing(fs::remove_file(path), path)
}

fn remove_directory(path: &Path) -> Result<(), RedirectError> {
    ignore_missing(fs::remove_dir(path), path)
}

fn ignore_missing(removed: std::io::Result<()>, path: &Path) -> Result<(), RedirectError> {
    match removed {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(RedirectError::File { path: path.into(), source })
        }
        _ => Ok(()),
    }
}

/// A loader error with its causes.
pub(super) fn load_error<E: std::error::Error>(what: &'static str) -> impl Fn(E) -> RedirectError {
    move |error| {
        let mut reason = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            reason = format!("{reason}: {next}");
            cause = next.source();
        }
        RedirectError::Load { what, reason }
    }
}
