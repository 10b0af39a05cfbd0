//! The release binaries as in the image: optimised and static.

use std::path::PathBuf;

use anyhow::Result;

/// Paths of the binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `knit`.
    pub knit: PathBuf,
    /// `knit-cni`.
    pub shim: PathBuf,
}

/// Builds both binaries.
pub fn build() -> Result<Binaries> {
    let folder = knit_image::binaries()?;
    Ok(Binaries { knit: folder.join("knit"), shim: folder.join("knit-cni") })
}
