//! Network namespaces, held by descriptor.
//!
//! The number of a namespace's inode is used again within milliseconds of its end, so Knit never remembers a number or
//! a path: it holds a descriptor, enters by it, and compares the cookie ([`Netns::cookie`]) where it must know that a
//! namespace is still the one it was.

pub(crate) mod hopper;
mod loopback;
mod named;

pub use hopper::may_visit;
pub use loopback::bring_up_loopback;

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

/// A network namespace that lives at least as long as this handle. Clones share one descriptor.
#[derive(Clone, Debug)]
pub struct Netns {
    fd: Arc<OwnedFd>,
}

impl Netns {
    /// The namespace that the calling thread is in.
    pub fn current() -> Result<Self> {
        Self::open(Path::new(CURRENT))
    }

    /// The namespace that a path leads to. Whatever is not a network namespace is refused at once, and in words:
    /// nothing there is read or waited for. A link of `/proc/<pid>/ns` is followed, any other symbolic link is not.
    pub fn open(path: &Path) -> Result<Self> {
        let refuse = |why: &str| Error::NotANamespace { path: path.into(), why: why.to_owned().into() };
        let found = path.symlink_metadata().map_err(|error| refuse(&lookup_failure(&error)))?;
        let kind = found.file_type();
        let mut flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        if kind.is_symlink() {
            if !is_proc_link(path) {
                return Err(refuse("is a symbolic link; give the path it leads to"));
            }
        } else if kind.is_file() {
            flags |= libc::O_NOFOLLOW;
        } else {
            return Err(refuse(&format!("is {}, not a network namespace", kind_in_words(kind))));
        }
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| refuse(&lookup_failure(&error)))?;
        // From here on only the descriptor counts: the path may lead elsewhere by now.
        let filesystem = fstatfs(&file).map_err(|errno| refuse(errno.desc()))?.filesystem_type();
        if filesystem != NSFS_MAGIC {
            return Err(refuse("is a regular file, not a network namespace (has it been unmounted?)"));
        }
        match sys::namespace_type(file.as_fd()) {
            Ok(libc::CLONE_NEWNET) => Ok(Self { fd: Arc::new(file.into()) }),
            Ok(_) => Err(refuse("is a namespace of another kind, not a network namespace")),
            Err(error) => Err(refuse(&error.to_string())),
        }
    }

    /// The namespace of a sandbox: as [`Netns::open`], but the host's own is refused. `host` is the agent's namespace.
    pub fn open_sandbox(path: &Path, host: &Netns) -> Result<Self> {
        let netns = Self::open(path)?;
        if netns.is_same(host)? {
            return Err(Error::NotANamespace { path: path.into(), why: "is the host's own".into() });
        }
        Ok(netns)
    }

    /// The namespace of a process. The process is held while it is looked at, so that a pid that is used again for
    /// another process is noticed.
    pub fn of_process(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let path = Path::new(&path);
        let gone =
            || Error::NotANamespace { path: path.into(), why: format!("process {pid} is gone").into() };
        let process = sys::pidfd_open(pid).map_err(|error| match error.raw_os_error() {
            Some(libc::ESRCH) => gone(),
            _ => Error::system(format!("process {pid}"), "hold it", error),
        })?;
        let netns = Self::open(path)?;
        // A pidfd can be read once its process has ended.
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) {
            Ok(0) => Ok(netns),
            Ok(_) => Err(gone()),
            Err(errno) => Err(Error::system(format!("process {pid}"), "look at it", errno)),
        }
    }

    /// A new namespace without a name: it ends with its last handle, socket or process.
    pub fn unnamed() -> Result<Self> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::system("new network namespace", "make it", errno))?;
            Self::current()
        })?
    }

    /// Runs a closure inside the namespace, on a thread of its own that ends with it. No other thread moves.
    pub fn enter<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> Result<R> {
        on_thread(|| {
            setns(&*self.fd, CloneFlags::CLONE_NEWNET)
                .map_err(|errno| Error::system("network namespace", "enter it", errno))?;
            Ok(inside())
        })?
    }

    /// A number that no other namespace has on this boot.
    pub fn cookie(&self) -> Result<u64> {
        Socket::open_in(self, Protocol::Route)?.netns_cookie()
    }

    /// Whether two handles are for the same namespace. Both are open, so their inode numbers are in use.
    pub fn is_same(&self, other: &Self) -> Result<bool> {
        Ok(self.inode()? == other.inode()?)
    }

    fn inode(&self) -> Result<(u64, u64)> {
        let cannot = |errno| Error::system("network namespace", "look at it", errno);
        let found = fstat(&self.fd).map_err(cannot)?;
        Ok((found.st_dev, found.st_ino))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Runs a closure on a thread that ends with it, so that whatever namespace it ends in is never another's.
fn on_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("knit-netns".into()).spawn_scoped(scope, work);
        let worker = worker.map_err(|error| Error::system("network namespace", "start a thread", error))?;
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Whether the folder of this symbolic link is in /proc, whose links lead to the namespace itself and not to a path.
fn is_proc_link(path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    statfs(folder).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC)
}

fn lookup_failure(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT | Errno::ENOTDIR) => "there is no such file (is the sandbox gone?)".into(),
        Some(Errno::EACCES | Errno::EPERM) => "no permission to open it (root is needed)".into(),
        _ => error.to_string(),
    }
}

fn kind_in_words(kind: std::fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}
