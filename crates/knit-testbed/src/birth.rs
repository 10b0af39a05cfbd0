//! How a namespace comes to life and how it goes.
//!
//! A namespace is made on a thread of its own and shown by name with a bind mount, as `ip netns` does. The
//! name is reserved by creating its file exclusively, so that two processes never get the same one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::Error;

/// IPv4 settings that a new namespace copies from the machine, put to what a fresh kernel has: a test must
/// not depend on whether the machine forwards.
const FRESH: &[(&str, &str)] = &[
    ("/proc/sys/net/ipv4/ip_forward", "0"),
    ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
    ("/proc/sys/net/ipv4/conf/default/rp_filter", "0"),
    ("/proc/sys/net/ipv4/conf/lo/rp_filter", "0"),
];

/// Reserves the name: false when somebody has it already.
pub(crate) fn reserve(path: &Path) -> Result<bool, Error> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::NotAllowed { cause: format!("cannot create {}: {error}", path.display()) }),
    }
}

/// A new network namespace with `lo` up, shown at `path`, whose name the caller has reserved.
pub(crate) fn give_birth(name: &str, path: &Path) -> Result<OwnedFd, Error> {
    let born = on_thread(name, || {
        unshare(CloneFlags::CLONE_NEWNET).map_err(refused)?;
        furnish(name, path)
    });
    if born.is_err() {
        // The name was only reserved; whoever asked hears about the failure itself.
        let _ = bury(path);
    }
    born
}

fn refused(error: Errno) -> Error {
    let cause = match error {
        Errno::EPERM => "the kernel refuses (no CAP_SYS_ADMIN here)".to_owned(),
        Errno::ENOSPC => "too many already, see /proc/sys/user/max_net_namespaces".to_owned(),
        other => other.to_string(),
    };
    Error::NotAllowed { cause }
}

/// Runs in the new namespace.
fn furnish(name: &str, path: &Path) -> Result<OwnedFd, Error> {
    let system = |action: &str, source: io::Error| Error::System {
        namespace: name.to_owned(),
        action: action.to_owned(),
        source,
    };
    let here = "/proc/thread-self/ns/net";
    let descriptor = File::open(here).map_err(|error| system("open itself", error))?;
    mount(Some(here), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(|error| {
        Error::NotAllowed { cause: format!("cannot mount on {}: {error}", path.display()) }
    })?;
    for (file, value) in FRESH {
        fs::write(file, value).map_err(|error| system(&format!("write {file}"), error))?;
    }
    let status = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status()
        .map_err(|error| system("start `ip` (package iproute2)", error))?;
    if !status.success() {
        return Err(system("set lo up", io::Error::other(status.to_string())));
    }
    Ok(descriptor.into())
}

/// Takes the name away. What is not there any more is fine.
pub(crate) fn bury(path: &Path) -> io::Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
        Err(error) => return Err(error.into()),
    }
    // Removing the file also detaches the mount in mount namespaces that copied ours.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs `work` on a thread that has entered the namespace. A panic inside goes on in the caller.
pub(crate) fn inside<T: Send>(
    name: &str,
    descriptor: impl AsFd + Sync,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    on_thread(name, || {
        setns(descriptor.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|error| Error::System {
            namespace: name.to_owned(),
            action: "enter".to_owned(),
            source: error.into(),
        })?;
        Ok(work())
    })
}

fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).map_err(|source| {
                Error::System { namespace: name.to_owned(), action: "start a thread".to_owned(), source }
            })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
