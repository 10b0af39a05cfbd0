//! Knit's binaries: which ones there are, and how they are built so that the build directory leaves no trace in them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use knit_dev::packages::{self, Purpose};
use knit_dev::process;
use knit_dev::progress::Step;

/// The target: Linux with a static C library.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The name of the architecture in images.
pub const ARCHITECTURE: &str = "amd64";

/// How the binaries of an image are built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Profile {
    /// Optimised and reproducible, in a target directory of its own
    #[default]
    Release,
    /// As in a build of the tests, which it shares: neither optimised nor reproducible, but built in seconds
    Dev,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "dev",
        }
    }

    /// The directory of the binaries below that of the target.
    fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "debug",
        }
    }
}

/// The binaries that Knit ships, and their metadata.
#[derive(Debug, PartialEq)]
pub struct Product {
    /// The version of the binary `knit` and of the image.
    pub version: String,
    pub license: Option<String>,
    /// The URL of its sources.
    pub repository: Option<String>,
    /// The cargo packages with binaries.
    pub packages: Vec<String>,
    /// The names of the binaries, sorted.
    pub binaries: Vec<String>,
}

/// The used part of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Product {
    /// Finds the product of a checkout, and the directory for builds with this profile.
    pub fn find(checkout: &Path, profile: Profile) -> Result<(Self, PathBuf)> {
        let mut metadata = cargo(checkout);
        metadata.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
        let text = process::output(&mut metadata)?;
        let metadata: Metadata =
            serde_json::from_str(&text).context("cannot parse the output of `cargo metadata`")?;
        let builds = match profile {
            Profile::Release => metadata.target_directory.join("image"),
            Profile::Dev => metadata.target_directory.clone(),
        };
        Ok((Self::from_metadata(metadata)?, builds))
    }

    /// The product is every binary of the packages below `bins/`; the image starts `knit`.
    fn from_metadata(metadata: Metadata) -> Result<Self> {
        let home = metadata.workspace_root.join("bins");
        let mut main = None;
        let (mut packages, mut binaries) = (Vec::new(), Vec::new());
        for package in metadata.packages.into_iter().filter(|one| one.manifest_path.starts_with(&home)) {
            let is_binary = |target: &&Target| target.kind.iter().any(|kind| kind == "bin");
            let names: Vec<String> =
                package.targets.iter().filter(is_binary).map(|target| target.name.clone()).collect();
            if names.is_empty() {
                continue;
            }
            packages.push(package.name.clone());
            let is_main = names.iter().any(|name| name == super::MAIN);
            binaries.extend(names);
            if is_main {
                main = Some(package);
            }
        }
        if binaries.is_empty() {
            bail!("no product binary: no package below {} has a `bin` target", home.display());
        }
        packages.sort();
        binaries.sort();
        let Some(main) = main else {
            bail!(
                "the image starts `{}`, but the packages below {} build only: {}",
                super::MAIN,
                home.display(),
                binaries.join(", ")
            );
        };
        let Package { version, license, repository, .. } = main;
        Ok(Self { version, license, repository, packages, binaries })
    }

    /// Builds the binaries of a checkout; returns their directory.
    pub fn build(&self, checkout: &Path, builds: &Path, profile: Profile) -> Result<PathBuf> {
        packages::ensure(&[Purpose::Build])?;
        let step = Step::start(format!(
            "build {} in {} ({}, static)",
            self.binaries.join(", "),
            checkout.display(),
            profile.name()
        ));
        let mut build = match profile {
            Profile::Release => reproducible_cargo(checkout, builds)?,
            // Flags and environment of the build of the tests: others would compile everything again.
            Profile::Dev => {
                let mut cargo = process::cargo();
                cargo.current_dir(checkout);
                cargo
            }
        };
        process::output(build.args(self.arguments(builds, profile)))?;
        step.done();
        Ok(builds.join(TARGET).join(profile.folder()))
    }

    /// The arguments of cargo that build the binaries.
    fn arguments(&self, builds: &Path, profile: Profile) -> Vec<OsString> {
        let mut arguments: Vec<OsString> =
            ["build", "--locked", "--profile", profile.name(), "--target", TARGET, "--target-dir"]
                .map(OsString::from)
                .into();
        arguments.push(builds.into());
        let (flag, names) = match profile {
            Profile::Release => {
                arguments.push("--bins".into());
                ("--package", &self.packages)
            }
            // The features of the whole workspace, as in the build of the tests.
            Profile::Dev => {
                arguments.push("--workspace".into());
                ("--bin", &self.binaries)
            }
        };
        arguments.extend(names.iter().flat_map(|name| [flag.into(), name.into()]));
        arguments
    }
}

/// Cargo with flags that leave no trace of this machine in the binaries.
fn reproducible_cargo(checkout: &Path, builds: &Path) -> Result<Command> {
    // Dependencies must be unpacked before their directories can be listed.
    process::output(cargo(checkout).args(["fetch", "--locked", "--target", TARGET]))?;
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(remap_flags(checkout, builds)?);
    let mut build = cargo(checkout);
    // In this encoding a flag may contain a space, as paths do.
    build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    Ok(build)
}

