//! Programs of the workspace: other programs start a tool with `cargo run --package`, which fails if a package has several
//! programs and no default.

use anyhow::{Result, bail};
use serde::Deserialize;

use crate::metadata;

#[derive(Deserialize)]
struct Package {
    name: String,
    default_run: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

/// Fails with every package that `cargo run --package` cannot start.
pub fn check() -> Result<()> {
    let packages = metadata::packages::<Package>()?;
    let ambiguous: Vec<&str> =
        packages.iter().filter(|one| is_ambiguous(one)).map(|one| one.name.as_str()).collect();
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
            serde_json::from_value(json!({"name": "a", "default_run": default, "targets": targets})).unwrap()
        };
        assert!(is_ambiguous(&package(None, &["bin", "lib", "bin"])));
        assert!(!is_ambiguous(&package(Some("a"), &["bin", "bin"])));
        assert!(!is_ambiguous(&package(None, &["bin", "lib", "test"])));
    }
}
