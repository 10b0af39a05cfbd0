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
    /// The optional Cargo features that are built in.
    features: &'static [&'static str],
}

/// The optional Cargo features that are built in.
pub const FEATURES: &[&str] = &[
    #[cfg(feature = "cluster")]
    "cluster",
    #[cfg(feature = "fast-path")]
    "fast-path",
];

/// The end of `knit --help`.
pub fn feature_help() -> String {
    format!("Built-in features: {}", feature_list())
}

fn feature_list() -> String {
    if FEATURES.is_empty() { "none".to_owned() } else { FEATURES.join(", ") }
}

/// Prints the version.
pub fn run(format: Format) -> Result<ExitCode> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("KNIT_COMMIT"),
        architecture: std::env::consts::ARCH,
        features: FEATURES,
    };
    match format {
        Format::Json => output::json(&version)?,
        Format::Text => {
            let commit = version.commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
            output::text(&format!(
                "knit {}{commit} ({})\nfeatures: {}\n",
                version.version,
                version.architecture,
                feature_list()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
