//! `cargo xtask image`: the product as a container image in one file, without docker.

pub mod archive;
mod product;
mod revision;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::archive::{Image, Layer, Written};
use self::product::Product;
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;

/// The binary that the image starts.
const MAIN: &str = "knit";
/// Where the image keeps its binaries.
const BINARIES: &str = "/usr/local/bin";
/// The people of the image: the agent needs root, everything else can do without.
const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// What `cargo xtask image` does: builds, writes and says what was made; with `check` also makes the image
/// once more in another folder and compares.
pub fn command(output: Option<PathBuf>, check: bool) -> Result<()> {
    let checkout = places::workspace();
    let (product, builds) = Product::find(checkout)?;
    let revision = revision::of(checkout)?;
    let binaries = product.build(checkout, &builds)?;
    if revision::of(checkout)? != revision {
        bail!("the checkout changed while its binaries were built, so no revision would be true: try again");
    }

    let output = output.unwrap_or_else(|| checkout.join(format!("dist/{MAIN}-{}.tar", product.version)));
    let image = compose(&product, revision.as_deref(), &binaries)?;
    let step = Step::start("write the image");
    let written = image.write(&output)?;
    step.done();
    if check {
        check_again(&product, revision.as_deref(), &binaries, &written)?;
    }

    let file = pasteable(&output);
    println!("file      {file} ({:.1} MiB)", written.size as f64 / f64::from(1 << 20));
    println!("image     {}", image.references.join(", "));
    println!("digest    {}", written.digest);
    match &revision {
        Some(revision) => println!("revision  {revision}"),
        None => println!(
            "revision  none: {} is no git checkout, so the image has no such label",
            checkout.display()
        ),
    }
    println!("load it   cargo xtask cluster load-image {file}");
    Ok(())
}

/// Writes the image of this checkout as it is, for a cluster of its own: it claims no revision and prints nothing.
pub fn write(output: &Path) -> Result<()> {
    let checkout = places::workspace();
    let (product, builds) = Product::find(checkout)?;
    let binaries = product.build(checkout, &builds)?;
    compose(&product, None, &binaries)?.write(output)?;
    Ok(())
}

/// The folder with the binaries that the image has, built.
pub fn binaries() -> Result<PathBuf> {
    let checkout = places::workspace();
    let (product, builds) = Product::find(checkout)?;
    product.build(checkout, &builds)
}

/// A path as a person may paste it into a shell.
fn pasteable(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let text = path.strip_prefix(here).unwrap_or(path).display().to_string();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// The image: the binaries and the few files that programs expect of any system.
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

/// Makes the image from a copy of the sources in a folder with another name, and fails when it differs.
fn check_again(product: &Product, revision: Option<&str>, binaries: &Path, first: &Written) -> Result<()> {
    let desk =
        tempfile::Builder::new().prefix("knit-image-check-").tempdir().context("no temporary folder")?;
    let copy = desk.path().join("another checkout");
    copy_sources(places::workspace(), &copy)?;
    let again = product.build(&copy, &copy.join("target/image"))?;
    let second = compose(product, revision, &again)?.write(&desk.path().join("image.tar"))?;
    if first.digest == second.digest {
        println!("a second build in another folder gave the same image");
        return Ok(());
    }
    let mut differ = Vec::new();
    for name in &product.binaries {
        if std::fs::read(binaries.join(name))? != std::fs::read(again.join(name))? {
            differ.push(name.as_str());
        }
    }
    bail!(
        "the image is not reproducible: {} in this checkout, {} in another folder; binaries that differ: {}",
        first.digest,
        second.digest,
        if differ.is_empty() { "none".to_owned() } else { differ.join(", ") }
    );
}

/// Copies every file that git knows or would take, as it is now.
fn copy_sources(checkout: &Path, copy: &Path) -> Result<()> {
    std::fs::create_dir_all(copy).with_context(|| format!("cannot make {}", copy.display()))?;
    let listing = revision::git(checkout, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .context("cannot list the sources: the comparison needs a git checkout")?;
    // A file that was deleted but is still in the index is no source any more.
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
    fn labels_say_what_is_known_and_nothing_else() {
        let labels = |revision| composed(revision).labels;
        let named = labels(Some("abc-dirty"));
        assert_eq!(named["org.opencontainers.image.revision"], "abc-dirty");
        assert_eq!(named["org.opencontainers.image.version"], "1.2.3");
        assert!(!named.contains_key("org.opencontainers.image.source"));
        assert!(!labels(None).contains_key("org.opencontainers.image.revision"));
    }

    #[test]
    fn the_image_starts_knit_under_its_version() {
        let image = composed(None);
        assert_eq!(image.references, ["localhost/knit:1.2.3"]);
        assert_eq!(image.entrypoint, ["/usr/local/bin/knit"]);
    }

    #[test]
    fn a_path_with_a_space_is_quoted_for_the_shell() {
        assert_eq!(pasteable(Path::new("/nowhere/knit-0.1.0.tar")), "/nowhere/knit-0.1.0.tar");
        assert_eq!(pasteable(Path::new("/no where/it's.tar")), r"'/no where/it'\''s.tar'");
    }

    #[test]
    fn a_copy_of_the_sources_holds_new_files_and_no_ignored_or_deleted_ones() {
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
