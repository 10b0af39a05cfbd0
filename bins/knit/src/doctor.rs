//! `knit doctor`: checks the kernel features that Knit uses.

mod text;

use std::process::ExitCode;

use anyhow::Result;
use knit_kernel::features::{self, Feature};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use serde::Serialize;

use crate::output;
use crate::output::Format;

/// The report of `knit doctor`.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    architecture: &'static str,
    privileges: Privileges,
    /// Whether all required features are present.
    required_present: bool,
    features: Vec<Feature>,
}

/// The privileges with which features were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Privileges {
    Root,
    UserNamespace,
    None,
}

/// Checks all features and prints the report.
pub fn run(format: Format) -> Result<ExitCode> {
    // Before anything starts a thread: unshare(CLONE_NEWUSER) fails in a process with several threads.
    let privileges = acquire_privileges();
    let features = features::detect();
    let required_present =
        features.iter().filter(|feature| feature.required).all(|feature| feature.state.is_present());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
    let kernel = kernel.trim().to_owned();
    let report =
        Report { kernel, architecture: std::env::consts::ARCH, privileges, required_present, features };
    match format {
        Format::Json => output::json(&report)?,
        Format::Text => output::text(&text::render(&report))?,
    }
    Ok(if required_present { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Without root, enters a new user namespace if the system allows that: it suffices to create a network namespace and
/// to check features in it.
fn acquire_privileges() -> Privileges {
    if geteuid().is_root() {
        Privileges::Root
    } else if unshare(CloneFlags::CLONE_NEWUSER).is_ok() {
        Privileges::UserNamespace
    } else {
        Privileges::None
    }
}
