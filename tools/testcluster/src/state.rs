//! The record of a cluster, written before the cluster is created: a directory per cluster with one file.
//!
//! Two locks, both released by the kernel when their owner ends: one on the directory of all clusters while slots are
//! allocated, one on the cluster's own directory while `up` or `down` works on it.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::layout::{Addresses, Names, SLOTS, STATE_DIR, node_name};
use crate::go_tools::Tool;
use knit_dev::process;

/// How long a command waits for another command that works on the same cluster.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The pod network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// None: nodes stay NotReady until a network is installed
    None,
    /// Debian's bridge plugins, routes between nodes, kube-proxy and CoreDNS
    Reference,
    /// Knit's agent on each node, called through its CNI shim; routes between nodes, kube-proxy and CoreDNS
    KnitCni,
    /// Knit as the cluster's network, installed from `deploy/primary`; kube-proxy and CoreDNS
    Knit,
}

/// What translates the addresses of Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceProxy {
    /// kube-proxy in nftables mode
    #[default]
    KubeProxy,
    /// Knit's agents, with `--network knit`: kube-proxy does not run
    Knit,
}

impl Network {
    /// Whether Services and CoreDNS work.
    pub fn has_services(self) -> bool {
        matches!(self, Self::Reference | Self::KnitCni | Self::Knit)
    }

    /// Whether Knit's agents run on the nodes as plain processes.
    pub fn has_agents(self) -> bool {
        self == Self::KnitCni
    }
}

/// A cluster, as recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cluster {
    name: String,
    slot: u8,
    /// Number of nodes.
    pub nodes: u8,
    /// The pod network.
    pub network: Network,
    /// What translates the addresses of Services.
    #[serde(default)]
    pub service_proxy: ServiceProxy,
    /// Whether `up` has finished.
    pub complete: bool,
    /// The programs that this cluster runs, by file name: a later pin does not change a running cluster.
    tools: BTreeMap<String, PathBuf>,
}

/// An exclusive lock on a cluster.
pub struct ClusterLock {
    _folder: File,
}

impl Cluster {
    /// Records a new cluster and locks it.
    pub fn create(
        names: &Names,
        nodes: u8,
        network: Network,
        service_proxy: ServiceProxy,
        tools: BTreeMap<String, PathBuf>,
    ) -> Result<(Self, ClusterLock)> {
        let _all = lock_all()?;
        if names.state().exists() {
            let name = names.name();
            match Self::find(names)? {
                Some(cluster) if cluster.complete => bail!(
                    "cluster {name} is already up: use it, remove it with `cargo xtask cluster down --name {name}`, \
                     or use another --name"
                ),
                _ => bail!(
                    "cluster {name} was left unfinished (or another `up` is running): remove it with \
                     `cargo xtask cluster down --name {name}`, then retry"
                ),
            }
        }
        let used: Vec<u8> = list()?.iter().map(|cluster| cluster.slot).collect();
        let mut slot = None;
        for candidate in (0..SLOTS).filter(|candidate| !used.contains(candidate)) {
            if !is_routed(&Addresses::for_slot(candidate).node_subnet())? {
                slot = Some(candidate);
                break;
            }
        }
        let slot = slot.context(
            "no addresses left for another cluster: each of 172.30.0.0/24 to 172.30.15.0/24 is in use (see `ip route`)",
        )?;
        create_folder(&names.state())?;
        let locked = lock(names)?;
        let cluster = Self {
            name: names.name().to_owned(),
            slot,
            nodes,
            network,
            service_proxy,
            complete: false,
            tools,
        };
        cluster.write()?;
        Ok((cluster, locked))
    }

    /// The cluster of that name, or an error that says how to create it.
    pub fn open(names: &Names) -> Result<Self> {
        Self::find(names)?.with_context(|| {
            let others: Vec<String> =
                list().unwrap_or_default().into_iter().map(|cluster| cluster.name).collect();
            let others =
                if others.is_empty() { String::new() } else { format!(" (existing: {})", others.join(", ")) };
            format!("there is no cluster {}{others}: create it with `cargo xtask cluster up`", names.name())
        })
    }

    /// The cluster of that name, if it is recorded.
    pub fn find(names: &Names) -> Result<Option<Self>> {
        let file = names.state().join("cluster.json");
        if !file.exists() {
            return Ok(None);
        }
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).map(Some).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Records that `up` has finished.
    pub fn set_complete(&mut self) -> Result<()> {
        self.complete = true;
        self.write()
    }

