//! The guest's root file system: busybox, some full-featured tools with their libraries, modules, and the program.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Guest;
use super::cpio::Archive;
use super::kernel::Kernel;
use super::{elf, modules, tools};
use knit_dev::process;

/// The guest's search path for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The init process.
const INIT: &str = include_str!("init.sh");

/// Small configuration files: users, hosts, protocols, services.
const ETC: &[(&str, &str)] = &[
    ("passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
    ("group", "root:x:0:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost guest\n::1 localhost\n"),
    ("nsswitch.conf", "hosts: files\n"),
    (
        "protocols",
        "ip 0 IP\nicmp 1 ICMP\nigmp 2 IGMP\nipencap 4 IP-ENCAP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\ngre 47 GRE\n\
         esp 50 IPSEC-ESP\nah 51 IPSEC-AH\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\nudplite 136 UDPLite\n",
    ),
    ("services", "ssh 22/tcp\ndomain 53/tcp\ndomain 53/udp\nhttp 80/tcp\nhttps 443/tcp\n"),
];

/// What the guest does after boot.
pub enum BootTask<'a> {
    /// Run the guest's program; `end` follows the last byte of each of its streams.
    Program { end: &'a str },
    /// Run an interactive shell on the console.
    Shell,
}

/// Builds the root file system.
pub fn build(guest: &Guest, task: &BootTask, kernel: &Kernel) -> Result<Archive> {
    let mut archive = Archive::default();
    add_layout(&mut archive);
    add_busybox(&mut archive)?;
    tools::add(&mut archive, &guest.tools)?;
    archive.symlink("usr/bin/sh", "dash");
    add_modules(&mut archive, guest, kernel)?;
    for (host, path) in &guest.files {
        archive.host_file(merged(path)?, mode(host)?, host);
    }
    archive.bytes("init", 0o755, INIT);
    match task {
        BootTask::Program { end } => {
            let program = add_program(&mut archive, guest)?;
            archive.bytes("knit/command", 0o644, command(guest, &program)?);
            archive.bytes("knit/end", 0o644, *end);
        }
        BootTask::Shell => archive.bytes("knit/shell", 0o644, shell(guest)?),
    }
    Ok(archive)
}

fn add_layout(archive: &mut Archive) {
    for folder in ["dev", "proc", "root", "run", "sys", "tmp", "usr/lib", "usr/lib64", "usr/sbin", "var/lib"]
    {
        archive.directory(folder);
    }
    for folder in ["bin", "sbin", "lib", "lib64"] {
        archive.symlink(folder, format!("usr/{folder}"));
    }
    archive.symlink("var/run", "/run");
    archive.device("dev/console", 5, 1);
    archive.device("dev/null", 1, 3);
    for (name, text) in ETC {
        archive.bytes(Path::new("etc").join(name), 0o644, *text);
    }
}

fn add_busybox(archive: &mut Archive) -> Result<()> {
    let busybox = tools::locate("busybox");
    elf::require_static(&busybox).context("the guest needs Debian's busybox-static, not busybox")?;
    let applets = process::output(Command::new(&busybox).arg("--list-full"))?;
    for applet in applets.lines() {
        let path = merged(&Path::new("/").join(applet))?;
        let real = tools::ALWAYS.iter().any(|tool| path.ends_with(tool));
        if path.starts_with("usr") && !real {
            archive.symlink(path, "/usr/bin/busybox");
        }
    }
    // The kernel runs modprobe by this path.
    archive.symlink("usr/sbin/modprobe", "/usr/bin/busybox");
    archive.host_file("usr/bin/busybox", 0o755, busybox);
    Ok(())
}

fn add_modules(archive: &mut Archive, guest: &Guest, kernel: &Kernel) -> Result<()> {
    let index = kernel.index()?;
    let modules = modules::AT_BOOT.iter().copied().chain(guest.modules.iter().map(String::as_str));
    let at_boot = index.load_order(modules)?;
    let included: BTreeSet<String> = index.included()?.into_iter().chain(at_boot.iter().cloned()).collect();

    let host = kernel.modules();
    let folder = Path::new("usr/lib/modules").join(&kernel.release);
    let path = |module: &String| index.file(module).expect("a module in load order has a file");
    for module in &included {
        archive.host_file(folder.join(path(module)), 0o644, host.join(path(module)));
    }
    let list: String =
        at_boot.iter().map(|module| format!("/{}\n", folder.join(path(module)).display())).collect();
    archive.bytes("knit/modules", 0o644, list);
    for (name, module_of) in
        [("modules.dep", dep_module as fn(&str) -> Option<&str>), ("modules.alias", alias_module)]
    {
        let text = std::fs::read_to_string(host.join(name)).with_context(|| format!("cannot read {name}"))?;
        let kept = text.lines().filter(|line| {
            module_of(line).is_some_and(|module| included.contains(&module.replace('-', "_")))
        });
        archive.bytes(folder.join(name), 0o644, kept.map(|line| format!("{line}\n")).collect::<String>());
    }
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        archive.host_file(folder.join(name), 0o644, host.join(name));
    }
    Ok(())
}

