//! The folder where namespaces are visible by name.
//!
//! Always `/run/netns`, so that `ip netns` finds them. In a user namespace that folder belongs to somebody else:
//! there the testbed mounts a tmpfs of its own over it, or over `/run` when it does not exist. That never
//! touches the machine: the kernel lets a user namespace mount only in a mount namespace of its own.

use std::fs::{self, File};
use std::path::Path;
use std::sync::OnceLock;

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::unistd::{AccessFlags, access};

use crate::Error;

/// The folder that `ip netns` knows.
const RUN_NETNS: &str = "/run/netns";

/// The folder for this process, made ready on the first call.
pub(crate) fn folder() -> Result<&'static Path, Error> {
    static FOLDER: OnceLock<Result<(), String>> = OnceLock::new();
    match FOLDER.get_or_init(prepare) {
        Ok(()) => Ok(Path::new(RUN_NETNS)),
        Err(cause) => Err(Error::NotAllowed { cause: cause.clone() }),
    }
}

/// Whether this process lives in a user namespace below the machine's own.
pub(crate) fn in_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !is_whole_map(&map))
}

/// The machine's own user namespace maps all 2^32 - 1 ids to themselves.
fn is_whole_map(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn prepare() -> Result<(), String> {
    // Several test processes may share one mount namespace; only one of them may mount.
    let run = File::open("/run").map_err(|error| format!("cannot open /run: {error}"))?;
    let _lock = Flock::lock(run, FlockArg::LockExclusive)
        .map_err(|(_, error)| format!("cannot lock /run: {error}"))?;
    ensure_proc_shows_us()?;
    if is_usable() {
        return Ok(());
    }
    if !in_user_namespace() {
        return Err(format!("{RUN_NETNS} is not writable"));
    }
    mount_tmpfs(if Path::new(RUN_NETNS).is_dir() { RUN_NETNS } else { "/run" })?;
    if is_usable() { Ok(()) } else { Err(format!("{RUN_NETNS} is not writable, not even on a tmpfs")) }
}

/// Whether namespaces can be shown there; makes the folder when it may.
fn is_usable() -> bool {
    fs::create_dir_all(RUN_NETNS).is_ok() && access(RUN_NETNS, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Processes are found by their number in /proc, so that /proc must count as we do. After `unshare --pid`
/// without `--mount-proc` it does not.
fn ensure_proc_shows_us() -> Result<(), String> {
    let shown = fs::read_link("/proc/self").map_err(|error| format!("cannot read /proc/self: {error}"))?;
    if shown == Path::new(&std::process::id().to_string()) {
        return Ok(());
    }
    if !in_user_namespace() {
        return Err("/proc belongs to another pid namespace (unshare --mount-proc helps)".to_owned());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>)
        .map_err(|error| format!("cannot mount /proc for our own pid namespace: {error}"))
}

fn mount_tmpfs(folder: &str) -> Result<(), String> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("knit-testbed"), folder, Some("tmpfs"), flags, Some("mode=755"))
        .map_err(|error| format!("cannot mount a tmpfs on {folder} (unshare --mount helps): {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_own_user_namespace_is_recognised() {
        assert!(is_whole_map("         0          0 4294967295\n"));
        assert!(!is_whole_map("         0      65534          1\n"));
        assert!(!is_whole_map(""));
    }
}
