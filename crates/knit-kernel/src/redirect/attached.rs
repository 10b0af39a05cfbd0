//! A program at links to other nodes. Others may have programs there, too: the kernel calls them one after the other (tcx).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use super::Error;
use super::pins::{lacks, list, make, refused, unpin};

/// Loads a program of an object.
pub(super) fn load(all: &mut Ebpf, name: &str, folder: &Path) -> Result<SchedClassifier, Error> {
    const WHAT: &str = "the eBPF program";
    let program: &mut SchedClassifier =
        all.program_mut(name).ok_or_else(|| lacks(name))?.try_into().map_err(refused(WHAT))?;
    program.load().map_err(refused(WHAT))?;
    // Out of the loader's hands, which hold far more.
    let pin = folder.join("program");
    unpin(&pin)?;
    program.pin(&pin).map_err(refused(WHAT))?;
    let program = SchedClassifier::from_pin(&pin).map_err(refused(WHAT))?;
    unpin(&pin)?;
    Ok(program)
}

/// A program in the kernel.
pub(super) struct Attached {
    program: SchedClassifier,
    /// A pin for each link.
    folder: PathBuf,
    links: BTreeSet<u32>,
}

impl Attached {
    /// Loads a program of an object, and puts it in the place of an older one wherever that is.
    pub(super) fn open(all: &mut Ebpf, name: &str, folder: &Path, pins: &str) -> Result<Self, Error> {
        let program = load(all, name, folder)?;
        let folder = folder.join(pins);
        make(&folder)?;
        let mut attached = Self { program, folder, links: BTreeSet::new() };
        attached.read_back()?;
        Ok(attached)
    }

    /// Has the program at a link of the calling thread's namespace.
    pub(super) fn attach(&mut self, link: &str, index: u32) -> Result<(), Error> {
        if self.links.contains(&index) {
            return Ok(());
        }
        const WHAT: &str = "the eBPF program at a link";
        let order = TcAttachOptions::TcxOrder(LinkOrder::default());
        let id =
            self.program.attach_with_options(link, TcAttachType::Ingress, order).map_err(refused(WHAT))?;
        let attached = self.program.take_link(id).map_err(refused(WHAT))?;
        let attached = FdLink::try_from(attached).map_err(refused(WHAT))?;
        attached.pin(self.pin(index)).map_err(refused(WHAT))?;
        self.links.insert(index);
        Ok(())
    }

    /// Takes the program from all links but these.
    pub(super) fn detach_others(&mut self, wanted: &BTreeSet<u32>) -> Result<(), Error> {
        let others: Vec<u32> = self.links.difference(wanted).copied().collect();
        for index in others {
            unpin(&self.pin(index))?;
            self.links.remove(&index);
        }
        Ok(())
    }

    fn pin(&self, index: u32) -> PathBuf {
        self.folder.join(index.to_string())
    }

    /// What an earlier process left.
    fn read_back(&mut self) -> Result<(), Error> {
        for (path, name) in list(&self.folder)? {
            match name.parse() {
                Ok(index) if self.take_over(&path).is_some() => {
                    self.links.insert(index);
                }
                // Its link is gone: the pin is all that is left.
                _ => unpin(&path)?,
            }
        }
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
