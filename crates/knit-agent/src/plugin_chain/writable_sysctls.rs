//! Starts plugins with writable network sysctls, which `bridge` and `tuning` need.
//!
//! In the agent's container `/proc/sys` is read-only, and the agent writes sysctls below another directory. Plugins use
//! `/proc/sys`: they run in a mount namespace of their own, in which `/proc/sys/net` is that of the other directory. Other
//! sysctls stay read-only.

use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// What every plugin uses.
const SYSCTLS: &str = "/proc/sys";

/// Starts the program of a plugin.
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    let directory = knit_kernel::sysctl_root();
    if directory == Path::new(SYSCTLS) {
        return command.spawn();
    }
    // A mount namespace belongs to a thread, and programs inherit it from the thread that starts them.
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("knit-plugin".to_owned()).spawn_scoped(scope, || {
            mount_sysctls(directory)?;
            command.spawn()
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts the plugin panicked")))
    })
}

fn mount_sysctls(directory: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_SLAVE | MsFlags::MS_REC, None::<&str>)?;
    let target = Path::new(SYSCTLS).join("net");
    mount(Some(&directory.join("net")), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}
