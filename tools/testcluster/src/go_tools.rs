//! The pinned Go programs that the test cluster runs, built once into the cache.
//!
//! `tools/go/<module>/go.mod` and `go.sum` pin what is built. A program's path in the cache contains a hash of both and of
//! the linker flags, so that a new pin never uses an old binary. A file in the cache is always complete: it is built under
//! another name and renamed.

mod source_changes;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use knit_dev::packages;
use knit_dev::places;
use knit_dev::process;
use knit_dev::progress::Step;

/// The priority of builds that nothing waits for yet.
const LOW_PRIORITY: &str = "10";

/// How often the background checks whether it may go on.
const PAUSE: Duration = Duration::from_secs(1);
/// Whether something waits for a program: it builds what it needs itself, which is faster than in the background.
static IS_NEEDED: AtomicBool = AtomicBool::new(false);

/// A program built from Go source.
#[allow(missing_docs, reason = "each variant is a program's name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tool {
    KubeApiserver,
    KubeControllerManager,
    KubeScheduler,
    KubeProxy,
    Kubelet,
    Kubemark,
    Kubectl,
    Agnhost,
    E2eTest,
    Containerd,
    ContainerdShim,
    Ctr,
    Coredns,
    Cnitool,
    Helm,
    Multus,
    Cyclonus,
    CyclonusWorker,
    NetworkPolicyApi,
}

impl Tool {
    /// The file name.
    pub fn program(self) -> &'static str {
        match self {
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::KubeProxy => "kube-proxy",
            Self::Kubelet => "kubelet",
            Self::Kubemark => "kubemark",
            Self::Kubectl => "kubectl",
            Self::Agnhost => "agnhost",
            Self::E2eTest => "e2e.test",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::Coredns => "coredns",
            Self::Cnitool => "cnitool",
            Self::Helm => "helm",
            Self::Multus => "multus",
            Self::Cyclonus => "cyclonus",
            Self::CyclonusWorker => "worker",
            Self::NetworkPolicyApi => "network-policy-api.test",
        }
    }

    fn package(self) -> String {
        match self {
            Self::Agnhost => "k8s.io/kubernetes/test/images/agnhost".to_owned(),
            Self::E2eTest => "k8s.io/kubernetes/test/e2e".to_owned(),
            Self::Containerd | Self::ContainerdShim | Self::Ctr => {
                format!("github.com/containerd/containerd/v2/cmd/{}", self.program())
            }
            Self::Coredns => "github.com/coredns/coredns".to_owned(),
            Self::Cnitool => "github.com/containernetworking/cni/cnitool".to_owned(),
            Self::Helm => "helm.sh/helm/v4/cmd/helm".to_owned(),
            Self::Multus => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus".to_owned(),
            Self::Cyclonus | Self::CyclonusWorker => {
                format!("github.com/mattfenwick/cyclonus/cmd/{}", self.program())
            }
            Self::NetworkPolicyApi => "sigs.k8s.io/network-policy-api/conformance".to_owned(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.program()),
        }
    }

    /// Where the built program is, or will be.
    fn path(self) -> Result<PathBuf> {
        Ok(self.module().cached()?.join(self.program()))
    }

    /// The module that the program comes from.
    pub fn module(self) -> Module {
        match self {
            Self::Containerd | Self::ContainerdShim | Self::Ctr => Module::Containerd,
            Self::Coredns => Module::Coredns,
            Self::Cnitool => Module::Cnitool,
            Self::Helm => Module::Helm,
            Self::Multus => Module::Multus,
            Self::Cyclonus | Self::CyclonusWorker => Module::Cyclonus,
            Self::NetworkPolicyApi => Module::NetworkPolicyApi,
            _ => Module::Kubernetes,
        }
    }
}

/// A directory below `tools/go/`.
#[allow(missing_docs, reason = "each variant is a directory's name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Module {
    Kubernetes,
    Containerd,
    Coredns,
    Cnitool,
    Helm,
    Multus,
    Cyclonus,
    NetworkPolicyApi,
}

