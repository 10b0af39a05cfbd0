//! The program on pods' ports, attached as a filter of the port's `clsact` qdisc.
//!
//! Uplinks use tcx ([`super::tcx`]). For pods that would cost 15 ms each: when a tcx link is created, and when a
//! network link that has one is deleted, the kernel waits for an RCU grace period under the rtnl lock
//! (`tcx_entry_sync` in include/net/tcx.h). A filter is attached at once and replaced in place. The ports are Knit's,
//! so there are no foreign filters.
//!
//! Filters are not pinned; a directory in the BPF file system records each port.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::SchedClassifier;
use nix::errno::Errno;

use super::RedirectError;
use super::pins::{create_dir, list, load_error};
use super::tcx::load;
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;
use crate::netlink::{Message, Protocol, Socket};

/// Priority and handle of the only filter.
const PRIORITY: u32 = 1;
const HANDLE: u32 = 1;

/// The program and the ports that it is attached to.
pub(super) struct ClsactFilters {
    program: SchedClassifier,
    /// The directory with an entry for each port.
    directory: PathBuf,
    links: BTreeSet<u32>,
}

impl ClsactFilters {
    /// Loads the program and replaces an older one on each port of the calling thread's namespace.
    pub(super) fn open(
        all: &mut Ebpf,
        name: &str,
        directory: &Path,
        records: &str,
    ) -> Result<Self, RedirectError> {
        let program = load(all, name, directory)?;
        let directory = directory.join(records);
        create_dir(&directory)?;
        let mut ports = Self { program, directory, links: BTreeSet::new() };
        for (path, name) in list(&ports.directory)? {
            match name.parse() {
                Ok(index) if ports.put(index).is_ok() => {
                    ports.links.insert(index);
                }
                // The link is gone and only its entry is left.
                _ => remove_record(&path)?,
            }
        }
        Ok(ports)
    }

    /// The indexes of the links with the program.
    pub(super) fn links(&self) -> &BTreeSet<u32> {
        &self.links
    }

    /// Attaches the program to a link of the calling thread's namespace.
    pub(super) fn attach(&mut self, index: u32) -> Result<(), RedirectError> {
        if self.links.contains(&index) {
            return Ok(());
        }
        create_dir(&self.directory.join(index.to_string()))?;
        self.put(index)?;
        self.links.insert(index);
        Ok(())
    }

    /// Detaches the program from all other links.
    pub(super) fn detach_others(&mut self, keep: &BTreeSet<u32>) -> Result<(), RedirectError> {
        let others: Vec<u32> = self.links.difference(keep).copied().collect();
        for index in others {
            detach(index)?;
            remove_record(&self.directory.join(index.to_string()))?;
            self.links.remove(&index);
        }
        Ok(())
    }

    /// Creates the filter, or replaces its program.
    fn put(&self, index: u32) -> Result<(), RedirectError> {
        let program = self.program.fd().map_err(load_error("attaching the eBPF program to a port"))?;
        let mut socket = Socket::open(Protocol::Route)?;
        match socket.request(clsact_qdisc(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, index)) {
            Err(error) if error.errno() != Some(Errno::EEXIST) => return Err(error.into()),
            _ => {}
        }
        let mut message =
            Message::new(RTM_NEWTFILTER, NLM_F_CREATE, format!("attach the eBPF program to link {index}"));
        message.header(&TrafficHeader {
            index: index as i32,
            parent: TC_H_CLSACT_INGRESS,
            handle: HANDLE,
            info: PRIORITY << 16 | u32::from(ETH_P_ALL.to_be()),
            ..Default::default()
        });
        message.put_str(TCA_KIND, "bpf");
        message.nest(TCA_OPTIONS, |options| {
            options.put_u32(TCA_BPF_FD, program.as_fd().as_raw_fd() as u32);
            options.put_str(TCA_BPF_NAME, "knit");
            options.put_u32(TCA_BPF_FLAGS, TCA_BPF_FLAG_ACT_DIRECT);
        });
        Ok(socket.request(message)?)
    }
}

/// Detaches the program from every recorded port of the calling thread's namespace, and removes the records.
pub(super) fn remove(directory: &Path) -> Result<(), RedirectError> {
    for (path, name) in list(directory)? {
        if let Ok(index) = name.parse() {
            detach(index)?;
        }
        remove_record(&path)?;
    }
    Ok(())
}

/// Deletes the qdisc and the filter with it. Both are gone with their link.
fn detach(index: u32) -> Result<(), RedirectError> {
    let deleted = Socket::open(Protocol::Route)?.request(clsact_qdisc(RTM_DELQDISC, 0, index));
    match deleted {
        Err(error) if !matches!(error.errno(), Some(Errno::ENODEV | Errno::ENOENT | Errno::EINVAL)) => {
            Err(error.into())
        }
        _ => Ok(()),
    }
}

fn clsact_qdisc(kind: u16, flags: u16, index: u32) -> Message {
    let mut message = Message::new(kind, flags, format!("set the clsact qdisc of link {index}"));
    let header = TrafficHeader {
        index: index as i32,
        parent: TC_H_CLSACT,
        handle: CLSACT_HANDLE,
        ..Default::default()
    };
    message.header(&header).put_str(TCA_KIND, "clsact");
    message
}

/// Older versions pinned a tcx link here; removing the pin detaches the program.
fn remove_record(path: &Path) -> Result<(), RedirectError> {
    let removed = match fs::remove_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(path),
        removed => removed,
    };
    match removed {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(RedirectError::File { path: path.into(), source })
        }
        _ => Ok(()),
    }
}