    /// Records that another program translates the addresses of Services.
    pub fn set_service_proxy(&mut self, proxy: ServiceProxy) -> Result<()> {
        self.service_proxy = proxy;
        self.write()
    }

    fn write(&self) -> Result<()> {
        let file = self.folder("").join("cluster.json");
        let unfinished = self.folder("").join(".cluster.json");
        fs::write(&unfinished, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&unfinished, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// The names that follow from the cluster's name.
    pub fn names(&self) -> Names {
        Names::new(&self.name).expect("a record is written with a name that was checked")
    }

    /// The addresses of this cluster.
    pub fn addresses(&self) -> Addresses {
        Addresses::for_slot(self.slot)
    }

    /// The numbers of its nodes.
    pub fn node_numbers(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.nodes
    }

    /// A path in the cluster's state directory.
    pub fn folder(&self, below: &str) -> PathBuf {
        Path::new(STATE_DIR).join(&self.name).join(below)
    }

    /// A path in one node's directory.
    pub fn node_folder(&self, node: u8, below: &str) -> PathBuf {
        self.folder("nodes").join(node_name(node)).join(below)
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder("kubeconfig")
    }

    /// A program that this cluster runs.
    pub fn tool(&self, tool: Tool) -> Result<&Path> {
        let path = self.tools.get(tool.program()).map(PathBuf::as_path);
        path.with_context(|| format!("cluster {}: its record names no {}", self.name, tool.program()))
    }

    /// `kubectl` as the cluster's admin.
    pub fn kubectl(&self) -> Result<Command> {
        let mut kubectl = Command::new(self.tool(Tool::Kubectl)?);
        kubectl.env("KUBECONFIG", self.kubeconfig());
        // Its cache would otherwise stay in the home directory after the cluster is removed.
        kubectl.env("KUBECACHEDIR", self.folder("kubectl-cache"));
        Ok(kubectl)
    }
}

/// All recorded clusters.
pub fn list() -> Result<Vec<Cluster>> {
    let Ok(entries) = fs::read_dir(STATE_DIR) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        if let Ok(names) = Names::new(&name.to_string_lossy()) {
            found.extend(Cluster::find(&names)?);
        }
    }
    found.sort_by(|a: &Cluster, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Locks a cluster whose directory exists. Waits for a moment: a child of a command that was just killed holds the lock until
/// it executes another program.
pub fn lock(names: &Names) -> Result<ClusterLock> {
    let folder = names.state();
    let file = File::open(&folder).with_context(|| format!("cannot open {}", folder.display()))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(ClusterLock { _folder: file }),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => bail!(
                "cluster {}: another `cargo xtask cluster up` or `down` is running: wait for it, or stop it",
                names.name()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", folder.display()));
            }
        }
    }
}

/// Removes a cluster's directory, and the directory of all clusters when it is empty.
pub fn remove(names: &Names) -> Result<()> {
    let folder = names.state();
    let start = Instant::now();
    loop {
        match fs::remove_dir_all(&folder) {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            // A kubectl that runs meanwhile writes to its cache there.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && start.elapsed() < LOCK_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", folder.display())),
        }
    }
    if Path::new(STATE_DIR).exists() {
        let _all = lock_all()?;
        // It fails if another cluster still exists.
        let _ = fs::remove_dir(STATE_DIR);
    }
    Ok(())
}

/// Locks the directory of all clusters. The removal of the last cluster removes that directory, so it is checked after
/// locking that it still exists.
fn lock_all() -> Result<File> {
    loop {
        create_folder(Path::new(STATE_DIR))?;
        let Ok(file) = File::open(STATE_DIR) else { continue };
        file.lock().with_context(|| format!("cannot lock {STATE_DIR}"))?;
        let same = |now: fs::Metadata| file.metadata().is_ok_and(|then| then.ino() == now.ino());
        if fs::metadata(STATE_DIR).is_ok_and(same) {
            return Ok(file);
        }
    }
}

fn is_routed(range: &str) -> Result<bool> {
    let mut routes = Command::new("ip");
    routes.args(["-4", "route", "show", "table", "all", "root", range]);
    Ok(!process::output(&mut routes)?.trim().is_empty())
}

fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))
}
