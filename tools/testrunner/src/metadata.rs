//! Metadata of the workspace's packages.

use anyhow::{Context, Result};
use knit_dev::{places, process};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The packages of the workspace, each with the fields that `P` has.
pub fn packages<P: DeserializeOwned>() -> Result<Vec<P>> {
    #[derive(Deserialize)]
    struct Metadata<P> {
        packages: Vec<P>,
    }
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace()).args([
        "metadata",
        "--no-deps",
        "--locked",
        "--format-version",
        "1",
    ]);
    let metadata: Metadata<P> =
        serde_json::from_str(&process::output(&mut cargo)?).context("cargo metadata")?;
    Ok(metadata.packages)
}
