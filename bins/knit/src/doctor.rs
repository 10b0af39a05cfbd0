//! `knit doctor`: what this kernel and machine offer, and what to do about what they lack.

mod text;

use std::process::ExitCode;

use anyhow::Result;
use knit_kernel::features::{self, Feature};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use serde::Serialize;

use crate::cli::Format;
use crate::output;

/// Everything that the doctor found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    kernel: String,
    architecture: &'static str,
    tried: Tried,
    /// Whether everything that the basic job needs is there.
    basic: bool,
    features: Vec<Feature>,
}

/// With which rights features were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Tried {
    AsRoot,
    InUserNamespace,
    WithoutRights,
}

/// Examines the machine and prints the diagnosis.
pub fn run(format: Format) -> Result<ExitCode> {
    // First of all: only a process without further threads may enter a user namespace.
    let tried = take_rights();
    let features = features::detect();
    let basic = features.iter().filter(|feature| feature.basic).all(|feature| feature.state.is_present());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
    let kernel = kernel.trim().to_owned();
    let diagnosis = Diagnosis { kernel, architecture: std::env::consts::ARCH, tried, basic, features };
    match format {
        Format::Json => output::json(&diagnosis)?,
        Format::Text => output::text(&text::render(&diagnosis))?,
    }
    Ok(if basic { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Root tries as it is. Anyone else becomes the master of a user namespace, where the machine allows it: that is enough
/// to make a network namespace and to try everything inside it.
fn take_rights() -> Tried {
    if geteuid().is_root() {
        Tried::AsRoot
    } else if unshare(CloneFlags::CLONE_NEWUSER).is_ok() {
        Tried::InUserNamespace
    } else {
        Tried::WithoutRights
    }
}
