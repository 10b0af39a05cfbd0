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
use crate::progress::Step;
use crate::{places, process};

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

    let file = output.display();
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
        layers: vec![layer],
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
