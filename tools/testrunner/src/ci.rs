//! `cargo xtask ci`: everything that has to hold before a change lands.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::test;
use knit_dev::packages::{self, Purpose};
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;

/// The version of cargo-deny that checks licences, bans and sources.
const CARGO_DENY: &str = "0.20.2";

/// Runs the checks, then every test.
pub fn command() -> Result<()> {
    packages::ensure(&[Purpose::Build])?;
    check("formatting", cargo(&["fmt", "--all", "--check"]))?;
    check(
        "clippy",
        cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"]),
    )?;
    let mut deny = Command::new(cargo_deny()?);
    deny.current_dir(places::workspace()).args([
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ]);
    check("licences, bans and sources", deny)?;
    let step = Step::start("generated files are up to date");
    process::output(&mut cargo(&["run", "--locked", "--package", "knit-generate", "--", "--check"]))?;
    step.done();
    test::command(&test::Request { families: Vec::new(), filter: None, retry: true })
}

fn check(what: &str, mut command: Command) -> Result<()> {
    let step = Step::start(what);
    process::output(&mut command)?;
    step.done();
    Ok(())
}

fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace()).args(arguments);
    cargo
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
