//! The programs, their maps and where they are attached, as they are kept in the eBPF file system.
//!
//! `knit/<cookie>/<layout>` holds the maps by name, a folder `links/<number>` for each port of a pod that a program is at, and
//! a pin `uplinks/<number>` for each link to other nodes. The cookie is the host's network namespace's: numbers of links mean
//! something only there. Whoever changes what a map holds counts the layout up: then the new programs have maps of their own, and
//! the old ones go.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use aya::{Ebpf, EbpfLoader};
use knit_model::Mac;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::attached::Attached;
use super::ports::{self, Ports};
use super::record::{Address, Bits, Place, Way};
use super::{Error, FILE_SYSTEM};
use crate::memory;

/// The number of what the maps hold.
const LAYOUT: &str = "3";
/// What is told of a program that cannot be loaded.
const WHAT: &str = "the eBPF program";

/// What is in the kernel.
pub(super) struct Pins {
    maps: Maps,
    /// What the map of ports holds.
    places: BTreeMap<Address, Place>,
    /// What the map of ways holds.
    ways: BTreeMap<Bits, Way>,
    /// Where the program for pods' ports is.
    pub(super) ports: Ports,
    /// Where the program for links to other nodes is.
    pub(super) uplinks: Attached,
}

struct Maps {
    ports: HashMap<MapData, Address, [u8; 12]>,
    ways: LpmTrie<MapData, Address, [u8; 24]>,
    bridge: Array<MapData, [u8; 8]>,
    taken: PerCpuArray<MapData, u64>,
}

impl Pins {
    /// Loads the programs, and puts them in the place of older ones wherever those are. The calling thread is in the host's
    /// namespace.
    pub(super) fn open(root: &Path, cookie: u64, object: &[u8]) -> Result<Self, Error> {
        if !statfs(FILE_SYSTEM).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
            return Err(Error::NoFileSystem { path: FILE_SYSTEM });
        }
        let of_host = root.join(cookie.to_string());
        remove_other_layouts(&of_host)?;
        let folder = of_host.join(LAYOUT);
        make(&folder)?;
        let mut loader = EbpfLoader::new();
        let mut all =
            loader.btf(None).default_map_pin_directory(&folder).load(object).map_err(refused(WHAT))?;
        let ports = Ports::open(&mut all, "redirect", &folder, "links")?;
        let uplinks = Attached::open(&mut all, "arrive", &folder, "uplinks")?;
        let maps = Maps::of(&mut all)?;
        drop(all);
        let mut pins = Self { maps, places: BTreeMap::new(), ways: BTreeMap::new(), ports, uplinks };
        pins.read_back()?;
        // The loader reads the types of the whole kernel, which nobody needs.
        memory::give_back();
        Ok(pins)
    }

    /// How many packets the programs have taken.
    pub(super) fn packets(&self) -> u64 {
        self.maps.taken.get(&0, 0).map_or(0, |each| each.iter().sum())
    }

    /// Takes places out of the map.
    pub(super) fn keep_places(&mut self, is_kept: impl Fn(&Address, &Place) -> bool) {
        let map = &mut self.maps.ports;
        self.places.retain(|address, place| {
            let stays = is_kept(address, place);
            if !stays {
                // One that is not there is what is wanted.
                let _ = map.remove(address);
            }
            stays
        });
    }

    /// Puts places into the map.
    pub(super) fn add_places(&mut self, places: &BTreeMap<Address, Place>) -> Result<(), Error> {
        for (address, place) in places {
            if self.places.get(address) != Some(place) {
                self.maps.ports.insert(address, place.0, 0).map_err(refused("an address of a pod"))?;
                self.places.insert(*address, *place);
            }
        }
        Ok(())
    }

    /// Takes ways out of the map.
    pub(super) fn keep_ways(&mut self, is_kept: impl Fn(&Bits, &Way) -> bool) {
        let map = &mut self.maps.ways;
        self.ways.retain(|(bits, address), way| {
            let stays = is_kept(&(*bits, *address), way);
            if !stays {
                let _ = map.remove(&Key::new(*bits, *address));
            }
            stays
        });
    }

    /// Puts ways into the map.
    pub(super) fn add_ways(&mut self, ways: &BTreeMap<Bits, Way>) -> Result<(), Error> {
        for ((bits, address), way) in ways {
            if self.ways.get(&(*bits, *address)) != Some(way) {
                let key = Key::new(*bits, *address);
                self.maps.ways.insert(&key, way.0, 0).map_err(refused("a way to another node"))?;
                self.ways.insert((*bits, *address), *way);
            }
        }
        Ok(())
    }

    /// The hardware address that pods know the bridge by.
    pub(super) fn set_bridge(&mut self, mac: Mac) -> Result<(), Error> {
        let mut bytes = [0; 8];
        bytes[..6].copy_from_slice(&mac.bytes());
        self.maps.bridge.set(0, bytes, 0).map_err(refused("the bridge's hardware address"))
    }

    /// What an earlier process left.
    fn read_back(&mut self) -> Result<(), Error> {
        for entry in self.maps.ports.iter() {
            let (address, place) = entry.map_err(refused("the map of addresses"))?;
            self.places.insert(address, Place(place));
        }
        for entry in self.maps.ways.iter() {
            let (key, way) = entry.map_err(refused("the map of ways"))?;
            self.ways.insert((key.prefix_len(), key.data()), Way(way));
        }
        // What is said to be where the program is not would lead nowhere.
        let links = self.ports.links().clone();
        self.keep_places(|_, place| links.contains(&place.link()));
        Ok(())
    }
}

