//! `cargo xtask ci`: everything that must hold before a change lands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use knit_dev::packages::{self, Purpose};
use knit_dev::progress::Step;
use knit_dev::{places, process};
use tempfile::NamedTempFile;

use crate::test::{self, Family, Total};
use crate::{checks, fresh};

/// The version of cargo-deny that checks licences, bans and sources.
const CARGO_DENY: &str = "0.20.2";

/// Runs the checks of the source, then tests. The demo and the families that most people run first, unit and netns, run in
/// a fresh root; with `all` the other families follow on this machine.
pub fn command(all: bool) -> Result<()> {
    packages::ensure(&[Purpose::Build])?;
    check("formatting", || {
        run(cargo(&["fmt", "--all", "--check"]))?;
        run(rustfmt_kinds()?)
    })?;
    check("vocabulary", checks::vocabulary)?;
    check("dependencies between crates", checks::dependencies)?;
    check("programs of packages", checks::programs)?;
    check("dialects without the kernel layer", checks::layers)?;
    check("clippy", || {
        run(cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))
    })?;
    check("clippy without cluster support and fast path", || {
        run(cargo(&[
            "clippy",
            "--package",
            "knit",
            "--no-default-features",
            "--locked",
            "--",
            "-D",
            "warnings",
        ]))
    })?;
    let deny = cargo_deny()?;
    check("licences, bans and sources", || {
        let mut deny = Command::new(deny);
        deny.args(["--log-level", "error", "check", "bans", "licenses", "sources"]);
        run(deny)
    })?;
    check("generated files", || {
        run(cargo(&["run", "--locked", "--package", "knit-generate", "--", "--check"]))
    })?;

    let record = NamedTempFile::new_in(places::cache()?).context("cannot create a file for the result")?;
    let mut tests: Vec<OsString> =
        ["test", "unit", "netns", "--retry", "--record"].map(OsString::from).to_vec();
    tests.push(record.path().into());
    let ran = fresh::run(&[vec!["demo".into()], tests], false);
    let total = Total::recorded(record.path(), ran)?;
    let families = if all { vec![Family::Vm, Family::Cluster] } else { Vec::new() };
    test::run_after(total, &families, &test::Request { retry: true, ..test::Request::default() })
}

fn check(what: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    let step = Step::start(what);
    check()?;
    step.done();
    Ok(())
}

/// With its output on the terminal: cargo shows how far it is.
fn run(mut command: Command) -> Result<()> {
    process::run(command.current_dir(places::workspace()))
}

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = process::cargo();
    cargo.args(arguments);
    cargo
}

/// The folders of link kinds. `knit_model::link_kinds!` declares their modules, so `cargo fmt` does not find the files.
const KINDS: [&str; 3] =
    ["crates/knit-model/src/link", "crates/knit-kernel/src/kinds", "crates/knit-crds/src/kinds"];

/// Checks the format of the files of link kinds.
fn rustfmt_kinds() -> Result<Command> {
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.arg("--check");
    for folder in KINDS {
        let full = places::workspace().join(folder);
        for entry in full.read_dir().with_context(|| format!("cannot read {}", full.display()))? {
            let path = entry.with_context(|| format!("cannot read {}", full.display()))?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                rustfmt.arg(path);
            }
        }
    }
    Ok(rustfmt)
}

/// cargo-deny from the cache, built there once.
fn cargo_deny() -> Result<PathBuf> {
    let root = places::cache()?.join(format!("cargo-deny-{CARGO_DENY}"));
    let program = root.join("bin/cargo-deny");
    if !program.exists() {
        let step = Step::start(format!("build cargo-deny {CARGO_DENY} (once, some minutes)"));
        let mut install = process::cargo();
        install.args(["install", "cargo-deny", "--locked", "--version", CARGO_DENY, "--root"]).arg(&root);
        process::output(&mut install)?;
        step.done();
    }
    Ok(program)
}
