//! `cargo xtask image`: Knit's binaries as a container image in one file, without docker.

pub mod archive;
mod product;
mod revision;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::archive::{ArchiveInfo, Image, Layer};
pub use self::product::Profile;

use self::product::Product;
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;

/// The binary that the image starts.
const MAIN: &str = "knit";
/// The directory of the binaries in the image.
const BINARIES: &str = "/usr/local/bin";
/// The users of the image: the agent needs root, everything else does not.
const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// Runs `cargo xtask image`: builds and writes the image and prints a summary; with `check`, also builds it in another
/// directory and compares.
pub fn command(output: Option<PathBuf>, check: bool, profile: Profile) -> Result<()> {
    if check && profile != Profile::Release {
        bail!("only an image of the profile release is reproducible: `--check` needs it");
    }
    let checkout = places::workspace();
    let (product, builds) = Product::find(checkout, profile)?;
    let revision = revision::of(checkout)?;
    let binaries = product.build(checkout, &builds, profile)?;
    if revision::of(checkout)? != revision {
        bail!("the checkout changed during the build, so no revision label would be correct: run it again");
    }

    let output = output.unwrap_or_else(|| checkout.join(format!("dist/{MAIN}-{}.tar", product.version)));
    let image = compose(&product, revision.as_deref(), &binaries)?;
    let step = Step::start("write the image");
    let written = image.write(&output)?;
    step.done();
    if check {
        check_reproducible(&product, revision.as_deref(), &binaries, &written)?;
    }

    let file = shell_quoted(&output);
    println!("file      {file} ({:.1} MiB)", written.size as f64 / f64::from(1 << 20));
    println!("image     {}", image.references.join(", "));
    println!("digest    {}", written.digest);
    match &revision {
        Some(revision) => println!("revision  {revision}"),
        None => println!("revision  none: {} is not a git checkout", checkout.display()),
    }
    println!("load it   cargo xtask cluster load-image {file}");
    Ok(())
}

/// Writes the image of this checkout for a test cluster, without a revision label and without output.
pub fn write(output: &Path, profile: Profile) -> Result<()> {
    let checkout = places::workspace();
    let (product, builds) = Product::find(checkout, profile)?;
    let binaries = product.build(checkout, &builds, profile)?;
    compose(&product, None, &binaries)?.write(output)?;
    Ok(())
}

/// Builds the image's binaries; returns their directory.
pub fn binaries(profile: Profile) -> Result<PathBuf> {
    let checkout = places::workspace();
    let (product, builds) = Product::find(checkout, profile)?;
    product.build(checkout, &builds, profile)
}

