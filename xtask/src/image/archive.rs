//! Container images as one file, without docker: an OCI image layout that `docker load` also takes.
//!
//! The same image gives the same bytes: files are sorted and carry no time, JSON keys are sorted, and gzip
//! headers hold neither time nor name. Layers go through disk, never through memory.

mod digest;
mod layer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};

use self::digest::Hashing;
pub use self::layer::Layer;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// An image is a function of its contents, and the time when it was made is not one of them.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// An image before it is written. Fields left empty leave the choice to whoever runs it.
#[derive(Default)]
pub struct Image {
    /// Every name that the image goes by, each with a tag: `localhost/knit:0.1.0`.
    pub references: Vec<String>,
    /// Go's name of the processor: `amd64`.
    pub architecture: String,
    /// The program that always runs, and its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments that a pod may replace.
    pub cmd: Vec<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// `uid:gid`, or names from the image's `/etc/passwd`.
    pub user: String,
    /// The folder that the program starts in.
    pub workdir: String,
    /// What the image says about itself.
    pub labels: BTreeMap<String, String>,
    /// The lowest first.
    pub layers: Vec<Layer>,
}

/// What was written.
pub struct Written {
    /// The digest of the image's manifest: what container runtimes call the image's digest.
    pub digest: String,
    /// The size of the file in bytes.
    pub size: u64,
}

/// A layer on disk, compressed.
struct Packed {
    /// The digest of the compressed bytes.
    digest: String,
    /// The digest of the tar inside.
    diff_id: String,
    size: u64,
}

impl Image {
    /// Writes the image into one file. The file is there complete or, after an error, as it was before.
    pub fn write(&self, output: &Path) -> Result<Written> {
        self.check()?;
        let folder = match output.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let desk = tempfile::Builder::new()
            .prefix(".image-")
            .tempdir_in(folder)
            .with_context(|| format!("cannot make a folder for unfinished files in {}", folder.display()))?;

        let mut blobs = BTreeSet::new();
        let mut archive = Layer::default();
        let mut packed = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            let file = desk.path().join(format!("layer-{number}"));
            let one = pack(layer, &file)?;
            if blobs.insert(one.digest.clone()) {
                archive.add_file_from(blob_path(&one.digest), 0o644, file)?;
            }
            packed.push(one);
        }

        let config = self.config(&packed).to_string();
        let config_digest = digest::of(config.as_bytes());
        let manifest = manifest(&config, &packed).to_string();
        let manifest_digest = digest::of(manifest.as_bytes());
        let index = self.index(&manifest, &manifest_digest)?;
        let docker = json!([{
            "Config": blob_path(&config_digest),
            "RepoTags": self.references,
            "Layers": packed.iter().map(|layer| blob_path(&layer.digest)).collect::<Vec<_>>(),
        }]);
        archive.add_file(blob_path(&config_digest), 0o644, config)?;
        archive.add_file(blob_path(&manifest_digest), 0o644, manifest)?;
        archive.add_file("index.json", 0o644, index.to_string())?;
        archive.add_file("manifest.json", 0o644, docker.to_string())?;
        archive.add_file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;

        let unfinished = desk.path().join("archive");
        let mut file = archive.write_tar(create(&unfinished)?)?;
        file.flush().with_context(|| format!("cannot write {}", unfinished.display()))?;
        let size = file.get_ref().metadata()?.len();
        std::fs::rename(&unfinished, output).with_context(|| format!("cannot make {}", output.display()))?;
        Ok(Written { digest: manifest_digest, size })
    }

    fn check(&self) -> Result<()> {
        if self.references.is_empty() {
            bail!("image: it has no reference, so nothing could name it after it is loaded");
        }
        let name = &self.references[0];
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.references.iter().find(|reference| !seen.insert(*reference)) {
            bail!("image {name}: the reference {twice} is there twice");
        }
        if self.architecture.is_empty() {
            bail!("image {name}: no architecture");
        }
        if self.layers.is_empty() {
            bail!("image {name}: no layer, so there is nothing to run");
        }
        Ok(())
    }

    fn config(&self, packed: &[Packed]) -> Value {
        let env: Vec<String> = self.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let diff_ids: Vec<&str> = packed.iter().map(|layer| layer.diff_id.as_str()).collect();
        let history: Vec<Value> =
            packed.iter().map(|_| json!({ "created": CREATED, "created_by": "cargo xtask" })).collect();
        json!({
            "architecture": self.architecture,
            "os": "linux",
            "created": CREATED,
            "config": {
                "Entrypoint": self.entrypoint,
                "Cmd": self.cmd,
                "Env": env,
                "User": self.user,
                "WorkingDir": self.workdir,
                "Labels": self.labels,
            },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
            "history": history,
        })
    }

    /// One descriptor for each reference: containerd makes an image of each.
    fn index(&self, manifest: &str, manifest_digest: &str) -> Result<Value> {
        let mut manifests = Vec::new();
        for reference in &self.references {
            let annotations = json!({
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": tag(reference)?,
            });
            manifests.push(json!({
                "mediaType": MANIFEST_TYPE,
                "digest": manifest_digest,
                "size": manifest.len(),
                "platform": { "architecture": self.architecture, "os": "linux" },
                "annotations": annotations,
            }));
        }
        Ok(json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": manifests,
        }))
    }
}

fn manifest(config: &str, packed: &[Packed]) -> Value {
    let layers: Vec<Value> = packed
        .iter()
        .map(|layer| json!({ "mediaType": LAYER_TYPE, "digest": layer.digest, "size": layer.size }))
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": { "mediaType": CONFIG_TYPE, "digest": digest::of(config.as_bytes()), "size": config.len() },
        "layers": layers,
    })
}

/// The tag of a reference. A colon before the last slash belongs to a port.
fn tag(reference: &str) -> Result<&str> {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    match last.split_once(':') {
        Some((name, tag)) if !name.is_empty() && !tag.is_empty() && !reference.contains('@') => Ok(tag),
        _ => {
            bail!("image reference {reference:?}: a name with a tag is needed, such as localhost/knit:0.1.0")
        }
    }
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

fn pack(layer: &Layer, file: &Path) -> Result<Packed> {
    // The header's fields are all fixed: no name, no time, and 255 for an unknown system.
    let gzip = GzBuilder::new()
        .mtime(0)
        .operating_system(255)
        .write(Hashing::new(create(file)?), Compression::default());
    let (gzip, diff_id, _) = layer.write_tar(Hashing::new(gzip))?.finish();
    let (mut file, digest, size) = gzip.finish().context("cannot compress a layer")?.finish();
    file.flush().context("cannot write a layer")?;
    Ok(Packed { digest, diff_id, size })
}

fn create(file: &Path) -> Result<BufWriter<File>> {
    let made = File::create(file).with_context(|| format!("cannot make {}", file.display()))?;
    Ok(BufWriter::with_capacity(1 << 18, made))
}

#[cfg(test)]
mod tests;
