//! A node of a cluster, and its container runtime.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_cri::{RuntimeClient, SandboxProcess};
use knit_kernel::Netns;
use nix::sched::{CloneFlags, setns, unshare};

use super::conflist::Conflist;
use crate::cri::{Cri, Sandbox};
use knit_testcluster::{self, Cluster, containerd_socket, node_name};

/// How long deferred deletions of links may take.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A node of a running cluster.
pub struct Node {
    /// Its container runtime.
    pub cri: Cri,
    /// The conflist of the runtime.
    pub plugins: Conflist,
    /// Its address.
    pub address: IpAddr,
    process: i32,
    socket: std::path::PathBuf,
}

impl Node {
    /// Opens a node of a running cluster.
    pub fn open(cluster: &Cluster, number: u8) -> Result<Self> {
        let socket = containerd_socket(cluster, number);
        let cgroup = format!("/{}/{}", cluster.names().cgroup(), node_name(number));
        Ok(Self {
            cri: Cri::connect(&socket, cgroup)?,
            plugins: Conflist::read(&cluster.node_folder(number, "etc/cni/net.d"))?,
            address: cluster.addresses().node(number).into(),
            process: knit_testcluster::node_process(cluster, number)?,
            socket,
        })
    }

    /// Runs a closure in the node's mount and network namespaces, on a separate thread.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter()?;
                work()
            });
            worker.join().expect("the closure does not panic")
        })
    }

    /// Moves the calling thread into the node permanently.
    pub fn enter(&self) -> Result<()> {
        // A thread that shares its file system attributes with others cannot enter another mount namespace.
        unshare(CloneFlags::CLONE_FS).context("cannot unshare the file system attributes")?;
        for (kind, flag) in [("mnt", CloneFlags::CLONE_NEWNS), ("net", CloneFlags::CLONE_NEWNET)] {
            let path = format!("/proc/{}/ns/{kind}", self.process);
            let namespace = File::open(&path).with_context(|| format!("the node does not run: no {path}"))?;
            setns(&namespace, flag).with_context(|| format!("cannot enter {path}"))?;
        }
        Ok(())
    }

    /// The node's network namespace.
    pub fn netns(&self) -> Result<Netns> {
        Ok(Netns::open(Path::new(&format!("/proc/{}/ns/net", self.process)))?)
    }

    /// The network namespace of a pod.
    pub fn netns_of(&self, pod: &Sandbox) -> Result<Netns> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = runtime.block_on(async {
            let (mut runtime, _) = RuntimeClient::connect(&self.socket).await?;
            runtime.sandbox_process(&pod.id).await
        })?;
        let SandboxProcess::Pid(pid) = found else { bail!("pod {} has no process", pod.id) };
        Ok(Netns::of_process(pid)?)
    }

    /// The number of links of the node.
    pub fn links(&self) -> Result<usize> {
        let lines = self.run_in(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        Ok(lines.lines().count().saturating_sub(2))
    }

    /// Waits until the node has no more links than this: their deletion is deferred.
    pub fn settle(&self, links: usize) -> Result<()> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        while self.links()? > links {
            if Instant::now() > deadline {
                bail!("the node has {} links, expected {links}", self.links()?);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
