//! Probes that inspect the host without changing it.

use std::fs::{File, read_to_string};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::Area;
use super::probe::{Finding, Probe, ProbeRun::Host as OnHost, ProbeRun::Scratch as InScratch, ROOT};
use crate::kinds::tap;
use crate::sys;

pub const PROBES: &[Probe] = &[
    // Entering the scratch namespace is the test.
    Probe::new(
        "netns",
        "network namespaces",
        Area::Namespaces,
        "CONFIG_NET_NS",
        InScratch(|_| Finding::Present),
    )
    .needed_for("all pods: each has a network namespace")
    .required(),
    Probe::new("netns-cookie", "namespace cookies", Area::Namespaces, "CONFIG_NET_NS", OnHost(netns_cookie))
        .needed_for("distinguishing a sandbox from an earlier one with the same inode number (Linux 5.14)"),
    Probe::new("pidfd", "process descriptors", Area::Namespaces, "CONFIG_NET", OnHost(pidfd))
        .needed_for("entering the namespace of the right process (Linux 5.3)"),
    Probe::new(
        "user-namespaces",
        "user namespaces",
        Area::Namespaces,
        "CONFIG_USER_NS",
        OnHost(user_namespaces),
    )
    .needed_for("the demo and the tests without root"),
    Probe::new(
        "bridge-filter",
        "filtering of bridged packets",
        Area::Filtering,
        "CONFIG_BRIDGE_NETFILTER",
        OnHost(|| {
            let is_loaded = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists();
            if is_loaded { Finding::Present } else { Finding::Absent }
        }),
    )
    .module("br_netfilter")
    .needed_for("NetworkPolicies and Services between pods of one node"),
    Probe::new("bpf", "eBPF", Area::Ebpf, "CONFIG_BPF_SYSCALL", OnHost(bpf))
        .needed_for("the fast path for TCP between pods (with Linux 6.6)"),
    Probe::new("bpffs", "the BPF file system", Area::Ebpf, "CONFIG_BPF_SYSCALL", OnHost(bpffs))
        .needed_for("eBPF programs that survive a restart of the agent"),
    Probe::new(
        "btf",
        "eBPF type information",
        Area::Ebpf,
        "CONFIG_DEBUG_INFO_BTF",
        OnHost(|| {
            if Path::new("/sys/kernel/btf/vmlinux").exists() { Finding::Present } else { Finding::Absent }
        }),
    )
    .needed_for("eBPF programs that run on different kernels"),
];

fn netns_cookie() -> Finding {
    let (socket, _other) = match std::os::unix::net::UnixDatagram::pair() {
        Ok(pair) => pair,
        Err(error) => return not_tested(&error),
    };
    match sys::netns_cookie(socket.as_fd()) {
        Ok(_) => Finding::Present,
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Finding::Absent,
        Err(error) => not_tested(&error),
    }
}

fn pidfd() -> Finding {
    match sys::pidfd_open(std::process::id()) {
        Ok(_) => Finding::Present,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Finding::Absent,
        Err(error) => not_tested(&error),
    }
}

/// Reads the settings: a test would move the whole process.
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
            let reason = format!("user namespaces are disabled for unprivileged users: {file} is {off}");
            return Finding::Broken { reason, hint: remedy.into() };
        }
    }
    Finding::Present
}

/// Opening the device loads the module; a tun link is created only by a later ioctl.
pub fn tun() -> Finding {
    let device = tap::DEVICE;
    match File::options().read(true).write(true).open(device) {
        Ok(_) => Finding::Present,
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENODEV | Errno::ENXIO) => Finding::Absent,
            Some(Errno::ENOENT) if Path::new("/sys/class/misc/tun").exists() => Finding::Broken {
                reason: format!("{device} is missing, although the kernel supports tun and tap"),
                hint: format!("mkdir -p /dev/net && mknod {device} c 10 200"),
            },
            Some(Errno::ENOENT) => Finding::Absent,
            Some(Errno::EPERM | Errno::EACCES) => Finding::Broken {
                reason: format!("no permission to open {device}: {error}"),
                hint: format!("run it as root; in a container, allow the device {device} (c 10:200)"),
            },
            _ => not_tested(&error),
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
    let directory = "/sys/fs/bpf";
    if statfs(directory).is_ok_and(|found| found.filesystem_type() == BPF_FS_MAGIC) {
        return Finding::Present;
    }
    if read_to_string("/proc/filesystems")
        .is_ok_and(|known| known.lines().any(|line| line.ends_with("\tbpf")))
    {
        let reason = format!("the BPF file system is not mounted at {directory}");
        return Finding::Broken { reason, hint: format!("mount -t bpf bpf {directory}") };
    }
    Finding::Absent
}

fn not_tested(error: &std::io::Error) -> Finding {
    Finding::NotTested { reason: format!("it could not be tested: {error}"), hint: ROOT.into() }
}
