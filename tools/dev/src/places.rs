//! Where things are: the checkout, and the cache that outlives it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The root of this checkout.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two folders below the checkout")
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// `$XDG_CACHE_HOME/knit` (by default `~/.cache/knit`): what was built or extracted once and serves every checkout.
pub fn cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
            .join(".cache"),
    };
    let dir = base.join("knit");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make the cache {}", dir.display()))?;
    Ok(dir)
}
