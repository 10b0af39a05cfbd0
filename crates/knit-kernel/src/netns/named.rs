//! Named namespaces, as `ip netns add` creates them.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use super::{CURRENT, Netns, on_thread};
use crate::error::{Error, Result};

/// The directory of `ip netns`. `/var/run` is a link to `/run`.
const IP_NETNS_DIR: &str = "/run/netns";

impl Netns {
    /// Creates a namespace and bind-mounts it to a path that must not exist yet. It lives until [`Netns::delete`].
    ///
    /// In `/run/netns` the name is visible to `ip netns` and, as with `ip netns add`, in every mount namespace that
    /// shares mounts with this one.
    pub fn create(path: &Path) -> Result<Self> {
        let cannot = |action, errno: std::io::Error| Error::system(context(path), action, errno);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(|error| cannot("create its directory", error))?;
            if directory == Path::new(IP_NETNS_DIR) || directory == Path::new("/var/run/netns") {
                make_shared_mount(Path::new(IP_NETNS_DIR))
                    .map_err(|errno| cannot("make its directory a shared mount", errno.into()))?;
            }
        }
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o000)
            .open(path)
            .map_err(|error| cannot("create its file", error))?;
        let created = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| cannot("create it", errno.into()))?;
            let none = None::<&str>;
            mount(Some(CURRENT), path, none, MsFlags::MS_BIND, none)
                .map_err(|errno| cannot("bind-mount it", errno.into()))?;
            Self::current()
        });
        created.and_then(|created| created).inspect_err(|_| {
            // The first error is returned; the file is removed on a best-effort basis.
            let _ = Self::delete(path);
        })
    }

    /// Removes the name of a namespace; the namespace ends when nothing else holds it. Succeeds if the name does not
    /// exist. Only a network namespace is unmounted, and only an empty file is removed.
    pub fn delete(path: &Path) -> Result<()> {
        let cannot = |action, error: std::io::Error| Error::system(context(path), action, error);
        if Self::open(path).is_ok() {
            umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
                .map_err(|errno| cannot("unmount it", errno.into()))?;
        }
        match path.symlink_metadata() {
            // The empty mount point; after a reboot only this file is left.
            Ok(found) if found.is_file() && found.len() == 0 => {
                fs::remove_file(path).map_err(|error| cannot("remove its file", error))
            }
            Ok(_) => Err(Error::NotANamespace {
                path: path.into(),
                reason: "is not the file of a network namespace".into(),
            }),
            Err(_) => Ok(()),
        }
    }
}

/// Makes the directory a shared mount, so that names in it are visible in other mount namespaces.
fn make_shared_mount(directory: &Path) -> nix::Result<()> {
    // Two concurrent mounts would hide names under the second one. `ip netns add` takes the same lock.
    let opened =
        File::open(directory).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let _lock = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let none = None::<&str>;
    let make_shared = || mount(none, directory, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    match make_shared() {
        // It is not a mount point yet.
        Err(Errno::EINVAL) => {
            mount(Some(directory), directory, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
            make_shared()
        }
        done => done,
    }
}

fn context(path: &Path) -> String {
    format!("network namespace {}", path.display())
}
