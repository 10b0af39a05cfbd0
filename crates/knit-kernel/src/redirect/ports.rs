//! The program at pods' ports: a filter of each port's own `clsact` queue.
//!
//! At the links to other nodes it is a link of its own ([`super::attached`]). Here that would cost 15 ms a pod: whenever the kernel makes
//! one, and whenever a network link with one goes, it waits until every CPU has passed by, and nobody changes any network meanwhile
//! (`tcx_entry_sync` in its `include/net/tcx.h`). A filter is there at once, and is changed in place. Nobody else has filters
//! there: the ports are Knit's.
//!
//! A folder in the eBPF file system remembers each port, because nothing is pinned.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::SchedClassifier;
use nix::errno::Errno;

use super::Error;
use super::attached::load;
use super::pins::{list, make, refused};
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;
use crate::netlink::{Message, Protocol, Socket};

/// The filter's place among others: there are none.
const PRIORITY: u32 = 1;
const HANDLE: u32 = 1;

/// The program at ports.
pub(super) struct Ports {
    program: SchedClassifier,
    /// A folder for each port.
    folder: PathBuf,
    links: BTreeSet<u32>,
}

impl Ports {
    /// Loads the program, and puts it in the place of an older one at each port of the calling thread's namespace.
    pub(super) fn open(all: &mut Ebpf, name: &str, folder: &Path, marks: &str) -> Result<Self, Error> {
        let program = load(all, name, folder)?;
        let folder = folder.join(marks);
        make(&folder)?;
        let mut ports = Self { program, folder, links: BTreeSet::new() };
        for (path, name) in list(&ports.folder)? {
            match name.parse() {
                Ok(index) if ports.put(index).is_ok() => {
                    ports.links.insert(index);
                }
                // Its link is gone: the folder is all that is left.
                _ => remove_mark(&path)?,
            }
        }
        Ok(ports)
    }

    /// The links that the program is at, by number.
    pub(super) fn links(&self) -> &BTreeSet<u32> {
        &self.links
    }

    /// Has the program at a link of the calling thread's namespace.
    pub(super) fn attach(&mut self, index: u32) -> Result<(), Error> {
        if self.links.contains(&index) {
            return Ok(());
        }
        make(&self.folder.join(index.to_string()))?;
        self.put(index)?;
        self.links.insert(index);
        Ok(())
    }

    /// Takes the program from all links but these.
    pub(super) fn detach_others(&mut self, wanted: &BTreeSet<u32>) -> Result<(), Error> {
        let others: Vec<u32> = self.links.difference(wanted).copied().collect();
        for index in others {
            detach(index)?;
            remove_mark(&self.folder.join(index.to_string()))?;
            self.links.remove(&index);
        }
        Ok(())
    }

    /// Makes the filter, or puts this program into the one that is there.
    fn put(&self, index: u32) -> Result<(), Error> {
        let program = self.program.fd().map_err(refused("the eBPF program at a port"))?;
        let mut socket = Socket::open(Protocol::Route)?;
        match socket.request(queue(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, index)) {
            Err(why) if why.errno() != Some(Errno::EEXIST) => return Err(why.into()),
            _ => {}
        }
        let mut message =
            Message::new(RTM_NEWTFILTER, NLM_F_CREATE, format!("put the eBPF program at link {index}"));
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

/// Takes the program from every port of the calling thread's namespace that a folder remembers, and then the folder.
pub(super) fn remove(folder: &Path) -> Result<(), Error> {
    for (path, name) in list(folder)? {
        if let Ok(index) = name.parse() {
            detach(index)?;
        }
        remove_mark(&path)?;
    }
    Ok(())
}

/// With its queue a filter goes. A link that is gone took both with it.
fn detach(index: u32) -> Result<(), Error> {
    let gone = Socket::open(Protocol::Route)?.request(queue(RTM_DELQDISC, 0, index));
    match gone {
        Err(why) if !matches!(why.errno(), Some(Errno::ENODEV | Errno::ENOENT | Errno::EINVAL)) => {
            Err(why.into())
        }
        _ => Ok(()),
    }
}

fn queue(kind: u16, flags: u16, index: u32) -> Message {
    let mut message = Message::new(kind, flags, format!("the queue for the eBPF program of link {index}"));
    let header = TrafficHeader {
        index: index as i32,
        parent: TC_H_CLSACT,
        handle: CLSACT_HANDLE,
        ..Default::default()
    };
    message.header(&header).put_str(TCA_KIND, "clsact");
    message
}

/// An older version had a pin in a folder's place: without it the program goes from its link.
fn remove_mark(path: &Path) -> Result<(), Error> {
    let removed = match fs::remove_dir(path) {
        Err(why) if why.kind() == ErrorKind::NotADirectory => fs::remove_file(path),
        removed => removed,
    };
    match removed {
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::File { path: path.into(), source }),
        _ => Ok(()),
    }
}
