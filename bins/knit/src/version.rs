//! `knit version`.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::output;
use crate::output::Format;

/// The output of `knit version`.
#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// The commit from the build-time variable `KNIT_COMMIT`. The build does not call git, so that it is reproducible.
    commit: Option<&'static str>,
    architecture: &'static str,
}

/// Prints the version.
pub fn run(format: Format) -> Result<ExitCode> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("KNIT_COMMIT"),
        architecture: std::env::consts::ARCH,
    };
    match format {
        Format::Json => output::json(&version)?,
        Format::Text => {
            let commit = version.commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
            output::text(&format!("knit {}{commit} ({})\n", version.version, version.architecture))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