/// Flags that map the directories of this machine to fixed names wherever the compiler embeds paths (panic messages, debug
/// information). The last matching flag wins.
fn remap_flags(checkout: &Path, builds: &Path) -> Result<Vec<String>> {
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => PathBuf::from(std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?)
            .join(".cargo"),
    };
    let version = rustc(checkout, &["--verbose", "--version"])?;
    let commit = version.lines().find_map(|line| line.strip_prefix("commit-hash: ")).unwrap_or("unknown");
    let sysroot = rustc(checkout, &["--print", "sysroot"])?;
    let mut names = vec![
        // The standard library already has this name, unless its sources are installed.
        (Path::new(sysroot.trim()).join("lib/rustlib/src/rust"), format!("/rustc/{commit}")),
        (cargo_home.clone(), "/cargo".to_owned()),
        (checkout.to_path_buf(), "/knit".to_owned()),
        (builds.to_path_buf(), "/knit/target".to_owned()),
    ];
    // One directory for each registry, named after a hash of its URL.
    let registries = cargo_home.join("registry/src");
    if registries.exists() {
        let listing = std::fs::read_dir(&registries)
            .with_context(|| format!("cannot list {}", registries.display()))?;
        for registry in listing {
            names.push((registry?.path(), "/cargo/registry".to_owned()));
        }
    }
    names.iter().map(|(folder, name)| remap(folder, name)).collect()
}

fn rustc(checkout: &Path, args: &[&str]) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    process::output(Command::new(rustc).current_dir(checkout).args(args))
}

fn remap(folder: &Path, name: &str) -> Result<String> {
    let folder = folder.to_str().with_context(|| format!("{} is not valid UTF-8", folder.display()))?;
    Ok(format!("--remap-path-prefix={folder}={name}"))
}

/// Cargo for this checkout, without environment variables that change its output.
fn cargo(checkout: &Path) -> Command {
    let mut cargo = process::cargo();
    cargo.current_dir(checkout).env("CARGO_INCREMENTAL", "0");
    let profiles = std::env::vars_os().map(|(name, _)| name);
    for name in profiles.filter(|name| name.to_string_lossy().starts_with("CARGO_PROFILE_")) {
        cargo.env_remove(name);
    }
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace in `/knit` with these (folder, binary) packages.
    fn workspace(packages: &[(&str, &str, &str)]) -> Metadata {
        let packages: Vec<_> = packages
            .iter()
            .map(|(folder, target, kind)| {
                serde_json::json!({
                    "name": format!("{target}-package"),
                    "version": "1.2.3",
                    "license": "Apache-2.0",
                    "repository": null,
                    "manifest_path": format!("/knit/{folder}/Cargo.toml"),
                    "targets": [{ "name": target, "kind": [kind] }],
                })
            })
            .collect();
        let metadata = serde_json::json!({
            "packages": packages, "workspace_root": "/knit", "target_directory": "/knit/target",
        });
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn the_product_is_the_binaries_below_bins_and_nothing_else() {
        let found = Product::from_metadata(workspace(&[
            ("xtask", "xtask", "bin"),
            ("bins/knit-cni", "knit-cni", "bin"),
            ("bins/knit", "knit", "bin"),
            ("bins/shared", "shared", "lib"),
            ("crates/knit-model", "knit_model", "lib"),
        ]))
        .unwrap();
        assert_eq!(found.binaries, ["knit", "knit-cni"]);
        assert_eq!(found.packages, ["knit-cni-package", "knit-package"]);
        assert_eq!(found.version, "1.2.3");
    }

    #[test]
    fn a_dev_build_has_the_features_of_the_tests_and_a_release_only_its_own() {
        let product = Product::from_metadata(workspace(&[("bins/knit", "knit", "bin")])).unwrap();
        let arguments = |profile| product.arguments(Path::new("/builds"), profile);
        let start = |profile| ["build", "--locked", "--profile", profile, "--target", TARGET, "--target-dir"];
        let dev = [&start("dev")[..], &["/builds", "--workspace", "--bin", "knit"]].concat();
        assert_eq!(arguments(Profile::Dev), dev);
        let release = [&start("release")[..], &["/builds", "--bins", "--package", "knit-package"]].concat();
        assert_eq!(arguments(Profile::Release), release);
    }

    #[test]
    fn a_workspace_without_a_product_is_an_error() {
        let error = Product::from_metadata(workspace(&[("xtask", "xtask", "bin")])).unwrap_err();
        assert!(error.to_string().contains("no product binary"), "{error}");
    }

    #[test]
    fn a_product_without_its_main_binary_is_an_error() {
        let error = Product::from_metadata(workspace(&[("bins/knit-cni", "knit-cni", "bin")])).unwrap_err();
        assert!(error.to_string().contains("build only: knit-cni"), "{error}");
    }
}