/// A path that can be pasted into a shell.
fn shell_quoted(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let text = path.strip_prefix(here).unwrap_or(path).display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The image: the binaries, users and groups, and `/tmp`.
fn compose(product: &Product, revision: Option<&str>, binaries: &Path) -> Result<Image> {
    let mut layer = Layer::default();
    for name in &product.binaries {
        layer.add_file_from(format!("{BINARIES}/{name}"), 0o755, binaries.join(name))?;
    }
    layer.add_file("/etc/passwd", 0o644, PASSWD)?;
    layer.add_file("/etc/group", 0o644, GROUP)?;
    layer.add_folder("/tmp", 0o1777)?;

    let labels = [
        ("title", Some(MAIN)),
        ("version", Some(product.version.as_str())),
        ("licenses", product.license.as_deref()),
        ("source", product.repository.as_deref()),
        ("revision", revision),
    ];
    let labels = labels
        .into_iter()
        .filter_map(|(name, value)| Some((format!("org.opencontainers.image.{name}"), value?.to_owned())));
    Ok(Image {
        references: vec![format!("localhost/{MAIN}:{}", product.version)],
        architecture: product::ARCHITECTURE.to_owned(),
        entrypoint: vec![format!("{BINARIES}/{MAIN}")],
        cmd: Vec::new(),
        env: BTreeMap::from([("PATH".to_owned(), BINARIES.to_owned())]),
        user: "0:0".to_owned(),
        workdir: "/".to_owned(),
        labels: labels.collect(),
        layers: vec![layer.into()],
    })
}

/// Builds the image from a copy of the sources in another directory, and fails if it differs.
fn check_reproducible(
    product: &Product,
    revision: Option<&str>,
    binaries: &Path,
    first: &ArchiveInfo,
) -> Result<()> {
    let work = tempfile::Builder::new()
        .prefix("knit-image-check-")
        .tempdir()
        .context("cannot create a temporary directory")?;
    let copy = work.path().join("another checkout");
    copy_sources(places::workspace(), &copy)?;
    let rebuilt = product.build(&copy, &copy.join("target/image"), Profile::Release)?;
    let second = compose(product, revision, &rebuilt)?.write(&work.path().join("image.tar"))?;
    if first.digest == second.digest {
        println!("a second build in another directory gave the same image");
        return Ok(());
    }
    let mut differing = Vec::new();
    for name in &product.binaries {
        if std::fs::read(binaries.join(name))? != std::fs::read(rebuilt.join(name))? {
            differing.push(name.as_str());
        }
    }
    bail!(
        "the image is not reproducible: {} in this checkout, {} in another directory; differing binaries: {}",
        first.digest,
        second.digest,
        if differing.is_empty() { "none".to_owned() } else { differing.join(", ") }
    );
}

/// Copies all tracked and untracked files that are not ignored.
fn copy_sources(checkout: &Path, copy: &Path) -> Result<()> {
    std::fs::create_dir_all(copy).with_context(|| format!("cannot create {}", copy.display()))?;
    let listing = revision::git(checkout, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .context("cannot list the sources: the comparison needs a git checkout")?;
    // A deleted file may still be in the index.
    let files = listing.split('\0').filter(|file| !file.is_empty() && checkout.join(file).exists());
    let mut cp = Command::new("cp");
    process::output(
        cp.current_dir(checkout).args(["-a", "--parents", "-t"]).arg(copy).arg("--").args(files),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(revision: Option<&str>) -> Image {
        let product = Product {
            version: "1.2.3".to_owned(),
            license: Some("Apache-2.0".to_owned()),
            repository: None,
            packages: vec!["knit".to_owned()],
            binaries: vec!["knit".to_owned()],
        };
        compose(&product, revision, Path::new("/builds")).unwrap()
    }

    #[test]
    fn unknown_values_have_no_label() {
        let labels = |revision| composed(revision).labels;
        let named = labels(Some("abc-dirty"));
        assert_eq!(named["org.opencontainers.image.revision"], "abc-dirty");
        assert_eq!(named["org.opencontainers.image.version"], "1.2.3");
        assert!(!named.contains_key("org.opencontainers.image.source"));
        assert!(!labels(None).contains_key("org.opencontainers.image.revision"));
    }

    #[test]
    fn the_image_is_tagged_with_the_version_and_starts_knit() {
        let image = composed(None);
        assert_eq!(image.references, ["localhost/knit:1.2.3"]);
        assert_eq!(image.entrypoint, ["/usr/local/bin/knit"]);
    }

    #[test]
    fn an_image_of_the_profile_dev_is_not_checked_for_reproducibility() {
        let error = command(None, true, Profile::Dev).unwrap_err();
        assert!(
            error.to_string().contains("only an image of the profile release is reproducible"),
            "{error}"
        );
    }

    #[test]
    fn a_path_with_a_space_is_quoted_for_the_shell() {
        assert_eq!(shell_quoted(Path::new("/nowhere/knit-0.1.0.tar")), "/nowhere/knit-0.1.0.tar");
        assert_eq!(shell_quoted(Path::new("/no where/it's.tar")), r"'/no where/it'\''s.tar'");
    }

    #[test]
    fn a_copy_of_the_sources_has_new_files_and_no_ignored_or_deleted_ones() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir_all(from.join("sub")).unwrap();
        revision::git(&from, &["init", "--quiet"]).unwrap();
        for file in [".gitignore", "sub/kept", "deleted"] {
            std::fs::write(from.join(file), "ignored\n").unwrap();
        }
        revision::git(&from, &["add", "."]).unwrap();
        std::fs::remove_file(from.join("deleted")).unwrap();
        std::fs::write(from.join("new"), "").unwrap();
        std::fs::write(from.join("ignored"), "").unwrap();

        copy_sources(&from, &to).unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(&to).unwrap().map(|item| item.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".gitignore", "new", "sub"]);
        assert_eq!(std::fs::read_to_string(to.join("sub/kept")).unwrap(), "ignored\n");
    }
}
