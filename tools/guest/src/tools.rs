//! Programs of the host that are copied into the guest with their libraries.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use super::elf::{self, Linkage};
use super::root::merged;
use knit_dev::process;

/// Tools that are always copied, because busybox's applets are not enough.
pub const ALWAYS: &[&str] =
    &["dash", "ip", "tc", "bridge", "ss", "nft", "ping", "nsenter", "unshare", "mount", "umount", "setpriv"];

/// Debian's directories of programs. Some are only in root's PATH.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The absolute path of a Debian program; the bare name if it is not installed.
pub fn locate(name: &str) -> PathBuf {
    let paths = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    paths.into_iter().find(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// Adds the standard tools at their own paths, and others in `/usr/local/bin`.
pub fn add(archive: &mut Archive, others: &[PathBuf]) -> Result<()> {
    let mut dynamic = Vec::new();
    let always = ALWAYS.iter().map(|name| {
        let path = locate(name);
        (path.clone(), path)
    });
    let others = others.iter().map(|path| {
        let name = path.file_name().unwrap_or_default();
        (path.clone(), Path::new("/usr/local/bin").join(name))
    });
    for (host, guest) in always.chain(others) {
        let bytes = std::fs::read(&host).with_context(|| {
            format!("cannot read the tool {} (`cargo xtask deps` lists missing packages)", host.display())
        })?;
        let linkage =
            elf::linkage(&bytes).with_context(|| format!("{} cannot run in the guest", host.display()))?;
        archive.bytes(merged(&guest)?, 0o755, bytes);
        if linkage != Linkage::Static {
            dynamic.push(host);
        }
    }
    let output = process::output(Command::new("ldd").args(dynamic))?;
    for library in libraries(&output)? {
        archive.host_file(merged(&library)?, 0o755, &library);
    }
    Ok(())
}

/// The libraries in the output of `ldd`.
fn libraries(output: &str) -> Result<BTreeSet<PathBuf>> {
    if let Some(line) = output.lines().find(|line| line.contains("not found")) {
        bail!("a shared library is missing on this machine: {}", line.trim());
    }
    // `name => /path (address)`, `/loader (address)`; the line of each tool ends with a colon.
    let lines = output.lines().filter(|line| !line.ends_with(':'));
    let paths = lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_parsed_from_ldd() {
        let output = "/usr/sbin/ip:\n\tlinux-vdso.so.1 (0x00007fff)\n\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x7f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let found = libraries(output).unwrap();
        let expected =
            ["/lib/x86_64-linux-gnu/libmnl.so.0", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(found, BTreeSet::from(expected));
        libraries("\tlibmnl.so.0 => not found\n").unwrap_err();
    }
}
