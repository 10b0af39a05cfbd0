//! The folder of namespace names.
//!
//! Always `/run/netns`, so that `ip netns` finds them. In a user namespace that folder belongs to another user:
//! there the testbed mounts its own tmpfs over it, or over `/run` if it does not exist. That never affects the
//! machine: the kernel allows a user namespace to mount only in its own mount namespace.

use std::fs::{self, File};
use std::path::Path;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::unistd::{AccessFlags, access};

use crate::Error;

/// The folder that `ip netns` uses.
const RUN_NETNS: &str = "/run/netns";

/// The folder for this process, prepared on the first call.
pub(crate) fn folder() -> Result<&'static Path, Error> {
    static FOLDER: OnceLock<Result<(), String>> = OnceLock::new();
    match FOLDER.get_or_init(prepare) {
        Ok(()) => Ok(Path::new(RUN_NETNS)),
        Err(cause) => Err(Error::NotAllowed { cause: cause.clone() }),
    }
}

/// Whether this process runs in a user namespace below the machine's own.
pub(crate) fn in_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps_all_ids(&map))
}

/// The machine's own user namespace maps all 2^32 - 1 IDs to themselves.
fn maps_all_ids(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn prepare() -> Result<(), String> {
    // Several test processes may share one mount namespace; only one of them may mount.
    let run = File::open("/run").map_err(|error| format!("cannot open /run: {error}"))?;
    let _lock = Flock::lock(run, FlockArg::LockExclusive)
        .map_err(|(_, error)| format!("cannot lock /run: {error}"))?;
    ensure_own_proc()?;
    if is_usable() {
        return make_shared_mount();
    }
    if !in_user_namespace() {
        return Err(format!("{RUN_NETNS} is not writable"));
    }
    mount_tmpfs(if Path::new(RUN_NETNS).is_dir() { RUN_NETNS } else { "/run" })?;
    if is_usable() {
        make_shared_mount()
    } else {
        Err(format!("{RUN_NETNS} is not writable, not even on a tmpfs"))
    }
}

/// Makes the folder a shared mount of its own, as the first `ip netns add` or `ip netns exec` does. Afterwards none of them
/// mounts the folder over itself while namespaces are in it: the covered mounts could not be unmounted.
fn make_shared_mount() -> Result<(), String> {
    let flags = MsFlags::MS_SHARED | MsFlags::MS_REC;
    let share = || mount(None::<&str>, RUN_NETNS, None::<&str>, flags, None::<&str>);
    let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
    let shared = match share() {
        // Not a mount point yet.
        Err(Errno::EINVAL) => {
            mount(Some(RUN_NETNS), RUN_NETNS, None::<&str>, bind, None::<&str>).and_then(|()| share())
        }
        other => other,
    };
    shared.map_err(|error| format!("cannot make {RUN_NETNS} a shared mount: {error}"))
}

/// Whether namespaces can be mounted there; creates the folder if possible.
fn is_usable() -> bool {
    fs::create_dir_all(RUN_NETNS).is_ok() && access(RUN_NETNS, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Processes are looked up in /proc by PID, so /proc must belong to our PID namespace. After `unshare --pid`
/// without `--mount-proc` it does not.
fn ensure_own_proc() -> Result<(), String> {
    let own = fs::read_link("/proc/self").map_err(|error| format!("cannot read /proc/self: {error}"))?;
    if own == Path::new(&std::process::id().to_string()) {
        return Ok(());
    }
    if !in_user_namespace() {
        return Err("/proc belongs to another PID namespace (use unshare --mount-proc)".to_owned());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
        .map_err(|error| format!("cannot mount /proc for our own PID namespace: {error}"))
}

fn mount_tmpfs(folder: &str) -> Result<(), String> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("knit-testbed"), folder, Some("tmpfs"), flags, Some("mode=755"))
        .map_err(|error| format!("cannot mount a tmpfs on {folder} (use unshare --mount): {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_user_namespace_is_recognized() {
        assert!(maps_all_ids("         0          0 4294967295\n"));
        assert!(!maps_all_ids("         0      65534          1\n"));
        assert!(!maps_all_ids(""));
    }
}