/// The module of a line of `modules.dep`.
fn dep_module(line: &str) -> Option<&str> {
    line.split(".ko").next()?.rsplit('/').next()
}

/// The module of a line of `modules.alias`.
fn alias_module(line: &str) -> Option<&str> {
    line.strip_prefix("alias ")?.split_whitespace().last()
}

fn add_program(archive: &mut Archive, guest: &Guest) -> Result<PathBuf> {
    elf::require_static(&guest.program)?;
    let name = guest.program.file_name().context("the program's path has no file name")?;
    let path = Path::new("/knit/program").join(name);
    archive.host_file(&path, 0o755, &guest.program);
    Ok(path)
}

/// The shell script that executes the program.
fn command(guest: &Guest, program: &Path) -> Result<Vec<u8>> {
    let mut text = environment(guest)?;
    text.extend(b" ");
    quote(&mut text, program.as_os_str());
    for argument in &guest.arguments {
        text.extend(b" ");
        quote(&mut text, argument);
    }
    text.extend(b"\n");
    Ok(text)
}

/// The shell script that executes an interactive shell. busybox's shell has a history but prefers its own applets, so the
/// full-featured tools need aliases with their paths.
fn shell(guest: &Guest) -> Result<Vec<u8>> {
    let aliases: String = tools::ALWAYS
        .iter()
        .map(|tool| format!("alias {tool}={}\n", tools::locate(tool).display()))
        .collect();
    let mut text = format!("cat >/run/aliases <<'end'\n{aliases}end\n").into_bytes();
    text.extend(environment(guest)?);
    text.extend(b" ENV=/run/aliases /usr/bin/busybox sh -i\n");
    Ok(text)
}

/// `exec env` with exactly the program's environment.
fn environment(guest: &Guest) -> Result<Vec<u8>> {
    let mut text = format!("cd /\nexec env -i PATH={PATH} HOME=/root TERM=linux").into_bytes();
    for (name, value) in &guest.environment {
        if name.is_empty() || name.contains(['=', '\0']) {
            bail!("environment variable {name:?} has no usable name");
        }
        let mut pair = OsString::from(format!("{name}="));
        pair.push(value);
        text.extend(b" ");
        quote(&mut text, &pair);
    }
    Ok(text)
}

/// Appends a word, quoted for the shell.
fn quote(text: &mut Vec<u8>, word: &OsStr) {
    text.push(b'\'');
    for byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
}

/// The path within the archive, where `/bin` and similar directories are links into `/usr`.
pub fn merged(path: &Path) -> Result<PathBuf> {
    let Ok(relative) = path.strip_prefix("/") else {
        bail!("{} is not an absolute path", path.display());
    };
    let linked = ["bin", "sbin", "lib", "lib64"].iter().any(|folder| relative.starts_with(folder));
    Ok(if linked { Path::new("usr").join(relative) } else { relative.to_owned() })
}

fn mode(host: &Path) -> Result<u32> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(host).with_context(|| format!("cannot read {}", host.display()))?;
    if !metadata.is_file() {
        bail!("{} is not a file", host.display());
    }
    Ok(metadata.permissions().mode() & 0o777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted() {
        let guest = Guest {
            arguments: vec!["it's".into(), "a b".into(), "".into()],
            environment: vec![("WHO".into(), "$HOME".into())],
            ..Guest::new("/bin/busybox")
        };
        let text = String::from_utf8(command(&guest, Path::new("/knit/program/busybox")).unwrap()).unwrap();
        assert!(text.ends_with(" 'WHO=$HOME' '/knit/program/busybox' 'it'\\''s' 'a b' ''\n"), "{text}");
    }

    #[test]
    fn an_environment_variable_without_a_name_is_rejected() {
        let guest = Guest { environment: vec![(String::new(), "x".into())], ..Guest::new("/bin/busybox") };
        command(&guest, Path::new("/x")).unwrap_err();
    }

    #[test]
    fn paths_follow_the_links_of_the_root() {
        assert_eq!(merged(Path::new("/bin/ip")).unwrap(), Path::new("usr/bin/ip"));
        assert_eq!(merged(Path::new("/data/x")).unwrap(), Path::new("data/x"));
        merged(Path::new("data/x")).unwrap_err();
    }
}
