//! The corpus: inputs in this checkout with which fuzzing starts, and inputs that crashed once.

use std::path::PathBuf;

use anyhow::{Context, Result};
use knit_dev::places;

use crate::Target;

/// The folders with inputs of a target. Crashing inputs are added to the first.
pub fn folders(target: &Target) -> Vec<PathBuf> {
    let own = places::workspace().join("tools/fuzz/corpus").join(target.name);
    let samples = target.samples.map(|samples| places::workspace().join(samples));
    [own].into_iter().chain(samples).collect()
}

/// All inputs of a target with their paths, in order.
pub fn inputs(target: &Target) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut paths = Vec::new();
    for folder in folders(target) {
        let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            paths.extend(path.is_file().then_some(path));
        }
    }
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path, bytes))
    };
    paths.into_iter().map(read).collect()
}