impl Module {
    /// The name of its directory, and the start of the name of its cache directory.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Containerd => "containerd",
            Self::Coredns => "coredns",
            Self::Cnitool => "cnitool",
            Self::Helm => "helm",
            Self::Multus => "multus",
            Self::Cyclonus => "cyclonus",
            Self::NetworkPolicyApi => "network-policy-api",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Kubernetes => "k8s.io/kubernetes",
            Self::Containerd => "github.com/containerd/containerd/v2",
            Self::Coredns => "github.com/coredns/coredns",
            Self::Cnitool => "github.com/containernetworking/cni",
            Self::Helm => "helm.sh/helm/v4",
            Self::Multus => "gopkg.in/k8snetworkplumbingwg/multus-cni.v4",
            Self::Cyclonus => "github.com/mattfenwick/cyclonus",
            Self::NetworkPolicyApi => "sigs.k8s.io/network-policy-api",
        }
    }

    fn source(self) -> PathBuf {
        places::workspace().join("tools/go").join(self.folder())
    }

    /// The version that go.mod pins, such as `v1.36.4`.
    pub fn version(self) -> Result<String> {
        let file = self.source().join("go.mod");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        pinned(&text, self.path())
            .with_context(|| format!("{} does not require {}", file.display(), self.path()))
    }

    fn linker_flags(self, version: &str) -> String {
        let stamp = match self {
            // Some Kubernetes components reject peers without a version.
            Self::Kubernetes => {
                let at = "k8s.io/component-base/version";
                let mut parts = version.trim_start_matches('v').split('.');
                let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!(" -X {at}.gitVersion={version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}")
            }
            Self::Containerd => format!(" -X {}/version.Version={version}", self.path()),
            Self::Coredns | Self::Cnitool | Self::Multus | Self::Cyclonus | Self::NetworkPolicyApi => {
                String::new()
            }
            Self::Helm => format!(" -X {}/internal/version.version={version}", self.path()),
        };
        format!("-s -w{stamp}")
    }

    /// The cache directory of this module's programs.
    fn cached(self) -> Result<PathBuf> {
        let version = self.version()?;
        let mut hash = Sha256::new();
        for file in ["go.mod", "go.sum"] {
            let path = self.source().join(file);
            hash.update(fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
        }
        hash.update(self.linker_flags(&version));
        for change in source_changes::of(self) {
            hash.update(change.to);
        }
        let short: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(folder()?.join(format!("{}-{version}-{short}", self.folder())))
    }
}

/// The source of a module in Go's module cache, downloaded if it is missing.
pub fn module_folder(module: Module) -> Result<PathBuf> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Download {
        dir: PathBuf,
    }
    packages::ensure_go()?;
    let mut go = Command::new("go");
    go.current_dir(module.source()).args(["mod", "download", "-json", module.path()]);
    let downloaded = process::output(&mut go)?;
    let downloaded: Download = serde_json::from_str(&downloaded)
        .with_context(|| format!("cannot read where go stores {}", module.path()))?;
    Ok(downloaded.dir)
}

/// The cache directory of all Go programs.
pub fn folder() -> Result<PathBuf> {
    Ok(places::cache()?.join("tools"))
}

fn pinned(gomod: &str, module: &str) -> Option<String> {
    gomod.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip_while(|field| *field == "require");
        (fields.next() == Some(module)).then(|| fields.next()).flatten().map(str::to_owned)
    })
}

/// Paths of built programs.
pub struct Tools(BTreeMap<Tool, PathBuf>);

impl Tools {
    /// The program's path. The program must have been passed to [`ensure`].
    pub fn path(&self, tool: Tool) -> &Path {
        self.0.get(&tool).expect("the tool was passed to `ensure`")
    }
}

