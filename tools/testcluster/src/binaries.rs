//! The binaries of the image.

use std::path::PathBuf;

use anyhow::Result;

use knit_image::Profile;

/// Paths of the binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `knit`.
    pub knit: PathBuf,
    /// `knit-cni`.
    pub shim: PathBuf,
}

/// Builds both binaries.
pub fn build(profile: Profile) -> Result<Binaries> {
    let folder = knit_image::binaries(profile)?;
    Ok(Binaries { knit: folder.join("knit"), shim: folder.join("knit-cni") })
}
