//! `cargo xtask fresh`: the README's commands in a fresh Debian root, so that a package that only a used machine has
//! cannot hide a missing install step.
//!
//! The root is a copy of a cached `debootstrap` with what "a bare Debian 12 with cargo" means: a linker, git and
//! certificates. The toolchains, the checkout and, unless `--empty` is given, the caches are bind-mounted into it in a mount
//! namespace of its own, so only the packages are fresh and nothing remains mounted afterwards.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use knit_dev::packages::{self, Purpose};
use knit_dev::progress::{Step, seconds};
use knit_dev::{places, process};
use sha2::{Digest, Sha256};

/// The release that the README names.
const SUITE: &str = "bookworm";
/// What cargo needs to link, and a clone needs to exist.
const INCLUDED: &str = "ca-certificates,gcc,libc6-dev,git";

/// What to run in the fresh root.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Bring no cache along: crates are downloaded and everything is built from nothing
    #[arg(long)]
    empty: bool,
    /// Arguments of one `cargo xtask` call [default: `demo`, then `test unit netns`]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Runs the commands; fails with the first one that fails.
pub fn command(options: &Options) -> Result<()> {
    let calls = match options.arguments.as_slice() {
        [] => vec![vec!["demo".into()], ["test", "unit", "netns"].map(OsString::from).to_vec()],
        arguments => vec![arguments.to_vec()],
    };
    run(&calls, options.empty)
}

/// Runs these `cargo xtask` calls, one after the other, in one fresh root.
pub fn run(calls: &[Vec<OsString>], empty: bool) -> Result<()> {
    process::require_root("a fresh root")?;
    packages::ensure(&[Purpose::Fresh])?;
    let root = Root::copy_of(&base()?)?;
    for arguments in calls {
        let shown: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
        let shown = shown.join(" ");
        eprintln!("== fresh root: cargo xtask {shown}");
        let start = Instant::now();
        let status = process::status(&mut root.enter(arguments, empty)?)?;
        ensure!(status.success(), "in a fresh root, `cargo xtask {shown}` failed: {status}");
        eprintln!("== fresh root: cargo xtask {shown} took {}", seconds(start.elapsed()));
    }
    Ok(())
}

/// The unpacked base system in the cache, named after what is in it.
fn base() -> Result<PathBuf> {
    let digest = Sha256::digest(format!("{SUITE} {INCLUDED}"));
    let name: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let folder = places::cache()?.join(format!("debian-root-{name}"));
    if folder.exists() {
        return Ok(folder);
    }
    let step = Step::start(format!("unpack a Debian {SUITE} root (once, about a minute)"));
    let unfinished = folder.with_extension(format!("new-{}", std::process::id()));
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", &format!("--include={INCLUDED}"), SUITE]);
    let made = process::output(debootstrap.arg(&unfinished).arg(archive()?)).and_then(|_| {
        fs::rename(&unfinished, &folder).with_context(|| format!("cannot create {}", folder.display()))
    });
    if made.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_dir_all(&unfinished);
    }
    made?;
    step.done();
    Ok(folder)
}

