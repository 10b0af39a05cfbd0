//! Namespaces with a name in the file system, as `ip netns add` makes them.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use super::{CURRENT, Netns, on_thread};
use crate::error::{Error, Result};

/// Where `ip netns` keeps its names. `/var/run` leads here.
const CUSTOMARY: &str = "/run/netns";

impl Netns {
    /// Makes a new namespace and binds it to a path that must not exist yet. It lives until [`Netns::delete`].
    ///
    /// In `/run/netns` the name is seen by `ip netns` and, as with `ip netns add`, in every mount namespace that shares
    /// mounts with this one.
    pub fn create(path: &Path) -> Result<Self> {
        let cannot = |action, errno: std::io::Error| Error::system(context(path), action, errno);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|error| cannot("make its folder", error))?;
            if folder == Path::new(CUSTOMARY) || folder == Path::new("/var/run/netns") {
                share(Path::new(CUSTOMARY)).map_err(|errno| cannot("share its folder", errno.into()))?;
            }
        }
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o000)
            .open(path)
            .map_err(|error| cannot("make its file", error))?;
        let made = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| cannot("make it", errno.into()))?;
            let none = None::<&str>;
            mount(Some(CURRENT), path, none, MsFlags::MS_BIND, none)
                .map_err(|errno| cannot("bind it to its path", errno.into()))?;
            Self::current()
        });
        made.and_then(|made| made).inspect_err(|_| {
            // The first error is the one to tell; what is left of the file is removed either way.
            let _ = Self::delete(path);
        })
    }

    /// Takes away the name of a namespace; the namespace ends when nothing else holds it. Deleting what is not there
    /// succeeds. Only a network namespace is unmounted, and only an empty file is removed.
    pub fn delete(path: &Path) -> Result<()> {
        let cannot = |action, error: std::io::Error| Error::system(context(path), action, error);
        if Self::open(path).is_ok() {
            umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
                .map_err(|errno| cannot("unmount it", errno.into()))?;
        }
        match path.symlink_metadata() {
            // What remains is the empty file that `create` made; after a reboot there is nothing but that file.
            Ok(found) if found.is_file() && found.len() == 0 => {
                fs::remove_file(path).map_err(|error| cannot("remove its file", error))
            }
            Ok(_) => Err(Error::NotANamespace { path: path.into(), why: "is not a namespace's file".into() }),
            Err(_) => Ok(()),
        }
    }
}

/// Makes the folder a shared mount of its own, so that names made in it are seen in other mount namespaces.
fn share(folder: &Path) -> nix::Result<()> {
    // Two programs that do this at once would mount twice, and the second mount would hide the names under the first.
    // `ip netns add` takes the same lock.
    let opened =
        File::open(folder).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let _lock = Flock::lock(opened, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let none = None::<&str>;
    let make_shared = || mount(none, folder, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none);
    match make_shared() {
        // It is not a mount yet.
        Err(Errno::EINVAL) => {
            mount(Some(folder), folder, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
            make_shared()
        }
        done => done,
    }
}

fn context(path: &Path) -> String {
    format!("network namespace {}", path.display())
}
