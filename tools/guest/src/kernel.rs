//! The guest's kernel: Debian's cloud kernel, downloaded once, extracted and never installed.
//!
//! The first downloaded kernel stays in use, so that tests are reproducible. Remove the cache's `guest` directory to get the
//! newest one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::modules::Index;
use super::tools;
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;

/// The meta package that depends on the newest kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// The file that names the kernel in use, next to the kernels' directories.
const PIN: &str = "pinned";
/// The file with the package version, in a kernel's directory.
const VERSION: &str = "package-version";

/// A kernel that is ready to boot.
pub struct Kernel {
    /// As printed by `uname -r`.
    pub release: String,
    /// The version of the Debian package.
    pub package_version: String,
    /// The directory with the package's files.
    folder: PathBuf,
}

impl Kernel {
    /// The kernel in use; downloads it if there is none yet.
    pub fn ensure() -> Result<Self> {
        let guests = guest_folder()?;
        match std::fs::read_to_string(guests.join(PIN)) {
            Ok(release) if guests.join(release.trim()).is_dir() => Self::open(&guests, release.trim()),
            _ => Self::fetch(&guests),
        }
    }

    /// The bootable image.
    pub fn image(&self) -> PathBuf {
        self.folder.join("boot").join(format!("vmlinuz-{}", self.release))
    }

    /// The directory with the modules and their index.
    pub fn modules(&self) -> PathBuf {
        module_folder(&self.folder, &self.release)
    }

    /// The index of the modules.
    pub fn index(&self) -> Result<Index> {
        Index::read(&self.modules())
    }

    fn open(guests: &Path, release: &str) -> Result<Self> {
        let folder = guests.join(release);
        let version = folder.join(VERSION);
        let package_version = std::fs::read_to_string(&version).with_context(|| {
            format!("cannot read {}: remove {} to download it again", version.display(), guests.display())
        })?;
        Ok(Self { release: release.to_owned(), package_version: package_version.trim().to_owned(), folder })
    }

    fn fetch(guests: &Path) -> Result<Self> {
        let step = Step::start("download the guest's kernel from the Debian archive");
        let work = tempfile::Builder::new().prefix("download-").tempdir_in(guests)?;
        let package = download(work.path())?;
        let tree = work.path().join("tree");
        process::output(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&tree))?;
        let release = only_entry(&tree.join("lib/modules"))?;
        process::output(Command::new(tools::locate("depmod")).arg("-b").arg(&tree).arg(&release))?;
        std::fs::remove_dir_all(tree.join("usr")).context("cannot remove the package's documentation")?;
        let version = process::output(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Version"))?;
        std::fs::write(tree.join(VERSION), &version)?;

        // Two commands may download at once. The first one's directory stays; both are complete.
        let folder = guests.join(&release);
        if let Err(error) = std::fs::rename(&tree, &folder)
            && !folder.join(VERSION).is_file()
        {
            return Err(error).with_context(|| format!("cannot create {}", folder.display()));
        }
        let pin = work.path().join(PIN);
        std::fs::write(&pin, format!("{release}\n"))?;
        std::fs::rename(&pin, guests.join(PIN)).context("cannot record the kernel in use")?;
        step.done_with(&format!("{release}, version {}", version.trim()));
        Self::open(guests, &release)
    }
}

/// The directory `guest` in the cache: kernels, and the consoles of guests.
pub fn guest_folder() -> Result<PathBuf> {
    let folder = places::cache()?.join("guest");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder)
}

/// Downloads the newest kernel package. Refreshes apt's package lists if that fails.
fn download(folder: &Path) -> Result<PathBuf> {
    if let Ok(package) = try_download(folder) {
        return Ok(package);
    }
    if process::is_root() {
        process::output(Command::new("apt-get").args(["update", "-q"]))?;
    }
    try_download(folder).with_context(|| {
        let hint = if process::is_root() {
            ""
        } else {
            ": apt's package lists may be outdated, run `apt-get update` as root"
        };
        format!("cannot download the kernel package of {META_PACKAGE}{hint}")
    })
}

fn try_download(folder: &Path) -> Result<PathBuf> {
    let description =
        process::output(Command::new("apt-cache").args(["show", "--no-all-versions", META_PACKAGE]))?;
    let signed = kernel_package(&description).with_context(|| {
        format!("{META_PACKAGE} does not depend on a kernel: is this Debian 12 on amd64?")
    })?;
    // The unsigned package contains the same kernel and is sometimes published earlier.
    let mut failure = None;
    for package in [signed.clone(), format!("{signed}-unsigned")] {
        match process::output(Command::new("apt-get").args(["download", "-q", &package]).current_dir(folder))
        {
            Ok(_) => return downloaded(folder),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.expect("the loop ran at least once"))
}

fn downloaded(folder: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            return Ok(path);
        }
    }
    bail!("apt-get download did not write a package into {}", folder.display())
}

/// The kernel package in the output of `apt-cache show` for the meta package.
fn kernel_package(description: &str) -> Option<String> {
    let depends = description.lines().find_map(|line| line.strip_prefix("Depends:"))?;
    let names = depends.split([',', '|']).filter_map(|item| item.split_whitespace().next());
    let mut kernels = names.filter(|name| name.starts_with("linux-image-") && name.ends_with("-cloud-amd64"));
    kernels.next().map(str::to_owned)
}

fn module_folder(tree: &Path, release: &str) -> PathBuf {
    tree.join("lib/modules").join(release)
}

fn only_entry(folder: &Path) -> Result<String> {
    let mut entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let entry = entries.next().with_context(|| format!("{} is empty", folder.display()))??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_package_is_found_in_the_meta_package() {
        let description = "Package: linux-image-cloud-amd64\nVersion: 6.1.190-1\n\
            Depends: linux-image-6.1.0-54-cloud-amd64 (= 6.1.190-1)\nDescription-en: Linux for x86-64 cloud\n";
        assert_eq!(kernel_package(description).as_deref(), Some("linux-image-6.1.0-54-cloud-amd64"));
        assert_eq!(kernel_package("Depends: libc6 (>= 2.36)\n"), None);
    }
}
