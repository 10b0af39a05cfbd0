//! What keeps a namespace alive: processes and threads inside it, open descriptors, other mounts.
//!
//! A namespace's inode number is reused within milliseconds after its deletion. All checks here therefore run only
//! while the testbed itself holds the namespace by a descriptor.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long a killed process, or a child between fork and exec, may take to release the namespace.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Identifies a namespace while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    pub(crate) fn of(descriptor: &OwnedFd) -> io::Result<Self> {
        Self::of_file(Path::new(&format!("/proc/self/fd/{}", descriptor.as_raw_fd())))
    }

    pub(crate) fn of_process(pid: u32) -> Option<Self> {
        Self::of_file(Path::new(&format!("/proc/{pid}/ns/net"))).ok()
    }

    fn of_file(file: &Path) -> io::Result<Self> {
        fs::metadata(file).map(|data| Self { device: data.dev(), inode: data.ino() })
    }

    /// As the kernel prints it in links and in mountinfo.
    fn ns_name(self) -> String {
        format!("net:[{}]", self.inode)
    }
}

/// Something that keeps a namespace alive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Thread { pid: u32, thread: u32 },
    Descriptor { pid: u32, descriptor: RawFd },
    Mount { mount_point: PathBuf },
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = |pid: &u32| {
            if *pid == std::process::id() {
                "this test process".to_owned()
            } else {
                format!("process {pid} `{}`", command_line(*pid))
            }
        };
        match self {
            Self::Thread { pid, thread } => {
                write!(formatter, "thread {thread} of {} is inside", process(pid))
            }
            Self::Descriptor { pid, descriptor } => {
                write!(formatter, "{} has it open as descriptor {descriptor}", process(pid))
            }
            Self::Mount { mount_point } => write!(formatter, "it is mounted on {}", mount_point.display()),
        }
    }
}

/// Processes whose main thread is inside.
pub(crate) fn processes_inside(identity: Identity) -> Vec<(u32, String)> {
    numbers_in("/proc")
        .filter(|pid| Identity::of_process(*pid) == Some(identity))
        .map(|pid| (pid, command_line(pid)))
        .collect()
}

/// Kills all processes inside except this one: children of the test's own programs.
pub(crate) fn kill_processes_inside(identity: Identity, problems: &mut Vec<String>) {
    for (pid, command) in processes_inside(identity) {
        if pid == std::process::id() {
            continue;
        }
        let target = Pid::from_raw(i32::try_from(pid).expect("a pid fits in pid_t"));
        match kill(target, Signal::SIGKILL) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => problems.push(format!("process {pid} `{command}`: cannot kill it: {error}")),
        }
    }
}

/// Waits until only `own` holds the namespace; returns the remaining holders after a timeout.
pub(crate) fn wait_until_free(identity: Identity, own: &OwnedFd) -> Vec<Holder> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let holders = holders(identity, own.as_raw_fd());
        // Waiting does not help for what this process holds itself.
        let is_permanent = holders.iter().all(|holder| {
            matches!(holder, Holder::Descriptor { pid, .. } if *pid == std::process::id())
                || matches!(holder, Holder::Mount { .. })
        });
        if is_permanent || Instant::now() > deadline {
            return holders;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn holders(identity: Identity, own: RawFd) -> Vec<Holder> {
    let mut holders = Vec::new();
    for pid in numbers_in("/proc") {
        for thread in numbers_in(&format!("/proc/{pid}/task")) {
            let file = format!("/proc/{pid}/task/{thread}/ns/net");
            if Identity::of_file(Path::new(&file)).is_ok_and(|found| found == identity) {
                holders.push(Holder::Thread { pid, thread });
            }
        }
        holders.extend(open_descriptors(pid, &identity.ns_name(), own));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    holders.extend(mounts_of(&mounts, &identity.ns_name()).map(|mount_point| Holder::Mount { mount_point }));
    holders
}

fn open_descriptors(pid: u32, ns_name: &str, own: RawFd) -> impl Iterator<Item = Holder> {
    numbers_in(&format!("/proc/{pid}/fd"))
        .filter(move |descriptor| {
            fs::read_link(format!("/proc/{pid}/fd/{descriptor}"))
                .is_ok_and(|target| target == Path::new(ns_name))
        })
        .filter_map(move |descriptor| {
            let descriptor = RawFd::try_from(descriptor).ok()?;
            let is_own = pid == std::process::id() && descriptor == own;
            (!is_own).then_some(Holder::Descriptor { pid, descriptor })
        })
}

/// Where mountinfo shows this namespace: its fourth field is the root within the file system, here the namespace's
/// name, the fifth the mount point.
fn mounts_of(mountinfo: &str, ns_name: &str) -> impl Iterator<Item = PathBuf> {
    mountinfo.lines().filter_map(move |line| {
        let mut fields = line.split(' ').skip(3);
        (fields.next()? == ns_name).then(|| fields.next().map(PathBuf::from))?
    })
}

/// The numeric entries of a folder. A process may exit meanwhile: that is an empty folder.
fn numbers_in(folder: &str) -> impl Iterator<Item = u32> + use<> {
    fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The command line, empty for a process that has exited.
pub(crate) fn command_line(pid: u32) -> String {
    let raw = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&raw).replace('\0', " ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_their_namespace() {
        let mountinfo = "65 64 0:40 /netns /run/netns rw shared:1 - tmpfs tmpfs rw\n\
                         66 65 0:4 net:[4026532249] /run/netns/x rw shared:2 - nsfs nsfs rw\n\
                         67 65 0:4 net:[4026532250] /run/netns/y rw shared:2 - nsfs nsfs rw\n";
        let mount_points: Vec<_> = mounts_of(mountinfo, "net:[4026532249]").collect();
        assert_eq!(mount_points, [PathBuf::from("/run/netns/x")]);
    }
}
