//! Confined programs have what the agent's container has, and nothing else.

use std::fs;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use knit_testbed::{Confinement, Deployed, Namespace, Testbed};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};
use nix::unistd::chroot;
use tempfile::TempDir;

/// NET_BIND_SERVICE, NET_ADMIN, NET_RAW, SYS_PTRACE and SYS_ADMIN of capabilities(7).
const CAPABILITIES: &str = "0000000000283400";

/// A shell script, confined: its output, with standard error.
fn output(host: &Namespace, confinement: &Confinement, script: &str) -> String {
    let mut command = Command::new("/usr/bin/sh");
    command.args(["-c", &format!("{{ {script}; }} 2>&1")]).stdin(Stdio::null()).stdout(Stdio::piped());
    let child = confinement.spawn(host, &mut command).expect("the shell starts");
    let output = child.wait_with_output().expect("the shell ends");
    String::from_utf8(output.stdout).expect("its output is text")
}

#[test]
fn a_confined_program_has_the_privileges_of_the_deployed_agent() {
    let testbed = Testbed::new("confined-privileges");
    let (host, directory) = (testbed.host(), TempDir::new().expect("a directory"));
    let confinement = Confinement::new(Deployed::Primary, directory.path()).with_programs();
    let status = output(&host, &confinement, "cat /proc/self/status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
    };
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(field(set), CAPABILITIES, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1".to_owned(), "2".to_owned()));
    let own = host.run(|| fs::read_link("/proc/thread-self/ns/net")).expect("the link of a namespace");
    let inside = output(&host, &confinement, "readlink /proc/self/ns/net");
    assert_eq!(inside.trim_end(), own.display().to_string(), "it runs in the network namespace");
}

#[test]
fn a_confined_program_writes_only_what_the_manifest_mounts() {
    let testbed = Testbed::new("confined-root");
    let (host, directory) = (testbed.host(), TempDir::new().expect("a directory"));
    let confinement = Confinement::new(Deployed::Primary, directory.path()).with_programs();
    let write = |path: &str| output(&host, &confinement, &format!("echo 1 > {path}"));
    for refused in ["/x", "/etc/x", "/usr/x", "/dev/net/x", "/proc/sys/net/ipv4/ip_forward", "/etc/knit/x"] {
        assert!(write(refused).contains("Read-only file system"), "{refused}: {}", write(refused));
    }
    assert_eq!(host.sysctl("net.ipv4.ip_forward").expect("a sysctl"), "0");
    assert_eq!(write("/host/proc/sys/net/ipv4/ip_forward"), "");
    assert_eq!(host.sysctl("net.ipv4.ip_forward").expect("a sysctl"), "1");
    for (written, on_the_node) in [
        (directory.path().join("x"), "x"),
        ("/var/lib/knit/x".into(), "node/var/lib/knit/x"),
        ("/opt/cni/bin/x".into(), "node/opt/cni/bin/x"),
    ] {
        assert_eq!(write(&written.display().to_string()), "");
        let text = fs::read_to_string(directory.path().join(on_the_node)).expect("it is on the node");
        assert_eq!(text, "1\n");
    }
    // Nothing of the machine is visible that was not added.
    let listed = output(&host, &confinement, "ls /root /home /boot");
    assert_eq!(listed.matches("No such file or directory").count(), 3, "{listed}");
    let links = output(&host, &confinement, "ls /sys/class/net");
    assert_eq!(links, "lo\n", "the links of its network namespace");
    // Additions of a test.
    fs::write(directory.path().join("id"), "7\n").expect("it is written");
    let confinement = confinement
        .bind(directory.path().join("id"), "/proc/sys/kernel/random/boot_id")
        .bind_nodev("/dev", "/dev/net");
    assert_eq!(output(&host, &confinement, "cat /proc/sys/kernel/random/boot_id"), "7\n");
    assert_eq!(output(&host, &confinement, "cat /dev/null"), "");
    let denied = output(&host, &confinement, "cat /dev/net/null");
    assert!(denied.contains("Permission denied"), "{denied}");
}

#[test]
fn restricted_threads_lack_other_capabilities_and_system_calls() {
    let testbed = Testbed::new("confined-thread");
    let (host, pod) = (testbed.host(), testbed.namespace("pod"));
    let raw = || socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), None).map(drop);
    let entered = pod.descriptor();
    host.run_as_agent(|| {
        // Without CAP_SYS_CHROOT.
        assert_eq!(chroot("/"), Err(Errno::EPERM));
        // With CAP_NET_RAW, CAP_NET_BIND_SERVICE and CAP_SYS_ADMIN. EPROTONOSUPPORT comes after the check of the capability.
        assert_eq!(raw(), Err(Errno::EPROTONOSUPPORT));
        let low = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).expect("a socket");
        bind(low.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 80)).expect("a port below 1024");
        setns(&entered, CloneFlags::CLONE_NEWNET).expect("it enters the namespace of a pod");
        // The filter of system calls.
        let vsock = socket(AddressFamily::Vsock, SockType::Stream, SockFlag::empty(), None).map(drop);
        assert_eq!(vsock, Err(Errno::EPERM));
        let inherited = std::thread::scope(|scope| {
            let thread = scope.spawn(|| fs::read_to_string("/proc/thread-self/status").expect("its status"));
            thread.join().expect("the thread ends")
        });
        assert!(inherited.contains(&format!("CapEff:\t{CAPABILITIES}")), "{inherited}");
    });
    let own = fs::read_to_string("/proc/thread-self/status").expect("its status");
    assert!(
        own.contains("NoNewPrivs:\t0") && !own.contains(CAPABILITIES),
        "other threads are not restricted: {own}"
    );
}
