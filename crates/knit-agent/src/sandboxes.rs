//! Sandboxes on one machine: a network namespace, held by a process. That process is the pod.
//!
//! The holder is this same program, started as `knit sandbox hold`: it makes the namespace, brings `lo` up, says so, and
//! waits. The namespace lives as long as the holder, as a pod's does.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use knit_kernel::netlink::Protocol;
use knit_kernel::{Netns, Socket};
use knit_model::sandbox::Instance;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use crate::error::{Error, Result};

/// What the holder says once the namespace is there.
const READY: &str = "ready";

/// Starts a holder and returns its pid. `program` is the `knit` binary.
pub fn start_holder(program: &Path, name: &str) -> Result<u32> {
    let failed = |why: String| Error::Holder { name: name.to_owned(), why };
    let mut command = Command::new(program);
    command.args(["sandbox", "hold"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // It must not die with the terminal, nor hold it.
    let mut child = command.spawn().map_err(|why| failed(why.to_string()))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(|why| failed(why.to_string()))?;
    }
    if line.trim() == READY {
        return Ok(child.id());
    }
    let output = child.wait_with_output().map_err(|why| failed(why.to_string()))?;
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The holder itself: makes a namespace of its own, says that it is there, and waits for a signal.
pub fn hold() -> Result<()> {
    let failed = |why: String| Error::Holder { name: "holder".to_owned(), why };
    // Already a leader when a person started it from a shell; then there is nothing to leave.
    let _ = setsid();
    unshare(CloneFlags::CLONE_NEWNET).map_err(|why| {
        failed(format!("a new network namespace is refused ({why}): run as root, or in a user namespace"))
    })?;
    let mut socket = Socket::open(Protocol::Route)?;
    knit_kernel::netns::bring_up_loopback(&mut socket)?;
    println!("{READY}");
    loop {
        nix::unistd::pause();
    }
}

/// Where the namespace of a process is.
pub fn netns_of(pid: u32) -> String {
    format!("/proc/{pid}/ns/net")
}

/// Which life of a sandbox a namespace is.
pub fn instance_of(netns: &Netns) -> Result<Instance> {
    Ok(Instance { boot: boot_id()?, cookie: netns.cookie()? })
}

/// The kernel's id of this boot, as the node has it.
pub fn boot_id() -> Result<String> {
    let path = knit_kernel::sysctls().join("kernel/random/boot_id");
    let boot = std::fs::read_to_string(&path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    Ok(boot.trim().to_owned())
}

/// Whether a process is a holder that Knit started, and not someone's own that was added with `--pid`.
fn is_holder(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.ends_with(b"\0sandbox\0hold\0")
}

/// Ends a holder, if the process is still the one that holds this namespace. A process that Knit did not start goes on.
pub fn stop_holder(pid: u32, instance: &Instance) -> Result<()> {
    let Ok(netns) = Netns::open(Path::new(&netns_of(pid))) else { return Ok(()) };
    if instance_of(&netns)? == *instance
        && is_holder(pid)
        && let Ok(pid) = i32::try_from(pid)
    {
        // It may have ended by itself in between.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(())
}

/// Becomes a command inside a namespace. Returns only if that fails.
pub fn exec(netns: &Netns, words: &[String]) -> Error {
    let [program, arguments @ ..] = words else {
        return Error::Holder { name: "exec".to_owned(), why: "no command was given".to_owned() };
    };
    if let Err(why) = setns(netns, CloneFlags::CLONE_NEWNET) {
        return Error::Holder { name: program.clone(), why: format!("cannot enter the namespace: {why}") };
    }
    let why = Command::new(program).args(arguments).exec();
    Error::Holder { name: program.clone(), why: why.to_string() }
}