impl Maps {
    fn of(all: &mut Ebpf) -> Result<Self, Error> {
        Ok(Self {
            ports: map(all, "ports")?,
            ways: map(all, "ways")?,
            bridge: map(all, "bridge")?,
            taken: map(all, "taken")?,
        })
    }
}

fn map<M: TryFrom<Map, Error = MapError>>(all: &mut Ebpf, name: &str) -> Result<M, Error> {
    all.take_map(name).ok_or_else(|| lacks(name))?.try_into().map_err(refused(WHAT))
}

/// The object file is not Knit's.
pub(super) fn lacks(what: &str) -> Error {
    Error::Refused { what: WHAT, why: format!("it has no {what}") }
}

/// Takes everything away that is kept for a host. The calling thread is in its namespace.
pub(super) fn remove(root: &Path, cookie: u64) -> Result<(), Error> {
    let of_host = root.join(cookie.to_string());
    for (path, _) in list(&of_host)? {
        remove_layout(&path)?;
    }
    remove_folder(&of_host)?;
    // Others may be in it.
    let _ = fs::remove_dir(root);
    Ok(())
}

fn remove_other_layouts(of_host: &Path) -> Result<(), Error> {
    let others = list(of_host)?.into_iter().filter(|(_, name)| name != LAYOUT);
    others.into_iter().try_for_each(|(path, _)| remove_layout(&path))
}

/// The programs go from the links before their maps go.
fn remove_layout(folder: &Path) -> Result<(), Error> {
    let (links, uplinks) = (folder.join("links"), folder.join("uplinks"));
    ports::remove(&links)?;
    list(&uplinks)?.iter().try_for_each(|(path, _)| unpin(path))?;
    remove_folder(&links)?;
    remove_folder(&uplinks)?;
    list(folder)?.iter().try_for_each(|(path, _)| unpin(path))?;
    remove_folder(folder)
}

/// What is in a folder; nothing if there is none.
pub(super) fn list(folder: &Path) -> Result<Vec<(PathBuf, String)>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::File { path: folder.into(), source }),
    };
    let named = |entry: fs::DirEntry| (entry.path(), entry.file_name().to_string_lossy().into_owned());
    entries
        .map(|entry| entry.map(named).map_err(|source| Error::File { path: folder.into(), source }))
        .collect()
}

pub(super) fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.into(), source })
}

pub(super) fn unpin(path: &Path) -> Result<(), Error> {
    gone(fs::remove_file(path), path)
}

fn remove_folder(path: &Path) -> Result<(), Error> {
    gone(fs::remove_dir(path), path)
}

fn gone(removed: std::io::Result<()>, path: &Path) -> Result<(), Error> {
    match removed {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::File { path: path.into(), source }),
        _ => Ok(()),
    }
}

/// An error of the loader's, with the causes that it has.
pub(super) fn refused<E: std::error::Error>(what: &'static str) -> impl Fn(E) -> Error {
    move |error| {
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            why = format!("{why}: {next}");
            cause = next.source();
        }
        Error::Refused { what, why }
    }
}