/// The Debian archive that this machine's apt uses.
fn archive() -> Result<String> {
    let format = "$(SITE) $(RELEASE) $(COMPONENT)";
    let mut targets = Command::new("apt-get");
    let listed = process::output(targets.args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    let suffix = format!(" {SUITE} main");
    let site = listed.lines().find_map(|line| line.strip_suffix(&suffix));
    Ok(site
        .with_context(|| format!("apt has no archive with {SUITE} main: see /etc/apt/sources.list.d"))?
        .to_owned())
}

/// A copy of the base system that is removed when it is dropped.
struct Root {
    folder: PathBuf,
}

impl Root {
    fn copy_of(base: &Path) -> Result<Self> {
        let folder = places::cache()?.join(format!("fresh-root-{}", std::process::id()));
        let root = Self { folder };
        process::output(Command::new("cp").arg("-a").arg(base).arg(&root.folder))?;
        for file in ["/etc/resolv.conf", "/etc/hosts"] {
            let copy = root.inside(Path::new(file));
            fs::copy(file, &copy).with_context(|| format!("cannot copy {file} to {}", copy.display()))?;
        }
        // Certificates that this machine's admin added: the registries may be behind a proxy with its own.
        for path in ["/etc/ssl/certs/ca-certificates.crt", "/usr/local/share/ca-certificates"] {
            if Path::new(path).exists() {
                let target = root.inside(Path::new(path));
                process::output(Command::new("cp").args(["-aT", path]).arg(target))?;
            }
        }
        // A proxy of this machine's apt has to be used by the other one, too.
        let proxies =
            process::output(Command::new("apt-config").args(["dump", "Acquire::http", "Acquire::https"]))?;
        let settings = root.inside(Path::new("/etc/apt/apt.conf.d/99host"));
        fs::write(&settings, proxies).with_context(|| format!("cannot write {}", settings.display()))?;
        Ok(root)
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.folder.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A command that runs `cargo xtask` with these arguments in the root, in its own mount and process namespaces.
    fn enter(&self, arguments: &[OsString], empty: bool) -> Result<Command> {
        let mut mounts = String::from("set -eu\nmount --make-rprivate /\n");
        let root = quoted(&self.folder)?;
        mounts += &format!("mount --bind {root} {root}\nmount -t proc proc {root}/proc\n");
        mounts += &format!("mount --rbind /sys {root}/sys\nmount --rbind /dev {root}/dev\n");
        mounts += &format!("mount -t tmpfs tmpfs {root}/run\nmount -t tmpfs tmpfs {root}/tmp\n");
        for path in brought_along(empty)? {
            let (from, to) = (quoted(&path)?, quoted(&self.inside(&path))?);
            // Created here, because the folder may be below one of the file systems that were just mounted.
            mounts += &format!("mkdir -p {to}\nmount --bind {from} {to}\n");
        }
        // Not chroot: in a changed root the kernel creates no user namespaces, and entering a mount namespace leaves it.
        let checkout = quoted(places::workspace())?;
        mounts += &format!(
            "mkdir {root}/mnt/host\ncd {root}\npivot_root . mnt/host\ncd /\numount -l /mnt/host\nrmdir /mnt/host\n\
             cd {checkout}\nexec cargo xtask \"$@\"\n"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--", "/bin/sh", "-c", &mounts, "sh"]);
        command.args(arguments).env_clear().envs(environment());
        if empty {
            command.env("CARGO_TARGET_DIR", "/srv/target").env("XDG_CACHE_HOME", "/srv/cache");
        }
        Ok(command)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("cannot remove {}: {error}", self.folder.display());
        }
    }
}

/// Folders of this machine that are at the same path in the fresh root.
fn brought_along(empty: bool) -> Result<Vec<PathBuf>> {
    let cargo = home_of("CARGO_HOME", ".cargo")?;
    let mut folders = vec![places::workspace().to_owned(), home_of("RUSTUP_HOME", ".rustup")?];
    let go = |name: &str| process::output(Command::new("go").args(["env", name]));
    folders.extend(go("GOROOT").ok().map(|folder| PathBuf::from(folder.trim())));
    if empty {
        folders.push(cargo.join("bin"));
        return Ok(folders);
    }
    folders.extend([cargo, places::cache()?]);
    folders.extend(
        ["GOMODCACHE", "GOCACHE"].iter().filter_map(|name| Some(PathBuf::from(go(name).ok()?.trim()))),
    );
    folders.extend(std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from));
    folders.retain(|folder| folder.exists());
    Ok(folders)
}

fn home_of(variable: &str, default: &str) -> Result<PathBuf> {
    match std::env::var_os(variable) {
        Some(folder) if !folder.is_empty() => Ok(PathBuf::from(folder)),
        _ => Ok(PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(default)),
    }
}

/// The part of the environment that says how to build and where from; the rest is not the fresh machine's.
fn environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        let is_cargo = name.starts_with("CARGO_")
            && !["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
        is_cargo
            || ["RUSTUP_", "GO", "KNIT_", "PIP_", "SSL_CERT_"].iter().any(|prefix| name.starts_with(prefix))
            || name.to_ascii_lowercase().ends_with("_proxy")
            || ["PATH", "HOME", "TERM", "CI", "XDG_CACHE_HOME"].contains(&&*name)
    })
}

/// A path as a word of the shell script.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))?;
    if text.contains(['\'', '\n']) {
        bail!("{text}: a path with a quote or a line break cannot be mounted");
    }
    Ok(format!("'{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(quoted(Path::new("/a b/$c")).unwrap(), "'/a b/$c'");
        assert!(quoted(Path::new("/it's")).is_err());
    }

    #[test]
    fn an_empty_root_gets_the_toolchain_and_no_cache() {
        let folders = brought_along(true).unwrap();
        assert!(folders.iter().any(|folder| folder.ends_with(".cargo/bin")), "{folders:?}");
        assert!(!folders.contains(&places::cache().unwrap()), "{folders:?}");
        assert!(folders.contains(&places::workspace().to_owned()), "{folders:?}");
    }
}
