//! The images that a cluster starts with, built here because there is no registry, and cached.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::rootfs;
use crate::go_tools::{self, Module, Tool, Tools};
use knit_dev::places;
use knit_dev::progress::Step;
use knit_image::archive::{Image, Layer, write_all};

/// The sandbox image, which holds a pod's namespaces open.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
/// CoreDNS.
pub const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.12.4";
/// The image that most tests of Knit run in their pods: agnhost and ordinary tools.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
/// The image of Cyclonus's pods.
const CYCLONUS_WORKER: &str = "docker.io/mfenwick100/cyclonus-worker:latest";
/// The tag that the tests of ClusterNetworkPolicies name.
const AGNHOST_OF_CLUSTER_POLICIES: &str = "registry.k8s.io/e2e-test-images/agnhost:2.45";
const BUSYBOX: &str = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1";
const DNS_TESTING: &str = "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0";
const NGINX: &str = "registry.k8s.io/e2e-test-images/nginx:1.15-4";

/// Incremented when this file or `rootfs.rs` builds other images from the same programs.
const EDITION: u32 = 3;

/// The archive of all images, built if it is not in the cache. Needs agnhost and CoreDNS.
pub fn ensure(tools: &Tools) -> Result<PathBuf> {
    let folder = places::cache()?.join("images");
    let (agnhost, coredns) = (tools.path(Tool::Agnhost), tools.path(Tool::Coredns));
    let mut key = Sha256::new();
    // The paths contain the programs' versions and a hash of their build.
    for component in [agnhost, coredns] {
        key.update(component.as_os_str().as_encoded_bytes());
    }
    let short: String = key.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let version = Module::Kubernetes.version()?;
    let archive = folder.join(format!("cluster-{version}-{EDITION}-{short}.tar"));
    if !archive.exists() {
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let _lock = go_tools::lock(&folder.join(".lock"))?;
        if !archive.exists() {
            build(&folder.join(".unfinished"), agnhost, coredns, &archive)?;
        }
    }
    Ok(archive)
}

fn build(work: &Path, agnhost: &Path, coredns: &Path, archive: &Path) -> Result<()> {
    let step = Step::start("build the test images (once)");
    // A killed run may have left it.
    if work.exists() {
        fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    fs::create_dir(work).with_context(|| format!("cannot create {}", work.display()))?;
    let layer = |name: &str, fill: &dyn Fn(&Path) -> Result<()>| -> Result<Rc<Layer>> {
        let root = work.join(name);
        fs::create_dir(&root)?;
        fill(&root)?;
        let mut layer = Layer::default();
        layer.add_tree("/", &root)?;
        Ok(Rc::new(layer))
    };
    let tools = layer("tools", &|root| rootfs::create_tools(root, agnhost))?;
    let bash = layer("bash", &rootfs::create_bash)?;
    let pause = layer("pause", &rootfs::create_pause)?;
    let coredns = layer("coredns", &|root| rootfs::create_coredns(root, coredns))?;
    let wait = "trap 'exit 0' TERM INT; while :; do /bin/busybox sleep 86400 & wait $!; done";
    let starts_agnhost =
        |references: &[&str], layers: &[&Rc<Layer>]| image(references, layers, &["/agnhost"], &["pause"]);
    let images = [
        image(&[PAUSE], &[&pause], &["/bin/busybox", "sh", "-c", wait], &[]),
        starts_agnhost(&[AGNHOST], &[&tools]),
        starts_agnhost(&[AGNHOST_OF_CLUSTER_POLICIES], &[&tools, &bash]),
        image(&[BUSYBOX, DNS_TESTING], &[&tools], &[], &["sh"]),
        image(&[NGINX], &[&tools], &["/agnhost", "netexec", "--http-port=80"], &[]),
        image(&[COREDNS], &[&coredns], &["/coredns"], &[]),
    ];
    write_all(&images, archive)?;
    fs::remove_dir_all(work).with_context(|| format!("cannot remove {}", work.display()))?;
    step.done();
    Ok(())
}

/// Writes the image of Cyclonus's pods, which only its suite needs.
pub fn write_cyclonus_worker(tools: &Tools, archive: &Path) -> Result<()> {
    let root = tempfile::tempdir().context("cannot create a directory for an image")?;
    for tool in [Tool::Agnhost, Tool::CyclonusWorker] {
        let (from, to) = (tools.path(tool), root.path().join(tool.program()));
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let mut layer = Layer::default();
    layer.add_tree("/", root.path())?;
    write_all(&[image(&[CYCLONUS_WORKER], &[&Rc::new(layer)], &["/worker"], &[])], archive)?;
    Ok(())
}

/// An image with these layers, the lowest first.
fn image(references: &[&str], layers: &[&Rc<Layer>], entrypoint: &[&str], cmd: &[&str]) -> Image {
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    Image {
        references: owned(references),
        architecture: if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }.to_owned(),
        entrypoint: owned(entrypoint),
        cmd: owned(cmd),
        env: [("PATH".to_owned(), path.to_owned())].into(),
        workdir: "/".to_owned(),
        layers: layers.iter().map(|layer| Rc::clone(layer)).collect(),
        ..Image::default()
    }
}
