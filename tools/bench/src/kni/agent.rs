//! A running agent, and a client for it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use knit_kni::{Client, v1};
use tokio::runtime::Runtime;

use super::{Pod, path_of};
use knit_testcluster::Profile;
use knit_testcluster::binaries;

/// The default namespace of pods.
const NAMESPACE: &str = "bench";
/// How long the agent may take to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running agent with a connected client.
pub struct Agent {
    program: PathBuf,
    folder: PathBuf,
    child: Option<Child>,
    runtime: Runtime,
    client: Client,
}

/// The resources of the agent and its node.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// Anonymous memory, in MiB.
    pub anonymous: f64,
    /// All memory, in MiB.
    pub resident: f64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Links on the host.
    pub links: usize,
    /// Addresses in use.
    pub leases: u64,
}

/// Builds the agent as it is in the image; returns its path.
pub fn build() -> Result<PathBuf> {
    let programs = binaries::build(Profile::Release)?;
    Ok(programs.knit)
}

impl Agent {
    /// Starts an agent in the calling thread's namespace, and waits until it is ready.
    pub fn start(program: &Path, folder: &Path) -> Result<Self> {
        let (child, _) = spawn(program, folder)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let client = match connect(&runtime, &folder) {
            Ok(client) => client,
            Err(error) => {
                kill(child);
                return Err(error);
            }
        };
        Ok(Self { program, folder, child: Some(child), runtime, client })
    }

    /// Restarts the agent with the same state. Returns how long the new one took until it listed all its pods.
    pub fn restart(mut self) -> Result<(Self, Duration)> {
        let pods = self.pods()?;
        if let Some(child) = self.child.take() {
            kill(child);
        }
        let (child, start) = spawn(&self.program, &self.folder)?;
        self.child = Some(child);
        self.client = connect(&self.runtime, &self.folder)?;
        if self.pods()? != pods {
            bail!("the agent has other pods after the restart");
        }
        Ok((self, start.elapsed()))
    }

    fn pods(&self) -> Result<usize> {
        let mut client = self.client.clone();
        Ok(self.runtime.block_on(async move { client.list_pods(Default::default()).await })?.pods.len())
    }

    pub fn attach(&self, id: &str, pod: &Pod) -> Result<()> {
        self.attach_in(NAMESPACE, id, pod)
    }

    /// Attaches a pod of this namespace.
    pub fn attach_in(&self, namespace: &str, id: &str, pod: &Pod) -> Result<()> {
        let (mut client, request) = (self.client.clone(), request(namespace, id, pod));
        self.runtime.block_on(async move { client.attach(request).await })?;
        Ok(())
    }

    /// Registers an extension.
    pub fn register(&self, extension: v1::ExtensionSpec) -> Result<()> {
        let request = v1::RegisterRequest { extension: Some(extension), ..Default::default() };
        let mut client = self.client.clone();
        self.runtime.block_on(async move { client.register_extension(request).await })?;
        Ok(())
    }

    pub fn delete(&self, id: &str) -> Result<()> {
        let pod = Some(v1::PodRef { id: id.to_owned(), ..Default::default() });
        let mut client = self.client.clone();
        self.runtime
            .block_on(async move { client.delete_sandbox(v1::DeleteSandboxRequest { pod }).await })?;
        Ok(())
    }

    /// Attaches pods concurrently. Returns the duration of each, and the total.
    pub fn attach_all(&self, pods: &[Pod]) -> Result<(Vec<Duration>, Duration)> {
        let start = Instant::now();
        let times = self.runtime.block_on(async {
            let calls = pods.iter().enumerate().map(|(number, pod)| {
                let (mut client, request) =
                    (self.client.clone(), request(NAMESPACE, &format!("many-{number}"), pod));
                tokio::spawn(async move { client.attach(request).await.map(|_| start.elapsed()) })
            });
            let mut times = Vec::new();
            for call in calls.collect::<Vec<_>>() {
                times.push(call.await??);
            }
            anyhow::Ok(times)
        })?;
        Ok((times, start.elapsed()))
    }

    /// Waits until deferred deletions of links are done.
    pub fn settle(&self) -> Result<()> {
        self.settle_to(|footprint| footprint.links <= 2).map(drop)
    }

    /// Waits until the agent uses what it should use, and returns that.
    pub fn settle_to(&self, is_settled: impl Fn(&Footprint) -> bool) -> Result<Footprint> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let footprint = self.footprint()?;
            if is_settled(&footprint) {
                return Ok(footprint);
            }
            if Instant::now() > deadline {
                bail!("something is left: {footprint:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn footprint(&self) -> Result<Footprint> {
        let pid = self.child.as_ref().map(Child::id).context("the agent does not run")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let memory = |key: &str| -> Result<f64> {
            let line = status
                .lines()
                .find(|line| line.starts_with(key))
                .context("missing line in /proc/<pid>/status")?;
            Ok(line
                .split_whitespace()
                .nth(1)
                .context("missing number in /proc/<pid>/status")?
                .parse::<f64>()?
                / 1024.0)
        };
        let mut client = self.client.clone();
        let capacity = self.runtime.block_on(async move { client.get_capacity(Default::default()).await })?;
        Ok(Footprint {
            anonymous: memory("RssAnon")?,
            resident: memory("VmRSS")?,
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            links: std::fs::read_to_string("/proc/thread-self/net/dev")?.lines().count().saturating_sub(2),
            leases: capacity.networks.iter().map(|network| network.used).sum(),
        })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            kill(child);
        }
    }
}

fn spawn(program: &Path, folder: &Path) -> Result<(Child, Instant)> {
    let log = std::fs::File::create(folder.join("log"))?;
    // The agent is killed when this process ends.
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(["agent", "--metrics-addr", "", "--health-addr", "", "--log-level", "warn"])
        .arg("--state-dir")
        .arg(folder.join("state"))
        .arg("--kni-socket")
        .arg(folder.join("kni.sock"))
        .arg("--netns-dir")
        .arg(folder.join("netns"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let start = Instant::now();
    Ok((command.spawn().context("cannot start the agent")?, start))
}

fn connect(runtime: &Runtime, folder: &Path) -> Result<Client> {
    let (socket, deadline) = (folder.join("kni.sock"), Instant::now() + START_TIMEOUT);
    loop {
        let connected = runtime.block_on(async {
            let mut client = Client::connect(&socket).await?;
            let ready = client.get_readiness(Default::default()).await?;
            Ok::<_, knit_kni::Error>(ready.node.is_some_and(|node| node.ready).then_some(client))
        });
        match connected {
            Ok(Some(client)) => return Ok(client),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("the agent does not answer");
            }
            Ok(None) if Instant::now() > deadline => bail!("the node does not become ready"),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

fn kill(mut child: Child) {
    // It may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

fn request(namespace: &str, id: &str, pod: &Pod) -> v1::AttachRequest {
    let isolation = v1::Isolation { domain: Some(v1::isolation::Domain::NetnsPath(path_of(pod.netns()))) };
    v1::AttachRequest {
        sandbox: Some(v1::SandboxSpec {
            id: id.to_owned(),
            name: id.to_owned(),
            namespace: namespace.to_owned(),
            isolation: Some(isolation),
            ..Default::default()
        }),
        ..Default::default()
    }
}
