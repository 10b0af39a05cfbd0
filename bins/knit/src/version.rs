//! `knit version`.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::cli::Format;
use crate::output;

/// Which Knit this is.
#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// The commit it was built from, if whoever built it said so in `KNIT_COMMIT`. Asking git at build time would make
    /// the same sources give different binaries.
    commit: Option<&'static str>,
    architecture: &'static str,
}

/// Prints which Knit this is.
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
