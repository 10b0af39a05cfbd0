//! The Python that tests in that language run with: a virtual environment in the cache, with exactly what
//! `tools/python/requirements.txt` pins. Its place carries a hash of that file, so that a new pin never meets an old
//! environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use knit_dev::packages::{self, Purpose};
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;

/// Debian's Python: the pinned wheels are built for it.
const PYTHON: &str = "/usr/bin/python3";

/// The interpreter of the environment, which is made when it is missing.
pub fn ensure() -> Result<PathBuf> {
    let pins = places::workspace().join("tools/python/requirements.txt");
    let text = fs::read(&pins).with_context(|| format!("cannot read {}", pins.display()))?;
    let hash: String = Sha256::digest(&text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let place = places::cache()?.join(format!("python-{hash}"));
    if !place.exists() {
        packages::ensure(&[Purpose::Clients])?;
        let step = Step::start("install the Python gRPC libraries (once)");
        make(&place, &pins)?;
        step.done();
    }
    Ok(place.join("bin/python"))
}

/// Makes the environment under another name first: what is in its place is complete.
fn make(place: &Path, pins: &Path) -> Result<()> {
    let unfinished = place.with_extension(format!("new-{}", std::process::id()));
    process::output(Command::new(PYTHON).args(["-m", "venv", "--clear"]).arg(&unfinished))?;
    let mut install = Command::new(unfinished.join("bin/python"));
    install.args(["-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary", ":all:"]);
    install.arg("--requirement").arg(pins);
    let installed = process::output(&mut install).and_then(|_| {
        fs::rename(&unfinished, place).with_context(|| format!("cannot make {}", place.display()))
    });
    if installed.is_err() {
        // Left half done it would only take up room; the first error is the one to tell.
        let _ = fs::remove_dir_all(&unfinished);
    }
    // Another run that was faster made the same.
    if place.exists() { Ok(()) } else { installed }
}
