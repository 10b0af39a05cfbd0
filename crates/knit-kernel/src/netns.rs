//! Network namespaces, held by descriptor.
//!
//! Inode numbers of namespaces are reused within milliseconds, so Knit never stores a number or a path. It holds a
//! descriptor, enters through it, and compares the cookie ([`Netns::cookie`]) to check that a namespace is still the
//! same.

mod loopback;
mod named;
pub(crate) mod switch;

pub(crate) use loopback::LOOPBACK;
pub use loopback::bring_up_loopback;
pub use switch::allow_netns_switch;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::{io, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::stat::fstat;
use nix::sys::statfs::{NSFS_MAGIC, PROC_SUPER_MAGIC, fstatfs, statfs};

use crate::error::{Error, Result};
use crate::netlink::{Protocol, Socket};
use crate::sys;

/// The calling thread's network namespace.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// A handle that keeps a network namespace alive. Clones share one descriptor.
#[derive(Clone, Debug)]
pub struct Netns {
    fd: Arc<OwnedFd>,
}

impl Netns {
    /// The namespace of the calling thread.
    pub fn current() -> Result<Self> {
        Self::open(Path::new(CURRENT))
    }

    /// The namespace at a path. Anything else is rejected with an error, without reading from it or blocking on it. A
    /// link in `/proc/<pid>/ns` is followed, any other symbolic link is not.
    pub fn open(path: &Path) -> Result<Self> {
        let reject =
            |reason: &str| Error::NotANamespace { path: path.into(), reason: reason.to_owned().into() };
        let found = path.symlink_metadata().map_err(|error| reject(&lookup_failure(&error)))?;
        let kind = found.file_type();
        let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        if kind.is_symlink() {
            if !is_proc_link(path) {
                return Err(reject("is a symbolic link; use its target"));
            }
        } else if kind.is_file() {
            flags |= libc::O_NOFOLLOW;
        } else {
            return Err(reject(&format!("is {}, not a network namespace", file_type_name(kind))));
        }
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| reject(&lookup_failure(&error)))?;
        // Only the descriptor is used from here on: the path may refer to another file by now.
        let filesystem = fstatfs(&file).map_err(|errno| reject(errno.desc()))?.filesystem_type();
        if filesystem != NSFS_MAGIC {
            return Err(reject("is a regular file, not a network namespace (has it been unmounted?)"));
        }
        match sys::namespace_type(file.as_fd()) {
            Ok(libc::CLONE_NEWNET) => Ok(Self { fd: Arc::new(file.into()) }),
            Ok(_) => Err(reject("is a namespace of another kind, not a network namespace")),
            Err(error) => Err(reject(&error.to_string())),
        }
    }

    /// The namespace of a sandbox: as [`Netns::open`], but rejects the host's namespace.
    pub fn open_sandbox(path: &Path, host: &Netns) -> Result<Self> {
        let netns = Self::open(path)?;
        if netns.is_same(host)? {
            return Err(Error::NotANamespace {
                path: path.into(),
                reason: "is the host's network namespace".into(),
            });
        }
        Ok(netns)
    }

    /// The namespace of a process. A pidfd holds the process meanwhile, so that a reused pid is detected.
    pub fn of_process(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let path = Path::new(&path);
        let gone =
            || Error::NotANamespace { path: path.into(), reason: format!("process {pid} is gone").into() };
        let process = sys::pidfd_open(pid).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => gone(),
            _ => Error::system(format!("process {pid}"), "open a pidfd", error),
        })?;
        let netns = Self::open(path)?;
        // A pidfd is readable once its process has ended.
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) {
            Ok(0) => Ok(netns),
            Ok(_) => Err(gone()),
            Err(errno) => Err(Error::system(format!("process {pid}"), "inspect it", errno)),
        }
    }

    /// A new anonymous namespace: it ends with its last handle, socket or process.
    pub fn unnamed() -> Result<Self> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::system("new network namespace", "create it", errno))?;
            Self::current()
        })?
    }

    /// Runs a closure inside the namespace, on a new thread. No other thread switches its namespace.
    pub fn enter<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> Result<R> {
        on_thread(|| {
            setns(&*self.fd, CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::system("network namespace", "enter it", errno))?;
            Ok(inside())
        })?
    }

    /// The cookie: unique among all namespaces of this boot.
    pub fn cookie(&self) -> Result<u64> {
        Socket::open_in(self, Protocol::Route)?.netns_cookie()
    }

    /// Whether two handles refer to the same namespace. Both are open, so their inode numbers are in use.
    pub fn is_same(&self, other: &Self) -> Result<bool> {
        Ok(self.inode()? == other.inode()?)
    }

    fn inode(&self) -> Result<(u64, u64)> {
        let cannot = |errno| Error::system("network namespace", "inspect it", errno);
        let found = fstat(&self.fd).map_err(cannot)?;
        Ok((found.st_dev, found.st_ino))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs a closure on a new thread, so that no other work runs in the namespace it switches to.
fn on_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("knit-netns".into()).spawn_scoped(scope, work);
        let worker = worker.map_err(|error| Error::system("network namespace", "start a thread", error))?;
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Whether the parent of this symbolic link is in /proc, whose links refer to the namespace itself and not to a path.
fn is_proc_link(path: &Path) -> bool {
    let directory =
        path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    statfs(directory).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC)
}

fn lookup_failure(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => "no such file (is the sandbox gone?)".into(),
        Some(Errno::EACCES | Errno::EPERM) => "no permission to open it (root is needed)".into(),
        _ => error.to_string(),
    }
}

fn file_type_name(kind: std::fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
