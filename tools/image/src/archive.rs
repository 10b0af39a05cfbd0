//! Writes container images as one file, without docker: an OCI image layout that `docker load` also accepts.
//!
//! The same image gives the same bytes: files are sorted and have no times, JSON keys are sorted, and gzip headers have
//! neither time nor name. Layers are buffered on disk, never in memory.

mod digest;
mod layer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};

use self::digest::HashingWriter;
pub use self::layer::Layer;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// A fixed creation time, so that an image depends on its contents only.
const CREATED: &str = "1970-01-01T00:00:00Z";

/// An image before it is written. An empty field means the runtime's default.
#[derive(Default)]
pub struct Image {
    /// All names of the image, each with a tag: `localhost/knit:0.1.0`.
    pub references: Vec<String>,
    /// Go's name of the CPU architecture: `amd64`.
    pub architecture: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// The arguments that a pod may replace.
    pub cmd: Vec<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// `uid:gid`, or names from the image's `/etc/passwd`.
    pub user: String,
    /// The working directory.
    pub workdir: String,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
    /// The lowest layer first.
    pub layers: Vec<Rc<Layer>>,
}

/// Digest and size of a written archive.
pub struct ArchiveInfo {
    /// The digest of the first image's manifest, which container runtimes call the image's digest.
    pub digest: String,
    /// The size of the file in bytes.
    pub size: u64,
}

/// A compressed layer on disk.
#[derive(Clone)]
struct PackedLayer {
    /// The digest of the compressed bytes.
    digest: String,
    /// The digest of the uncompressed tar.
    diff_id: String,
    size: u64,
}

impl Image {
    /// Writes the image into one file, atomically: after an error an old file is unchanged.
    pub fn write(&self, output: &Path) -> Result<ArchiveInfo> {
        write_all(std::slice::from_ref(self), output)
    }

    fn check(&self) -> Result<()> {
        if self.references.is_empty() {
            bail!("image without a reference");
        }
        let name = &self.references[0];
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.references.iter().find(|reference| !seen.insert(*reference)) {
            bail!("image {name}: duplicate reference {twice}");
        }
        if self.architecture.is_empty() {
            bail!("image {name}: no architecture");
        }
        if self.layers.is_empty() {
            bail!("image {name}: no layer");
        }
        Ok(())
    }

    fn config(&self, packed: &[PackedLayer]) -> Value {
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

    /// One descriptor for each reference: containerd creates an image for each.
    fn descriptors(&self, manifest: &str, manifest_digest: &str) -> Result<Vec<Value>> {
        let mut descriptors = Vec::new();
        for reference in &self.references {
            let annotations = json!({
                "io.containerd.image.name": reference,
                "org.opencontainers.image.ref.name": tag(reference)?,
            });
            descriptors.push(json!({
                "mediaType": MANIFEST_TYPE,
                "digest": manifest_digest,
                "size": manifest.len(),
                "platform": { "architecture": self.architecture, "os": "linux" },
                "annotations": annotations,
            }));
        }
        Ok(descriptors)
    }
}

/// Writes several images into one file. A layer that images share is compressed and stored once.
pub fn write_all(images: &[Image], output: &Path) -> Result<ArchiveInfo> {
    images.iter().try_for_each(Image::check)?;
    let folder = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let work = tempfile::Builder::new()
        .prefix(".image-")
        .tempdir_in(folder)
        .with_context(|| format!("cannot create a temporary directory in {}", folder.display()))?;

    let mut blobs =
        Blobs { work: work.path(), archive: Layer::default(), stored: BTreeSet::new(), packed: Vec::new() };
    let (mut descriptors, mut docker, mut digests) = (Vec::new(), Vec::new(), Vec::new());
    for image in images {
        let packed: Vec<PackedLayer> =
            image.layers.iter().map(|layer| blobs.pack(layer)).collect::<Result<_>>()?;
        let config = image.config(&packed).to_string();
        let manifest = manifest(&config, &packed).to_string();
        let config_digest = blobs.add(config)?;
        let manifest_digest = blobs.add(manifest.clone())?;
        descriptors.extend(image.descriptors(&manifest, &manifest_digest)?);
        docker.push(json!({
            "Config": blob_path(&config_digest),
            "RepoTags": image.references,
            "Layers": packed.iter().map(|layer| blob_path(&layer.digest)).collect::<Vec<_>>(),
        }));
        digests.push(manifest_digest);
    }
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": descriptors,
    });
    let mut archive = blobs.archive;
    archive.add_file("index.json", 0o644, index.to_string())?;
    archive.add_file("manifest.json", 0o644, Value::from(docker).to_string())?;
    archive.add_file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;

    let unfinished = work.path().join("archive");
    let mut file = archive.write_tar(create(&unfinished)?)?;
    file.flush().with_context(|| format!("cannot write {}", unfinished.display()))?;
    let size = file.get_ref().metadata()?.len();
    std::fs::rename(&unfinished, output).with_context(|| format!("cannot write {}", output.display()))?;
    let digest = digests.into_iter().next().context("an archive needs an image")?;
    Ok(ArchiveInfo { digest, size })
}

/// The archive's blobs, each stored once under its digest.
struct Blobs<'a> {
    /// The directory for compressed layers.
    work: &'a Path,
    archive: Layer,
    stored: BTreeSet<String>,
    /// Layers that are already compressed.
    packed: Vec<(Rc<Layer>, PackedLayer)>,
}

impl Blobs<'_> {
    fn pack(&mut self, layer: &Rc<Layer>) -> Result<PackedLayer> {
        if let Some((_, packed)) = self.packed.iter().find(|(other, _)| Rc::ptr_eq(other, layer)) {
            return Ok(packed.clone());
        }
        let file = self.work.join(format!("layer-{}", self.packed.len()));
        let packed = pack(layer, &file)?;
        if self.stored.insert(packed.digest.clone()) {
            self.archive.add_file_from(blob_path(&packed.digest), 0o644, file)?;
        }
        self.packed.push((Rc::clone(layer), packed.clone()));
        Ok(packed)
    }

    fn add(&mut self, text: String) -> Result<String> {
        let digest = digest::of(text.as_bytes());
        if self.stored.insert(digest.clone()) {
            self.archive.add_file(blob_path(&digest), 0o644, text)?;
        }
        Ok(digest)
    }
}

fn manifest(config: &str, packed: &[PackedLayer]) -> Value {
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
            bail!("image reference {reference:?}: expected a name with a tag, such as localhost/knit:0.1.0")
        }
    }
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

fn pack(layer: &Layer, file: &Path) -> Result<PackedLayer> {
    // All header fields are fixed: no name, no time, and 255 for an unknown operating system.
    let gzip = GzBuilder::new()
        .mtime(0)
        .operating_system(255)
        .write(HashingWriter::new(create(file)?), Compression::default());
    let (gzip, diff_id, _) = layer.write_tar(HashingWriter::new(gzip))?.finish();
    let (mut file, digest, size) = gzip.finish().context("cannot compress a layer")?.finish();
    file.flush().context("cannot write a layer")?;
    Ok(PackedLayer { digest, diff_id, size })
}

fn create(file: &Path) -> Result<BufWriter<File>> {
    let created = File::create(file).with_context(|| format!("cannot create {}", file.display()))?;
    Ok(BufWriter::with_capacity(1 << 18, created))
}

#[cfg(test)]
mod tests;
