//! The root file system of test images: ordinary Debian tools with their libraries, and agnhost.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use knit_dev::process;

const BUSYBOX: &str = "/bin/busybox";
/// Programs that the upstream tests run in their pods, by name in the image and path on this machine. busybox-static provides
/// the rest. Its shell would run its own `nc`, and its wget crashes in the image, so these are the real ones.
const PROGRAMS: [(&str, &str); 9] = [
    ("sh", "/bin/dash"),
    ("curl", "/usr/bin/curl"),
    ("wget", "/usr/bin/wget"),
    ("nc", "/bin/nc.openbsd"),
    ("dig", "/usr/bin/dig"),
    ("nslookup", "/usr/bin/nslookup"),
    ("getent", "/usr/bin/getent"),
    ("ping", "/bin/ping"),
    ("ip", "/bin/ip"),
];
const FILES: [(&str, &str); 4] = [
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"),
    ("etc/group", "root:x:0:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
];
/// The tests of ClusterNetworkPolicies start their servers with bash, among them some that serve only SCTP. Without SCTP in the
/// kernel these would end at once, and their pods would never be ready: they wait instead.
const BASH: &str = r#"#!/bin/sh
if [ "$2" = "/agnhost porter" ] && ! /bin/busybox grep -q "^SCTP" /proc/net/protocols; then
    trap 'kill $!; exit 0' TERM
    while :; do /bin/busybox sleep 86400 & wait $!; done
fi
exec /bin/sh "$@"
"#;

/// Fills the directory with the tools of the test images.
pub fn create_tools(root: &Path, agnhost: &Path) -> Result<()> {
    create_folders(root)?;
    create_busybox(root)?;
    for (name, program) in PROGRAMS {
        let target = root.join("bin").join(name);
        // busybox has a link of that name.
        let _ = fs::remove_file(&target);
        copy(Path::new(program), &target)?;
    }
    for library in libraries()? {
        copy(&library, &root.join(library.strip_prefix("/").unwrap_or(&library)))?;
    }
    copy(agnhost, &root.join("agnhost"))?;
    for (name, contents) in FILES {
        write(&root.join(name), contents)?;
    }
    create_certificate(root)
}

/// Fills the directory with the contents of a pause image: a program that waits.
pub fn create_pause(root: &Path) -> Result<()> {
    copy(Path::new(BUSYBOX), &root.join("bin/busybox"))
}

/// Fills the directory with a replacement of bash.
pub fn create_bash(root: &Path) -> Result<()> {
    let target = root.join("bin/bash");
    write(&target, BASH)?;
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).context("cannot make bash executable")
}

/// Fills the directory with CoreDNS.
pub fn create_coredns(root: &Path, coredns: &Path) -> Result<()> {
    copy(coredns, &root.join("coredns"))?;
    write(&root.join("etc/passwd"), FILES[0].1)
}

fn create_folders(root: &Path) -> Result<()> {
    for name in ["bin", "etc", "root", "home", "var/run", "var/log", "proc", "sys", "dev", "run", "mnt"] {
        fs::create_dir_all(root.join(name))?;
    }
    for name in ["tmp", "var/tmp"] {
        fs::create_dir_all(root.join(name))?;
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o1777))?;
    }
    for name in ["sbin", "usr/bin", "usr/sbin", "usr/local/bin"] {
        let target = root.join(name);
        fs::create_dir_all(target.parent().unwrap_or(root))?;
        symlink("/bin", target)?;
    }
    Ok(())
}

fn create_busybox(root: &Path) -> Result<()> {
    copy(Path::new(BUSYBOX), &root.join("bin/busybox"))?;
    for applet in process::output(Command::new(BUSYBOX).arg("--list"))?.lines() {
        if applet != "busybox" {
            symlink("/bin/busybox", root.join("bin").join(applet))?;
        }
    }
    Ok(())
}

/// All libraries that the programs are linked with, and the loader.
fn libraries() -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for (_, program) in PROGRAMS {
        let listed = process::output(Command::new("ldd").arg(program))?;
        found.extend(parse_ldd(&listed));
    }
    Ok(found)
}

/// Lines are `name => /path (address)` or, for the loader, `/path (address)`.
fn parse_ldd(listed: &str) -> Vec<PathBuf> {
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}

/// The certificate for agnhost's HTTPS server, at the paths where it looks for one.
fn create_certificate(root: &Path) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-batch", "-nodes", "-days", "3650", "-newkey", "ec", "-pkeyopt"]);
    openssl.args(["ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"]);
    openssl.arg("-keyout").arg(root.join("localhost.key")).arg("-out").arg(root.join("localhost.crt"));
    process::output(&mut openssl)?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, to))
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot copy {} into the test image", from.display()))
}

fn write(path: &Path, contents: &str) -> Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))
        .and_then(|()| fs::write(path, contents))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bash_runs_other_commands_and_waits_instead_of_a_server_that_needs_sctp() {
        let folder = tempfile::tempdir().unwrap();
        create_bash(folder.path()).unwrap();
        let bash = || Command::new(folder.path().join("bin/bash"));
        assert_eq!(process::output(bash().args(["-c", "echo served"])).unwrap(), "served\n");
        // Without `/agnhost` on this machine the server itself would end at once.
        let mut server = bash().args(["-c", "/agnhost porter"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let is_waiting = server.try_wait().unwrap().is_none();
        let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(server.wait().unwrap().success() && is_waiting);
    }

    #[test]
    fn libraries_and_the_loader_are_read_from_ldd() {
        let listed =
            "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(parse_ldd(listed), [PathBuf::from("/lib/x/libc.so.6"), PathBuf::from("/lib64/ld.so.2")]);
    }
}
