//! Sandboxes on one machine: a network namespace held by a process, which is the pod.
//!
//! The holder is this program itself, run as `knit sandbox hold`: it creates the namespace, brings `lo` up, reports readiness and waits. The
//! namespace lives as long as the holder.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use knit_kernel::netlink::Protocol;
use knit_kernel::{Netns, Socket};
use knit_model::sandbox::SandboxInstance;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use crate::error::{Error, Result};

/// The holder's readiness line.
const READY: &str = "ready";

/// Starts a holder and returns its pid. `program` is the `knit` binary.
pub fn start_holder(program: &Path, name: &str) -> Result<u32> {
    let failed = |why: String| Error::Holder { name: name.to_owned(), why };
    let mut command = Command::new(program);
    command.args(["sandbox", "hold"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The holder must survive the terminal, and must not keep it open.
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

/// The holder: creates a namespace, reports readiness and waits for a signal.
pub fn hold() -> Result<()> {
    let failed = |why: String| Error::Holder { name: "holder".to_owned(), why };
    // Fails if the process already leads a session, as when started from a shell.
    let _ = setsid();
    unshare(CloneFlags::CLONE_NEWNET).map_err(|why| {
        failed(format!("cannot create a network namespace ({why}): run as root or in a user namespace"))
    })?;
    let mut socket = Socket::open(Protocol::Route)?;
    knit_kernel::netns::bring_up_loopback(&mut socket)?;
    println!("{READY}");
    loop {
        nix::unistd::pause();
    }
}

/// The path of a process's namespace.
pub fn netns_of(pid: u32) -> String {
    format!("/proc/{pid}/ns/net")
}

/// The instance of a sandbox that a namespace belongs to.
pub fn instance_of(netns: &Netns) -> Result<SandboxInstance> {
    Ok(SandboxInstance { boot: boot_id()?, cookie: netns.cookie()? })
}

/// The instance of a sandbox whose namespace is at this path. The host's namespace is rejected.
pub fn instance_at(path: &Path) -> Result<SandboxInstance> {
    instance_of(&Netns::open_sandbox(path, &Netns::current()?)?)
}

/// The node's boot id.
pub fn boot_id() -> Result<String> {
    let path = knit_kernel::sysctl_root().join("kernel/random/boot_id");
    let boot = std::fs::read_to_string(&path)
        .map_err(|source| Error::File { path: path.display().to_string(), source })?;
    Ok(boot.trim().to_owned())
}

/// Whether a process is a holder started by Knit, not one that was added with `--pid`.
fn is_holder(pid: u32) -> bool {
    let argv = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    argv.ends_with(b"\0sandbox\0hold\0")
}

/// Kills a holder, if the process still holds this namespace. Processes that Knit did not start are left alone.
pub fn stop_holder(pid: u32, instance: &SandboxInstance) -> Result<()> {
    let Ok(netns) = Netns::open(Path::new(&netns_of(pid))) else { return Ok(()) };
    if instance_of(&netns)? == *instance
        && is_holder(pid)
        && let Ok(pid) = i32::try_from(pid)
    {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(())
}

/// Executes a command in a namespace. Returns only on failure.
pub fn exec(netns: &Netns, argv: &[String]) -> Error {
    let [program, arguments @ ..] = argv else {
        return Error::Holder { name: "exec".to_owned(), why: "no command was given".to_owned() };
    };
    if let Err(why) = setns(netns, CloneFlags::CLONE_NEWNET) {
        return Error::Holder { name: program.clone(), why: format!("cannot enter the namespace: {why}") };
    }
    let why = Command::new(program).args(arguments).exec();
    Error::Holder { name: program.clone(), why: why.to_string() }
}
