//! Checks of the source itself: the dependencies between crates and layers, private vocabulary, and terms that have to be
//! found.

mod dependencies;
mod layers;
mod programs;
mod vocabulary;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use knit_dev::{places, process};

pub use dependencies::check as dependencies;
pub use layers::check as layers;
pub use programs::check as programs;
pub use vocabulary::check as vocabulary;

/// The files that git tracks below these folders and that end so, with their texts.
fn tracked(folders: &[&str], ending: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut list = Command::new("git");
    list.current_dir(places::workspace()).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "--",
    ]);
    let listed = process::output(list.args(folders))?;
    let files = listed.lines().filter(|file| file.ends_with(ending)).map(PathBuf::from);
    // A file that was deleted and not committed yet is still listed.
    files
        .filter(|file| places::workspace().join(file).exists())
        .map(|file| {
            let text = std::fs::read_to_string(places::workspace().join(&file));
            Ok((file.clone(), text.with_context(|| format!("cannot read {}", file.display()))?))
        })
        .collect()
}
