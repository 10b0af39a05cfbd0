//! The program, its maps and where it is attached, as they are kept in the eBPF file system.
//!
//! `knit/<cookie>/<layout>` holds the maps by name, and `links/<number>` for each link that the program is at. The cookie is the
//! host's network namespace's: numbers of links mean something only there. Whoever changes what a map holds counts the
//! layout up: then the new program has maps of its own, and the old ones go.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use aya::EbpfLoader;
use aya::maps::{HashMap, MapData, PerCpuArray};
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::record::{Address, Place};
use super::{Error, FILE_SYSTEM};
use crate::memory;

/// The number of what the maps hold.
const LAYOUT: &str = "1";
/// The program's name in its source.
const PROGRAM: &str = "redirect";

/// What is in the kernel.
pub(super) struct Pins {
    folder: PathBuf,
    program: SchedClassifier,
    ports: HashMap<MapData, Address, [u8; 12]>,
    taken: PerCpuArray<MapData, u64>,
    /// What `ports` holds.
    places: BTreeMap<Address, Place>,
    /// The links that the program is at.
    links: BTreeSet<u32>,
}

impl Pins {
    /// Loads the program, and puts it in the place of an older one wherever that is.
    pub(super) fn open(root: &Path, cookie: u64, object: &[u8]) -> Result<Self, Error> {
        if !statfs(FILE_SYSTEM).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
            return Err(Error::NoFileSystem { path: FILE_SYSTEM });
        }
        let of_host = root.join(cookie.to_string());
        remove_other_layouts(&of_host)?;
        let folder = of_host.join(LAYOUT);
        make(&folder.join("links"))?;
        let (program, ports, taken) = load(&folder, object)?;
        let mut pins =
            Self { folder, program, ports, taken, places: BTreeMap::new(), links: BTreeSet::new() };
        pins.read_back()?;
        // The loader reads the types of the whole kernel, which nobody needs.
        memory::give_back();
        Ok(pins)
    }

    /// How many packets the program has taken.
    pub(super) fn packets(&self) -> u64 {
        self.taken.get(&0, 0).map_or(0, |each| each.iter().sum())
    }

    /// Takes places out of the map.
    pub(super) fn keep_places(&mut self, is_kept: impl Fn(&Address, &Place) -> bool) {
        let gone: Vec<Address> = self
            .places
            .iter()
            .filter(|(address, place)| !is_kept(address, place))
            .map(|(address, _)| *address)
            .collect();
        for address in gone {
            // One that is not there is what is wanted.
            let _ = self.ports.remove(&address);
            self.places.remove(&address);
        }
    }

    /// Puts places into the map.
    pub(super) fn add_places(&mut self, places: &BTreeMap<Address, Place>) -> Result<(), Error> {
        for (address, place) in places {
            if self.places.get(address) != Some(place) {
                self.ports.insert(address, place.0, 0).map_err(refused("an address of a pod"))?;
                self.places.insert(*address, *place);
            }
        }
        Ok(())
    }

    /// Has the program at a link of the calling thread's namespace.
    pub(super) fn attach(&mut self, link: &str, index: u32) -> Result<(), Error> {
        if self.links.contains(&index) {
            return Ok(());
        }
        const WHAT: &str = "the eBPF program at a pod's port";
        let order = TcAttachOptions::TcxOrder(LinkOrder::default());
        let id =
            self.program.attach_with_options(link, TcAttachType::Ingress, order).map_err(refused(WHAT))?;
        let attached = self.program.take_link(id).map_err(refused(WHAT))?;
        let attached = FdLink::try_from(attached).map_err(refused(WHAT))?;
        attached.pin(self.link(index)).map_err(refused(WHAT))?;
        self.links.insert(index);
        Ok(())
    }

    /// Takes the program from all links but these.
    pub(super) fn detach_others(&mut self, wanted: &BTreeSet<u32>) -> Result<(), Error> {
        let others: Vec<u32> = self.links.difference(wanted).copied().collect();
        for index in others {
            unpin(&self.link(index))?;
            self.links.remove(&index);
        }
        Ok(())
    }

    fn link(&self, index: u32) -> PathBuf {
        self.folder.join("links").join(index.to_string())
    }

    /// What an earlier process left.
    fn read_back(&mut self) -> Result<(), Error> {
        for entry in self.ports.iter() {
            let (address, place) = entry.map_err(refused("the map of addresses"))?;
            self.places.insert(address, Place(place));
        }
        for (path, name) in list(&self.folder.join("links"))? {
            match name.parse() {
                Ok(index) if self.take_over(&path).is_some() => {
                    self.links.insert(index);
                }
                // Its link is gone: the pin is all that is left.
                _ => unpin(&path)?,
            }
        }
        // What is said to be where the program is not would lead nowhere.
        let links = self.links.clone();
        self.keep_places(|_, place| links.contains(&place.link()));
        Ok(())
    }

    /// Puts this program in the place of the one that is attached.
    fn take_over(&mut self, path: &Path) -> Option<()> {
        let link = SchedClassifierLink::try_from(FdLink::from(PinnedLink::from_pin(path).ok()?)).ok()?;
        let id = self.program.attach_to_link(link).ok()?;
        // The pin keeps it attached.
        self.program.take_link(id).ok().map(drop)
    }
}

/// Takes everything away that is kept for a host.
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

type Loaded = (SchedClassifier, HashMap<MapData, Address, [u8; 12]>, PerCpuArray<MapData, u64>);

fn load(folder: &Path, object: &[u8]) -> Result<Loaded, Error> {
    const WHAT: &str = "the eBPF program";
    let mut loader = EbpfLoader::new();
    let mut all = loader.btf(None).default_map_pin_directory(folder).load(object).map_err(refused(WHAT))?;
    let lacks = |what: &str| Error::Refused { what: WHAT, why: format!("it has no {what}") };
    let program: &mut SchedClassifier =
        all.program_mut(PROGRAM).ok_or_else(|| lacks(PROGRAM))?.try_into().map_err(refused(WHAT))?;
    program.load().map_err(refused(WHAT))?;
    // Out of the loader's hands, which hold far more.
    let pin = folder.join("program");
    unpin(&pin)?;
    program.pin(&pin).map_err(refused(WHAT))?;
    let program = SchedClassifier::from_pin(&pin).map_err(refused(WHAT))?;
    unpin(&pin)?;
    let mut map = |name: &str| all.take_map(name).ok_or_else(|| lacks(name));
    let (ports, taken) = (map("ports")?, map("taken")?);
    let ports = HashMap::try_from(ports).map_err(refused(WHAT))?;
    let taken = PerCpuArray::try_from(taken).map_err(refused(WHAT))?;
    Ok((program, ports, taken))
}

fn remove_other_layouts(of_host: &Path) -> Result<(), Error> {
    let others = list(of_host)?.into_iter().filter(|(_, name)| name != LAYOUT);
    others.into_iter().try_for_each(|(path, _)| remove_layout(&path))
}

/// The program goes from the links before its maps go.
fn remove_layout(folder: &Path) -> Result<(), Error> {
    let links = folder.join("links");
    list(&links)?.iter().try_for_each(|(path, _)| unpin(path))?;
    remove_folder(&links)?;
    list(folder)?.iter().try_for_each(|(path, _)| unpin(path))?;
    remove_folder(folder)
}

/// What is in a folder; nothing if there is none.
fn list(folder: &Path) -> Result<Vec<(PathBuf, String)>, Error> {
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

fn make(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.into(), source })
}

fn unpin(path: &Path) -> Result<(), Error> {
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
fn refused<E: std::error::Error>(what: &'static str) -> impl Fn(E) -> Error {
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
