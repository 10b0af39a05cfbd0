//! A node of a cluster, as its container runtime sees it.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_cri::{SandboxProcess, RuntimeClient};
use knit_kernel::Netns;
use nix::sched::{CloneFlags, setns, unshare};

use super::conflist::Conflist;
use crate::cri::{Cri, Sandbox};
use knit_testcluster::{self, Cluster, containerd_socket, node_name};

/// Links that were cut off have this long to be gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node.
pub struct Node {
    /// Its container runtime.
    pub cri: Cri,
    /// The list of plugins that the runtime calls.
    pub plugins: Conflist,
    /// Its address.
    pub address: IpAddr,
    process: i32,
    socket: std::path::PathBuf,
}

impl Node {
    /// A node of a cluster that is up.
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

    /// Runs a closure in the node's mount and network namespaces, on a thread of its own that ends with it.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter()?;
                work()
            });
            worker.join().expect("what is measured does not panic")
        })
    }

    /// Moves the calling thread into the node, for good.
    pub fn enter(&self) -> Result<()> {
        // A thread that shares its working folder with others cannot move to other mounts.
        unshare(CloneFlags::CLONE_FS).context("cannot leave this program's folder")?;
        for (kind, flag) in [("mnt", CloneFlags::CLONE_NEWNS), ("net", CloneFlags::CLONE_NEWNET)] {
            let path = format!("/proc/{}/ns/{kind}", self.process);
            let space = File::open(&path).with_context(|| format!("the node is gone: no {path}"))?;
            setns(&space, flag).with_context(|| format!("cannot enter {path}"))?;
        }
        Ok(())
    }

    /// The node's own network.
    pub fn netns(&self) -> Result<Netns> {
        Ok(Netns::open(Path::new(&format!("/proc/{}/ns/net", self.process)))?)
    }

    /// The network of a pod.
    pub fn netns_of(&self, pod: &Sandbox) -> Result<Netns> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let found = runtime.block_on(async {
            let (mut runtime, _) = RuntimeClient::connect(&self.socket).await?;
            runtime.sandbox_process(&pod.id).await
        })?;
        let SandboxProcess::Pid(pid) = found else { bail!("pod {} has no process", pod.id) };
        Ok(Netns::of_process(pid)?)
    }

    /// How many links the node has.
    pub fn links(&self) -> Result<usize> {
        let lines = self.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        Ok(lines.lines().count().saturating_sub(2))
    }

    /// Waits until the node has no more links than this: some are deleted a moment after they were cut off.
    pub fn settle(&self, links: usize) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.links()? > links {
            if Instant::now() > until {
                bail!("{} links are on the node, {links} should be", self.links()?);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}
