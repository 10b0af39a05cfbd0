//! What is recorded of a cluster, before it is made: a folder per cluster with one record in it.
//!
//! Two locks, both dropped by the kernel when their holder dies: one on the folder of all clusters while slots are
//! given out, one on the cluster's own folder for as long as `up` or `down` works on it.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::layout::{Addresses, Names, SLOTS, STATE, node_name};
use crate::go_tools::Tool;
use knit_dev::process;

/// How long a command waits for another that works on the same cluster.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who connects pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing: nodes stay NotReady until a network is installed
    None,
    /// Debian's bridge plugins, routes between nodes, kube-proxy and CoreDNS
    Reference,
    /// Knit's agent on each node, asked through its CNI shim; routes between nodes, kube-proxy and CoreDNS
    KnitCni,
    /// Knit as the cluster's network, by `deploy/primary`: it connects pods and nodes; kube-proxy and CoreDNS
    Knit,
}

impl Network {
    /// Whether kube-proxy and CoreDNS come with it.
    pub fn has_services(self) -> bool {
        matches!(self, Self::Reference | Self::KnitCni | Self::Knit)
    }

    /// Whether Knit's agents run on the nodes as processes of their own.
    pub fn has_agents(self) -> bool {
        self == Self::KnitCni
    }
}

/// A cluster as its record describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cluster {
    name: String,
    slot: u8,
    /// How many nodes.
    pub nodes: u8,
    /// Who connects pods.
    pub network: Network,
    /// Whether `up` came to its end.
    pub complete: bool,
    /// The programs that this cluster runs, by file name: a later pin does not change a running cluster.
    tools: BTreeMap<String, PathBuf>,
}

/// The right to change a cluster, for as long as it lives.
pub struct Claim {
    _folder: File,
}

impl Cluster {
    /// Records a new cluster and takes the right to make it.
    pub fn claim(
        names: &Names,
        nodes: u8,
        network: Network,
        tools: BTreeMap<String, PathBuf>,
    ) -> Result<(Self, Claim)> {
        let _all = lock_all()?;
        if names.state().exists() {
            let name = names.name();
            match Self::find(names)? {
                Some(cluster) if cluster.complete => bail!(
                    "cluster {name} is already up: use it, take it away with `cargo xtask cluster down --name {name}`, \
                     or give another --name"
                ),
                _ => bail!(
                    "cluster {name} was left unfinished (or another `up` is making it now): take it away with \
                     `cargo xtask cluster down --name {name}`, then try again"
                ),
            }
        }
        let taken: Vec<u8> = all()?.iter().map(|cluster| cluster.slot).collect();
        let mut slot = None;
        for candidate in (0..SLOTS).filter(|candidate| !taken.contains(candidate)) {
            if !is_routed(&Addresses::of(candidate).wire())? {
                slot = Some(candidate);
                break;
            }
        }
        let slot = slot.context(
            "no addresses left for another cluster: each of 172.30.0.0/24 to 172.30.15.0/24 is in use (see `ip route`)",
        )?;
        make_folder(&names.state())?;
        let claim = lock(names)?;
        let cluster = Self { name: names.name().to_owned(), slot, nodes, network, complete: false, tools };
        cluster.write()?;
        Ok((cluster, claim))
    }

    /// The cluster of that name, or an error that says how to get one.
    pub fn open(names: &Names) -> Result<Self> {
        Self::find(names)?.with_context(|| {
            let others: Vec<String> =
                all().unwrap_or_default().into_iter().map(|cluster| cluster.name).collect();
            let others =
                if others.is_empty() { String::new() } else { format!(" (there is: {})", others.join(", ")) };
            format!("there is no cluster {}{others}: make it with `cargo xtask cluster up`", names.name())
        })
    }

    /// The cluster of that name, when its record can be read.
    pub fn find(names: &Names) -> Result<Option<Self>> {
        let file = names.state().join("cluster.json");
        if !file.exists() {
            return Ok(None);
        }
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).map(Some).with_context(|| format!("cannot read {}", file.display()))
    }

    /// Says that `up` came to its end.
    pub fn set_complete(&mut self) -> Result<()> {
        self.complete = true;
        self.write()
    }

    fn write(&self) -> Result<()> {
        let file = self.folder("").join("cluster.json");
        let unfinished = self.folder("").join(".cluster.json");
        fs::write(&unfinished, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&unfinished, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// The names of everything that this cluster is made of.
    pub fn names(&self) -> Names {
        Names::new(&self.name).expect("a record is written with a name that was checked")
    }

    /// The addresses of this cluster.
    pub fn addresses(&self) -> Addresses {
        Addresses::of(self.slot)
    }

    /// The numbers of its nodes.
    pub fn node_numbers(&self) -> std::ops::RangeInclusive<u8> {
        1..=self.nodes
    }

    /// A folder or file of the cluster's state.
    pub fn folder(&self, below: &str) -> PathBuf {
        Path::new(STATE).join(&self.name).join(below)
    }

    /// A folder or file of one node.
    pub fn node_folder(&self, node: u8, below: &str) -> PathBuf {
        self.folder("nodes").join(node_name(node)).join(below)
    }

    /// Where the API server's address and the admin's token are.
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
        // Its cache would otherwise stay in the home folder when the cluster is gone.
        kubectl.env("KUBECACHEDIR", self.folder("kubectl-cache"));
        Ok(kubectl)
    }
}

/// The clusters that have a record.
pub fn all() -> Result<Vec<Cluster>> {
    let Ok(entries) = fs::read_dir(STATE) else { return Ok(Vec::new()) };
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

/// Takes the right to change a cluster whose folder exists. Whoever holds it gets a moment: a command that was just
/// killed may have a child that is about to become another program, and only then lets go of the lock.
pub fn lock(names: &Names) -> Result<Claim> {
    let folder = names.state();
    let file = File::open(&folder).with_context(|| format!("cannot open {}", folder.display()))?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Claim { _folder: file }),
            Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => bail!(
                "cluster {}: another `cargo xtask cluster up` or `down` is working on it: wait for it, or stop it",
                names.name()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", folder.display()));
            }
        }
    }
}

/// Removes a cluster's folder, and the folder of all clusters when it was the last.
pub fn remove(names: &Names) -> Result<()> {
    let folder = names.state();
    let began = Instant::now();
    loop {
        match fs::remove_dir_all(&folder) {
            Ok(()) => break,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            // A kubectl that someone runs meanwhile writes to its cache there.
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty && began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", folder.display())),
        }
    }
    if Path::new(STATE).exists() {
        let _all = lock_all()?;
        // Not empty: another cluster is still there.
        let _ = fs::remove_dir(STATE);
    }
    Ok(())
}

/// Locks the folder of all clusters. Whoever takes the last cluster away removes that folder too, so what was locked
/// may be gone by then.
fn lock_all() -> Result<File> {
    loop {
        make_folder(Path::new(STATE))?;
        let Ok(file) = File::open(STATE) else { continue };
        file.lock().with_context(|| format!("cannot lock {STATE}"))?;
        let same = |now: fs::Metadata| file.metadata().is_ok_and(|then| then.ino() == now.ino());
        if fs::metadata(STATE).is_ok_and(same) {
            return Ok(file);
        }
    }
}

fn is_routed(range: &str) -> Result<bool> {
    let mut routes = Command::new("ip");
    routes.args(["-4", "route", "show", "table", "all", "root", range]);
    Ok(!process::output(&mut routes)?.trim().is_empty())
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}
