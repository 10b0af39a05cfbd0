//! Dependencies of the workspace's crates: a crate depends on exactly the crates that its row in ARCHITECTURE.md names,
//! and the pure crates and the simulator link nothing that does I/O.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use knit_dev::{places, process};
use serde::Deserialize;

use crate::metadata;

const PAGE: &str = "ARCHITECTURE.md";
/// The header of the table.
const HEADER: &str = "| crate | owns | depends on |";

/// The crates that decide, without I/O, and the simulator, which runs their decisions in one process.
const PURE: [&str; 8] = [
    "knit-controller-engine",
    "knit-crds",
    "knit-engine",
    "knit-ipam",
    "knit-model",
    "knit-policy",
    "knit-service",
    "knit-sim",
];
/// What they must not link, also not through other crates: API client, TLS, HTTP, async runtime and system calls.
const IO: [&str; 9] =
    ["hyper", "knit-kernel", "knit-kube", "kube-client", "kube-runtime", "nix", "ring", "rustls", "tokio"];

type Dependencies = BTreeMap<String, BTreeSet<String>>;

/// Fails with every crate whose row and manifest differ, and every pure crate that links I/O.
pub fn check() -> Result<()> {
    check_table()?;
    check_pure()
}

fn check_table() -> Result<()> {
    let page = std::fs::read_to_string(places::workspace().join(PAGE))
        .with_context(|| format!("cannot read {PAGE}"))?;
    let (documented, actual) = (documented(&page)?, actual()?);
    let differences = differences(&documented, &actual);
    if !differences.is_empty() {
        bail!("{PAGE} and the manifests differ:\n{}", differences.join("\n"));
    }
    Ok(())
}

fn check_pure() -> Result<()> {
    let mut linked = Vec::new();
    for name in PURE {
        // `cargo metadata` enables the features that any crate of the workspace needs; `cargo tree` only those of this one.
        let mut cargo = process::cargo();
        cargo.current_dir(places::workspace()).args(["tree", "--locked", "--package", name]);
        cargo.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
        linked.extend(
            linked_io(&process::output(&mut cargo)?).into_iter().map(|io| format!("  {name} links {io}")),
        );
    }
    if !linked.is_empty() {
        bail!("crates without I/O link crates with I/O:\n{}", linked.join("\n"));
    }
    Ok(())
}

/// The crates with I/O in the output of `cargo tree`: one package per line, its name first.
fn linked_io(tree: &str) -> BTreeSet<&str> {
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| IO.contains(name)).collect()
}

fn documented(page: &str) -> Result<Dependencies> {
    let (_, table) = page.split_once(HEADER).with_context(|| format!("{PAGE} has no table `{HEADER}`"))?;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, _, depends] = cells[..] else { bail!("{PAGE}: a row has three cells: {row}") };
        let names = depends.split(',').map(|name| name.trim().trim_matches('`').to_owned());
        Ok((name.trim_matches('`').to_owned(), names.filter(|name| name != "nothing").collect()))
    })
    .collect()
}

fn actual() -> Result<Dependencies> {
    #[derive(Deserialize)]
    struct Package {
        name: String,
        dependencies: Vec<Dependency>,
    }
    #[derive(Deserialize)]
    struct Dependency {
        name: String,
        kind: Option<String>,
        path: Option<String>,
    }
    // Tests may use more: only what is built into a crate counts.
    let is_built_in = |dependency: &&Dependency| dependency.kind.is_none() && dependency.path.is_some();
    Ok(metadata::packages::<Package>()?
        .into_iter()
        .map(|package| {
            let names =
                package.dependencies.iter().filter(is_built_in).map(|dependency| dependency.name.clone());
            (package.name, names.collect())
        })
        .collect())
}

fn differences(documented: &Dependencies, actual: &Dependencies) -> Vec<String> {
    let names: BTreeSet<&String> = documented.keys().chain(actual.keys()).collect();
    let list = |names: Option<&BTreeSet<String>>| match names {
        Some(names) if names.is_empty() => "nothing".to_owned(),
        Some(names) => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        None => "no such crate".to_owned(),
    };
    let differ = names.into_iter().filter(|name| documented.get(*name) != actual.get(*name));
    differ
        .map(|name| {
            format!("  {name}: {PAGE}: {}; manifest: {}", list(documented.get(name)), list(actual.get(name)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pure_crate_that_links_io_is_found() {
        let tree = "knit-sim v0.1.0 (/knit/tools/sim)\nkube v5.0.0\nkube-core v5.0.0\nhyper-util v0.1.0\n";
        assert!(linked_io(tree).is_empty(), "names are compared as a whole");
        let tree = format!("{tree}kube-client v5.0.0\nrustls v0.23.0\nkube-client v5.0.0 (*)\n\n");
        assert_eq!(linked_io(&tree).into_iter().collect::<Vec<_>>(), ["kube-client", "rustls"]);
    }

    #[test]
    fn a_dependency_that_the_page_does_not_name_is_found() {
        let page = format!(
            "{HEADER}\n|---|---|---|\n| `a` | x | nothing |\n| `b` | y | `a` |\n\n| `c` | no row | |\n"
        );
        let documented = documented(&page).unwrap();
        let mut actual = documented.clone();
        assert!(differences(&documented, &actual).is_empty());
        actual.get_mut("a").unwrap().insert("b".to_owned());
        assert_eq!(differences(&documented, &actual), ["  a: ARCHITECTURE.md: nothing; manifest: b"]);
    }
}
