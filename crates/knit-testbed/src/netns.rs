//! Creates, enters and deletes network namespaces.
//!
//! A namespace is created on its own thread and gets a name through a bind mount, as `ip netns` does. The name is
//! reserved by creating its file exclusively, so that two processes never use the same one.

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

/// IPv4 sysctls that a new namespace copies from the machine, reset to kernel defaults: a test must not depend on
/// whether the machine forwards.
const DEFAULT_SYSCTLS: &[(&str, &str)] = &[
    ("/proc/sys/net/ipv4/ip_forward", "0"),
    ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
    ("/proc/sys/net/ipv4/conf/default/rp_filter", "0"),
    ("/proc/sys/net/ipv4/conf/lo/rp_filter", "0"),
];

/// Reserves the name; false if it is taken.
pub(crate) fn reserve(path: &Path) -> Result<bool, Error> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::NotAllowed { cause: format!("cannot create {}: {error}", path.display()) }),
    }
}

/// Creates a network namespace with `lo` up, mounted at `path`, whose name the caller has reserved.
pub(crate) fn create(name: &str, path: &Path) -> Result<OwnedFd, Error> {
    let created = on_thread(name, || {
        unshare(CloneFlags::CLONE_NEWNET).map_err(unshare_error)?;
        set_up(name, path)
    });
    if created.is_err() {
        // Only the reserved name is left; the caller gets the original error.
        let _ = delete(path);
    }
    created
}

fn unshare_error(error: Errno) -> Error {
    let cause = match error {
        Errno::EPERM => "permission denied (CAP_SYS_ADMIN is missing)".to_owned(),
        Errno::ENOSPC => "limit reached, see /proc/sys/user/max_net_namespaces".to_owned(),
        other => other.to_string(),
    };
    Error::NotAllowed { cause }
}

/// Sets up the new namespace from a thread inside it.
fn set_up(name: &str, path: &Path) -> Result<OwnedFd, Error> {
    let system = |action: &str, source: io::Error| Error::System {
        namespace: name.to_owned(),
        action: action.to_owned(),
        source,
    };
    let here = "/proc/thread-self/ns/net";
    let descriptor = File::open(here).map_err(|error| system("open its own netns", error))?;
    mount(Some(here), path, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(|error| {
        Error::NotAllowed { cause: format!("cannot mount on {}: {error}", path.display()) }
    })?;
    for (file, value) in DEFAULT_SYSCTLS {
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

/// Deletes the name. A missing name is not an error.
pub(crate) fn delete(path: &Path) -> io::Result<()> {
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

/// Runs `work` on a thread inside the namespace. A panic of `work` resumes in the caller.
pub(crate) fn run_inside<T: Send>(
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