/// Builds the programs that are not in the cache yet.
pub fn ensure(tools: &[Tool]) -> Result<Tools> {
    let mut paths = BTreeMap::new();
    for &tool in tools {
        let path = tool.path()?;
        if !path.exists() {
            packages::ensure_go()?;
            IS_NEEDED.store(true, Ordering::Relaxed);
            let built = build(tool, &path);
            IS_NEEDED.store(false, Ordering::Relaxed);
            built?;
        }
        paths.insert(tool, path);
    }
    Ok(Tools(paths))
}

/// Builds the programs that are not in the cache yet in the background, while other tests run: it takes minutes. [`ensure`]
/// waits for the one that is being built, and builds the rest itself.
pub fn build_ahead(tools: impl IntoIterator<Item = Tool>) -> Result<()> {
    let mut missing = Vec::new();
    for tool in tools {
        let path = tool.path()?;
        if !path.exists() {
            missing.push((tool, path));
        }
    }
    if !missing.is_empty() && packages::ensure_go().is_ok() {
        eprintln!("  {} programs of the test cluster are built in the background (once)", missing.len());
        std::thread::spawn(move || {
            for (tool, path) in missing {
                while IS_NEEDED.load(Ordering::Relaxed) {
                    std::thread::sleep(PAUSE);
                }
                // It ends with this process.
                let mut go = Command::new("setpriv");
                go.args(["--pdeathsig", "TERM", "nice", "-n", LOW_PRIORITY, "go"]);
                if build_with(go, tool, &path, None).is_err() {
                    break;
                }
            }
        });
    }
    Ok(())
}

fn build(tool: Tool, path: &Path) -> Result<()> {
    let step = format!("build {} {} (once)", tool.program(), tool.module().version()?);
    build_with(Command::new("go"), tool, path, Some(step))
}

/// Builds a program with this `go`, and shows it as a step.
fn build_with(mut go: Command, tool: Tool, path: &Path, step: Option<String>) -> Result<()> {
    let folder = path.parent().expect("a program's path has a parent");
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _lock = lock(&folder.join(".lock"))?;
    if path.exists() {
        return Ok(());
    }
    let module = tool.module();
    let version = module.version()?;
    let step = step.map(Step::start);
    let unfinished = folder.join(format!(".{}.unfinished", tool.program()));
    go.env("CGO_ENABLED", "0");
    match tool {
        Tool::E2eTest | Tool::NetworkPolicyApi => go.args(["test", "-C"]).arg(module.source()).arg("-c"),
        _ => go.args(["build", "-C"]).arg(module.source()),
    };
    go.args(["-trimpath", "-buildvcs=false", "-ldflags"]).arg(module.linker_flags(&version));
    let _copy = source_changes::apply(module, &mut go)?;
    go.arg("-o").arg(&unfinished).arg(tool.package());
    process::output(&mut go)?;
    fs::rename(&unfinished, path)
        .with_context(|| format!("cannot rename the build result to {}", path.display()))?;
    if let Some(step) = step {
        step.done();
    }
    Ok(())
}

/// Locks a file, so that only one process builds: the second one waits and then finds the result. The kernel releases the
/// lock when its owner ends.
pub fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let step = Step::start("wait for another process that builds the same");
            file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
            step.done();
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_version_is_read_from_either_form_of_require() {
        assert_eq!(pinned("require a.io/b v1.2.3\n", "a.io/b").as_deref(), Some("v1.2.3"));
        assert_eq!(
            pinned("require (\n\ta.io/bc v9 // indirect\n\ta.io/b v1.2.3 // indirect\n)\n", "a.io/b")
                .as_deref(),
            Some("v1.2.3")
        );
        assert_eq!(pinned("tool a.io/b\n", "a.io/b"), None);
    }

    #[test]
    fn kubernetes_is_stamped_with_its_version() {
        let flags = Module::Kubernetes.linker_flags("v1.36.4");
        assert!(flags.contains("gitVersion=v1.36.4"), "{flags}");
        assert!(flags.contains("gitMajor=1 ") && flags.ends_with("gitMinor=36"), "{flags}");
    }
}
