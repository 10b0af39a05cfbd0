//! Running other programs, with errors that name the command and show what it output.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use crate::places;

/// How many lines of a failed command's output are worth showing.
const TAIL_LINES: usize = 25;

/// The variable that makes cargo build incrementally, or not.
const INCREMENTAL: &str = "CARGO_INCREMENTAL";

/// cargo, without what a cargo that started this program says about its package: build scripts that read that (ring's does) would
/// run again, and everything above them be built anew, whenever a person and this program take turns.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let about = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"];
    for (name, _) in std::env::vars_os() {
        if about.iter().any(|about| name.to_string_lossy().starts_with(about)) {
            cargo.env_remove(name);
        }
    }
    if std::env::var_os(INCREMENTAL).is_none() && !is_built_incrementally(&places::target()) {
        cargo.env(INCREMENTAL, "0");
    }
    cargo
}

/// Whether someone built Knit's crates incrementally. A first build takes longer that way, and cargo builds a crate again when
/// this changes, so all commands do what was done before.
fn is_built_incrementally(target: &Path) -> bool {
    let folders =
        |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    // `cargo xtask` itself is always built the way cargo is configured.
    let is_of_knit = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("knit") && !name.starts_with("knit_dev-")
    };
    let mut profiles =
        std::iter::once(target.to_owned()).chain(folders(target)).map(|folder| folder.join("debug"));
    profiles.any(|profile| folders(&profile.join("incremental")).any(|path| is_of_knit(&path)))
}

/// The command line as a person would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Runs the command with this terminal and fails unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs the command with this terminal and returns how it ended.
pub fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| cannot_start(command))
}

/// Runs the command quietly and returns what it wrote to standard output.
/// A failure shows the end of what it wrote to either stream.
pub fn output(command: &mut Command) -> Result<String> {
    let done = command.stdin(Stdio::null()).output().with_context(|| cannot_start(command))?;
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        let output = format!("{stdout}{}", String::from_utf8_lossy(&done.stderr));
        bail!("`{}` failed: {}\n{}", line(command), done.status, tail(&output));
    }
    Ok(stdout)
}

/// The last lines of a long text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Whether this process may do everything on this machine.
pub fn is_root() -> bool {
    // The owner of a process's own folder in /proc is its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Fails in words when this process is not root.
pub fn require_root(what: &str) -> Result<()> {
    if !is_root() {
        bail!(
            "{what} needs root: it makes network namespaces, mounts and cgroups. Run it as root, or with sudo -E"
        );
    }
    Ok(())
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start `{}` (is it installed? `cargo xtask deps` lists what is missing)", line(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_build_is_not_incremental_and_later_ones_are_like_it() {
        let target = std::env::temp_dir().join(format!("knit-incremental-{}", std::process::id()));
        let folder = |name: &str| std::fs::create_dir_all(target.join(name)).unwrap();
        assert!(!is_built_incrementally(&target), "there is no target folder");
        folder("x86_64-unknown-linux-gnu/debug/incremental/knit_dev-1a2b");
        folder("x86_64-unknown-linux-gnu/debug/incremental/xtask-1a2b");
        assert!(!is_built_incrementally(&target), "the front end says nothing about the rest");
        folder("x86_64-unknown-linux-gnu/debug/incremental/knit_engine-1a2b");
        assert!(is_built_incrementally(&target));
        std::fs::remove_dir_all(&target).unwrap();
    }
}
