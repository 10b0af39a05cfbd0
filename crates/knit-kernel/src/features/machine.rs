//! What is looked at on the machine itself, without changing anything.

use std::fs::{File, read_to_string};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::Area;
use super::probe::{Finding, Probe, ROOT, Where::Machine as Look, Where::Scratch as Try};
use crate::kinds::tap;
use crate::sys;

pub const PROBES: &[Probe] = &[
    // That there is a scratch namespace at all is the answer.
    Probe::new("netns", "network namespaces", Area::Namespaces, "CONFIG_NET_NS", Try(|_| Finding::Present))
        .needed_for("everything: a pod is a network namespace")
        .basic(),
    Probe::new("netns-cookie", "namespace cookies", Area::Namespaces, "CONFIG_NET_NS", Look(netns_cookie))
        .needed_for("telling a sandbox from an older one with the same number (Linux 5.14)"),
    Probe::new("pidfd", "process descriptors", Area::Namespaces, "CONFIG_NET", Look(pidfd))
        .needed_for("entering the namespace of the right process (Linux 5.3)"),
    Probe::new(
        "user-namespaces",
        "user namespaces",
        Area::Namespaces,
        "CONFIG_USER_NS",
        Look(user_namespaces),
    )
    .needed_for("the demo and the tests without root"),
    Probe::new("bpf", "eBPF", Area::Ebpf, "CONFIG_BPF_SYSCALL", Look(bpf))
        .needed_for("TCP between pods of one node past the bridge (with Linux 6.6)"),
    Probe::new("bpffs", "the eBPF file system", Area::Ebpf, "CONFIG_BPF_SYSCALL", Look(bpffs))
        .needed_for("programs that outlive a restart of the agent"),
    Probe::new(
        "btf",
        "eBPF type information",
        Area::Ebpf,
        "CONFIG_DEBUG_INFO_BTF",
        Look(
            || {
                if Path::new("/sys/kernel/btf/vmlinux").exists() { Finding::Present } else { Finding::Absent }
            },
        ),
    )
    .needed_for("programs that fit every kernel"),
];

fn netns_cookie() -> Finding {
    let (socket, _other) = match std::os::unix::net::UnixDatagram::pair() {
        Ok(pair) => pair,
        Err(error) => return untried(&error),
    };
    match sys::netns_cookie(socket.as_fd()) {
        Ok(_) => Finding::Present,
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Finding::Absent,
        Err(error) => untried(&error),
    }
}

fn pidfd() -> Finding {
    match sys::pidfd_open(std::process::id()) {
        Ok(_) => Finding::Present,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Finding::Absent,
        Err(error) => untried(&error),
    }
}

/// Reads the switches: trying would move the whole process.
fn user_namespaces() -> Finding {
    if !Path::new("/proc/self/ns/user").exists() {
        return Finding::Absent;
    }
    for (file, off, remedy) in [
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ] {
        if read_to_string(file).is_ok_and(|value| value.trim() == off) {
            let why = format!("user namespaces are switched off for ordinary users: {file} is {off}");
            return Finding::Broken { why, hint: remedy.into() };
        }
    }
    Finding::Present
}

/// Opening the device loads the module; a tun link comes only when someone asks for one on it.
pub fn tun() -> Finding {
    let device = tap::DEVICE;
    match File::options().read(true).write(true).open(device) {
        Ok(_) => Finding::Present,
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENODEV | Errno::ENXIO) => Finding::Absent,
            Some(Errno::ENOENT) if Path::new("/sys/class/misc/tun").exists() => Finding::Broken {
                why: format!("{device} is missing, though the kernel has tun and tap"),
                hint: format!("mkdir -p /dev/net && mknod {device} c 10 200"),
            },
            Some(Errno::ENOENT) => Finding::Absent,
            Some(Errno::EPERM | Errno::EACCES) => Finding::Broken {
                why: format!("{device} may not be opened here: {error}"),
                hint: format!(
                    "run it as root, in a container with a runtime that allows it {device} (c 10:200)"
                ),
            },
            _ => untried(&error),
        },
    }
}

fn bpf() -> Finding {
    if Path::new("/proc/sys/kernel/unprivileged_bpf_disabled").exists() {
        Finding::Present
    } else {
        Finding::Absent
    }
}

fn bpffs() -> Finding {
    let folder = "/sys/fs/bpf";
    if statfs(folder).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Finding::Present;
    }
    if read_to_string("/proc/filesystems")
        .is_ok_and(|known| known.lines().any(|line| line.ends_with("\tbpf")))
    {
        let why = format!("the eBPF file system is not mounted at {folder}");
        return Finding::Broken { why, hint: format!("mount -t bpf bpf {folder}") };
    }
    Finding::Absent
}

fn untried(error: &std::io::Error) -> Finding {
    Finding::Untried { why: format!("it could not be tried: {error}"), hint: ROOT.into() }
}
