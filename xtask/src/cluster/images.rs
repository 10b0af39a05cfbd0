//! The images that a cluster starts with, made here because there is no registry, and kept in the cache.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::rootfs;
use crate::gotools::{self, Module, Tool, Tools};
use crate::places;
use crate::progress::Step;

/// What holds a pod's namespaces open.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// The reference network's name server.
pub const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.12.4";
/// The image that most tests of Knit run in their pods: agnhost and ordinary tools.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const DNS_TESTING: &str = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0";
const NGINX: &str = "registry.k8s.io/e2e-test-images/nginx:1.15-4";

/// Changes when this file or `rootfs.rs` makes something else of the same programs.
const EDITION: u32 = 1;

/// An image: one layer, and how it starts.
struct Image<'a> {
    tags: &'a [&'a str],
    layer: &'a Path,
    entrypoint: &'a [&'a str],
    command: &'a [&'a str],
}

/// The archive of all images, made if it is not in the cache. Needs agnhost and CoreDNS.
pub fn ensure(tools: &Tools) -> Result<PathBuf> {
    let folder = places::cache()?.join("images");
    let (agnhost, coredns) = (tools.path(Tool::Agnhost), tools.path(Tool::Coredns));
    let mut key = Sha256::new();
    // The paths hold the programs' versions and a hash of how they were built.
    for part in [agnhost, coredns] {
        key.update(part.as_os_str().as_encoded_bytes());
    }
    let short: String = key.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let version = Module::Kubernetes.version()?;
    let archive = folder.join(format!("cluster-{version}-{EDITION}-{short}.tar"));
    if !archive.exists() {
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let _lock = gotools::lock(&folder.join(".lock"))?;
        if !archive.exists() {
            make(&folder.join(".unfinished"), agnhost, coredns, &archive)?;
        }
    }
    Ok(archive)
}

fn make(work: &Path, agnhost: &Path, coredns: &Path, archive: &Path) -> Result<()> {
    let step = Step::start("make the test images (once)");
    // What a run that was killed has left.
    if work.exists() {
        fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir(work).with_context(|| format!("cannot make {}", work.display()))?;
    let layer = |name: &str, fill: &dyn Fn(&Path) -> Result<()>| -> Result<PathBuf> {
        let root = work.join(name);
        fs::create_dir(&root)?;
        fill(&root)?;
        let file = work.join(format!("{name}.tar"));
        write_layer(&root, &file)?;
        Ok(file)
    };
    let tools_layer = layer("tools", &|root| rootfs::make_tools(root, agnhost))?;
    let pause_layer = layer("pause", &rootfs::make_pause)?;
    let coredns_layer = layer("coredns", &|root| rootfs::make_coredns(root, coredns))?;
    let wait = "trap 'exit 0' TERM INT; while :; do /bin/busybox sleep 86400 & wait $!; done";
    let images = [
        Image {
            tags: &[PAUSE],
            layer: &pause_layer,
            entrypoint: &["/bin/busybox", "sh", "-c", wait],
            command: &[],
        },
        Image { tags: &[AGNHOST], layer: &tools_layer, entrypoint: &["/agnhost"], command: &["pause"] },
        Image { tags: &[BUSYBOX, DNS_TESTING], layer: &tools_layer, entrypoint: &[], command: &["sh"] },
        Image {
            tags: &[NGINX],
            layer: &tools_layer,
            entrypoint: &["/agnhost", "netexec", "--http-port=80"],
            command: &[],
        },
        Image { tags: &[COREDNS], layer: &coredns_layer, entrypoint: &["/coredns"], command: &[] },
    ];
    let unfinished = work.join("archive");
    write_archive(&images, &unfinished)?;
    fs::rename(&unfinished, archive).with_context(|| format!("cannot put {} in place", archive.display()))?;
    fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))?;
    step.done();
    Ok(())
}

/// Writes a folder as an image's layer: sorted, owned by root, without times.
fn write_layer(root: &Path, file: &Path) -> Result<()> {
    let mut tar = tar::Builder::new(io::BufWriter::new(File::create(file)?));
    tar.mode(tar::HeaderMode::Deterministic);
    tar.follow_symlinks(false);
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let mut names: Vec<_> = fs::read_dir(root.join(&folder))?
            .map(|entry| entry.map(|e| e.file_name()))
            .collect::<io::Result<_>>()?;
        names.sort();
        for name in names {
            let inside = folder.join(&name);
            let path = root.join(&inside);
            let is_folder = path.symlink_metadata()?.is_dir();
            // The deterministic mode drops the sticky bit of /tmp.
            let mut header = tar::Header::new_gnu();
            header.set_metadata_in_mode(&path.symlink_metadata()?, tar::HeaderMode::Deterministic);
            if is_folder {
                let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata()?.permissions());
                header.set_mode(mode & 0o7777);
                tar.append_data(&mut header, &inside, io::empty())?;
                folders.push(inside);
            } else if path.is_symlink() {
                header.set_size(0);
                tar.append_link(&mut header, &inside, fs::read_link(&path)?)?;
            } else {
                tar.append_data(&mut header, &inside, File::open(&path)?)?;
            }
        }
    }
    tar.into_inner()?.into_inner()?;
    Ok(())
}

/// Writes a docker-archive: a configuration per image, each layer once, and a manifest that names them.
fn write_archive(images: &[Image<'_>], file: &Path) -> Result<()> {
    let mut tar = tar::Builder::new(io::BufWriter::new(File::create(file)?));
    let mut manifest = Vec::new();
    let mut written = Vec::new();
    for image in images {
        let digest = digest(image.layer)?;
        let layer = format!("{digest}.tar");
        if !written.contains(&digest) {
            let size = image.layer.metadata()?.len();
            append(&mut tar, &layer, size, File::open(image.layer)?)?;
            written.push(digest.clone());
        }
        let config = serde_json::to_vec(&config(image, &digest))?;
        let name: String = Sha256::digest(&config).iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{name}.json");
        append(&mut tar, &name, config.len() as u64, config.as_slice())?;
        manifest.push(json!({"Config": name, "RepoTags": image.tags, "Layers": [layer]}));
    }
    let manifest = serde_json::to_vec(&Value::from(manifest))?;
    append(&mut tar, "manifest.json", manifest.len() as u64, manifest.as_slice())?;
    tar.into_inner()?.into_inner()?;
    Ok(())
}

fn config(image: &Image<'_>, layer: &str) -> Value {
    json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    })
}

fn append(tar: &mut tar::Builder<impl io::Write>, name: &str, size: u64, contents: impl Read) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, contents)
        .with_context(|| format!("cannot write {name} of the image archive"))
}

fn digest(file: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(file)?, &mut hash).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
