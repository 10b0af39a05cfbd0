//! The program on uplinks to other nodes, attached with tcx: other programs may be attached there too, and the kernel
//! runs them in order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};

use super::RedirectError;
use super::pins::{create_dir, list, load_error, missing_in_object, unpin};

/// Loads a program of an eBPF object.
pub(super) fn load(all: &mut Ebpf, name: &str, directory: &Path) -> Result<SchedClassifier, RedirectError> {
    const PROGRAM: &str = "the eBPF program";
    let program: &mut SchedClassifier = all
        .program_mut(name)
        .ok_or_else(|| missing_in_object(name))?
        .try_into()
        .map_err(load_error(PROGRAM))?;
    program.load().map_err(load_error(PROGRAM))?;
    // Reopened through a pin, to release the loader's memory.
    let pin = directory.join("program");
    unpin(&pin)?;
    program.pin(&pin).map_err(load_error(PROGRAM))?;
    let program = SchedClassifier::from_pin(&pin).map_err(load_error(PROGRAM))?;
    unpin(&pin)?;
    Ok(program)
}

/// A program attached with tcx.
pub(super) struct TcxProgram {
    program: SchedClassifier,
    /// The directory with a pin for each link.
    directory: PathBuf,
    links: BTreeSet<u32>,
}

impl TcxProgram {
    /// Loads a program and replaces an older one on every link where it is attached.
    pub(super) fn open(
        all: &mut Ebpf,
        name: &str,
        directory: &Path,
        pins: &str,
    ) -> Result<Self, RedirectError> {
        let program = load(all, name, directory)?;
        let directory = directory.join(pins);
        create_dir(&directory)?;
        let mut attached = Self { program, directory, links: BTreeSet::new() };
        attached.read_back()?;
        Ok(attached)
    }

    /// Attaches the program to a link of the calling thread's namespace.
    pub(super) fn attach(&mut self, link: &str, index: u32) -> Result<(), RedirectError> {
        if self.links.contains(&index) {
            return Ok(());
        }
        const PROGRAM: &str = "attaching the eBPF program to a link";
        let order = TcAttachOptions::TcxOrder(LinkOrder::default());
        let id = self
            .program
            .attach_with_options(link, TcAttachType::Ingress, order)
            .map_err(load_error(PROGRAM))?;
        let attached = self.program.take_link(id).map_err(load_error(PROGRAM))?;
        let attached = FdLink::try_from(attached).map_err(load_error(PROGRAM))?;
        attached.pin(self.pin(index)).map_err(load_error(PROGRAM))?;
        self.links.insert(index);
        Ok(())
    }

    /// Detaches the program from all other links.
    pub(super) fn detach_others(&mut self, keep: &BTreeSet<u32>) -> Result<(), RedirectError> {
        let others: Vec<u32> = self.links.difference(keep).copied().collect();
        for index in others {
            unpin(&self.pin(index))?;
            self.links.remove(&index);
        }
        Ok(())
    }

    fn pin(&self, index: u32) -> PathBuf {
        self.directory.join(index.to_string())
    }

    /// Takes over the links of an earlier process.
    fn read_back(&mut self) -> Result<(), RedirectError> {
        for (path, name) in list(&self.directory)? {
            match name.parse() {
                Ok(index) if self.take_over(&path).is_some() => {
                    self.links.insert(index);
                }
                // The link is gone and only its pin is left.
                _ => unpin(&path)?,
            }
        }
        Ok(())
    }

    /// Replaces the attached program.
    fn take_over(&mut self, path: &Path) -> Option<()> {
        let link = SchedClassifierLink::try_from(FdLink::from(PinnedLink::from_pin(path).ok()?)).ok()?;
        let id = self.program.attach_to_link(link).ok()?;
        // The pin keeps it attached.
        self.program.take_link(id).ok().map(drop)
    }
}
