//! The programs that people run, as the image has them: optimised, static.

use std::path::PathBuf;

use anyhow::Result;

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `knit`.
    pub knit: PathBuf,
    /// `knit-cni`.
    pub shim: PathBuf,
}

/// Builds both.
pub fn build() -> Result<Binaries> {
    let folder = knit_image::binaries()?;
    Ok(Binaries { knit: folder.join("knit"), shim: folder.join("knit-cni") })
}
