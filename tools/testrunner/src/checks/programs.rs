//! Programs of the tools: other programs start a tool with `cargo run --package`, which fails if a package has several
//! programs and no default.

use std::path::PathBuf;

use anyhow::{Result, bail};
use knit_dev::places;
use serde::Deserialize;

use crate::metadata;

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    default_run: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// Fails with every tool that `cargo run --package` cannot start.
pub fn check() -> Result<()> {
    let tools = places::workspace().join("tools");
    let packages = metadata::packages::<Package>()?;
    let of_tools = packages.iter().filter(|one| one.manifest_path.starts_with(&tools));
    let ambiguous: Vec<&str> =
        of_tools.filter(|one| is_ambiguous(one)).map(|one| one.name.as_str()).collect();
    if !ambiguous.is_empty() {
        bail!("packages with several programs need `default-run`: {}", ambiguous.join(", "));
    }
    Ok(())
}

fn is_ambiguous(package: &Package) -> bool {
    let is_program = |target: &&Target| target.kind.iter().any(|kind| kind == "bin");
    package.default_run.is_none() && package.targets.iter().filter(is_program).count() > 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn several_programs_need_a_default() {
        let package = |default: Option<&str>, kinds: &[&str]| -> Package {
            let targets: Vec<_> = kinds.iter().map(|kind| json!({"kind": [kind]})).collect();
            let package = json!({"name": "a", "manifest_path": "a/Cargo.toml", "default_run": default, "targets": targets});
            serde_json::from_value(package).unwrap()
        };
        assert!(is_ambiguous(&package(None, &["bin", "lib", "bin"])));
        assert!(!is_ambiguous(&package(Some("a"), &["bin", "bin"])));
        assert!(!is_ambiguous(&package(None, &["bin", "lib", "test"])));
    }
}
