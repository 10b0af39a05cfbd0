//! The programs that people run, built as they run them: optimised, the CNI shim with the C library inside.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::progress::Step;
use crate::{places, process};

/// What the shim runs on.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `knit`.
    pub knit: PathBuf,
    /// `knit-cni`.
    pub shim: PathBuf,
}

/// Builds both.
pub fn build() -> Result<Binaries> {
    let step = Step::start("build knit and knit-cni (release)");
    let knit = build_one("knit", false)?;
    let shim = build_one("knit-cni", true)?;
    step.done();
    Ok(Binaries { knit, shim })
}

fn build_one(package: &str, with_libc: bool) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(places::workspace());
    cargo.args(["build", "--quiet", "--locked", "--release", "--message-format=json", "--bin", package]);
    cargo.args(["--package", package]);
    if with_libc {
        cargo.args(["--target", TARGET]).env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    }
    let messages = process::output(&mut cargo)?;
    let executable = messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == package;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    });
    executable.with_context(|| format!("cargo built no {package}"))
}
