//! An agent in a network namespace, and its client.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use knit_kni::{Client, Error, Reason, v1};
use knit_testbed::{Confinement, Deployed, Namespace, Pod, Testbed, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const KNIT: &str = env!("CARGO_BIN_EXE_knit");

/// A host, and the working directory of its agent.
pub struct Machine {
    pub testbed: Testbed,
    pub host: Namespace,
    pub folder: TempDir,
}

/// A running agent. Dropping it kills it.
pub struct Agent<'a> {
    machine: &'a Machine,
    child: Child,
}

impl Machine {
    pub fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        Self { testbed, host, folder: TempDir::new().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The response to an HTTP request.
    pub fn get(&self, port: u16, path: &str) -> String {
        let mut stream = self.host.run(|| TcpStream::connect(("127.0.0.1", port))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: knit\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Starts an agent and waits until it is ready.
    pub fn agent(&self) -> Agent<'_> {
        self.agent_with(&[], &[])
    }

    pub fn agent_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Agent<'_> {
        self.confined_agent(&self.confinement(), arguments, environment)
    }

    /// Starts an agent with another confinement, without waiting for its readiness.
    pub fn spawn_confined(
        &self,
        confinement: &Confinement,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Agent<'_> {
        self.spawn_by(confinement, Command::new(KNIT), arguments, environment)
    }

    /// How the agent's container is deployed: agents of tests are confined like it.
    pub fn confinement(&self) -> Confinement {
        self.confinement_as(Deployed::Primary)
    }

    /// The same with other manifests.
    pub fn confinement_as(&self, deployed: Deployed) -> Confinement {
        let binaries = Path::new(KNIT).parent().unwrap();
        Confinement::new(deployed, self.folder.path()).read_only(binaries)
    }

    /// Starts an agent as after a reboot, with the boot id in this file.
    pub fn rebooted(&self, boot_id: &Path) -> Agent<'_> {
        // Below the directory of sysctls in the container.
        self.agent_with_bind_mount(boot_id, "/host/proc/sys/kernel/random/boot_id")
    }

    /// Starts an agent with a bind mount of this file or directory.
    pub fn agent_with_bind_mount(&self, mine: &Path, place: &str) -> Agent<'_> {
        self.confined_agent(&self.confinement().bind(mine, place), &[], &[])
    }

    /// Starts an agent with another confinement and waits until it is ready.
    pub fn confined_agent(
        &self,
        confinement: &Confinement,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Agent<'_> {
        let _ = std::fs::remove_file(self.path("log"));
        self.wait_for(self.spawn_confined(confinement, arguments, environment))
    }

    /// Starts an agent that may have only this many file descriptors.
    pub fn agent_with_descriptor_limit(&self, limit: u32) -> Agent<'_> {
        let mut command = Command::new("/usr/bin/prlimit");
        command.arg(format!("--nofile={limit}")).arg("--").arg(KNIT);
        self.wait_for(self.spawn_by(&self.confinement().with_programs(), command, &[], &[]))
    }

    fn wait_for<'a>(&self, agent: Agent<'a>) -> Agent<'a> {
        eventually("the agent is ready", Duration::from_secs(20), || {
            self.log().contains("ready socket") || !agent.is_running()
        });
        assert!(agent.is_running(), "the agent ended: {}", self.log());
        eventually("the node is ready", Duration::from_secs(20), || agent.is_ready());
        agent
    }

    fn spawn_by(
        &self,
        confinement: &Confinement,
        mut command: Command,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Agent<'_> {
        std::fs::create_dir_all(self.path("objects")).unwrap();
        // The agent of a cluster does not watch a directory.
        let from_folder = !arguments.contains(&"--profile");
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        command
            .arg("agent")
            .envs([("KNIT_METRICS_ADDR", ""), ("KNIT_HEALTH_ADDR", "")])
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--kni-socket")
            .arg(self.path("kni.sock"))
            .arg("--netns-dir")
            .arg(self.path("netns"))
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if from_folder {
            command.arg("--standalone").arg(self.path("objects"));
        }
        Agent { machine: self, child: confinement.spawn(&self.host, &mut command).unwrap() }
    }
}

impl Agent<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&self) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        state.is_ok_and(|stat| !stat.contains(") Z "))
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Sends SIGTERM and returns the exit code.
    pub fn stop(mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.child.wait().unwrap().code()
    }

    /// Kills the agent.
    pub fn crash(mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }

    /// Kills the agent if it still runs.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Waits until the agent exits.
    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    pub fn socket(&self) -> PathBuf {
        self.machine.path("kni.sock")
    }

    /// Runs a future with a client.
    pub fn with<T, F: Future<Output = T>>(&self, work: impl FnOnce(Client) -> F) -> T {
        let socket = self.socket();
        runtime().block_on(async move { work(Client::connect(socket).await.unwrap()).await })
    }

    /// Attaches `eth0` to a pod.
    pub fn attach(&self, id: &str, pod: &Pod) -> v1::AttachResponse {
        self.try_attach(attach(id, &netns(pod))).unwrap()
    }

    pub fn try_attach(&self, request: v1::AttachRequest) -> Result<v1::AttachResponse, Error> {
        self.with(|mut client| async move { client.attach(request).await })
    }

    pub fn detach(&self, id: &str, interfaces: &[&str]) -> v1::DetachResponse {
        let request = v1::DetachRequest {
            pod: Some(reference(id)),
            interfaces: interfaces.iter().map(|&name| name.to_owned()).collect(),
            all: interfaces.is_empty(),
            ..Default::default()
        };
        self.with(|mut client| async move { client.detach(request).await }).unwrap()
    }

    pub fn delete(&self, id: &str) -> bool {
        let request = v1::DeleteSandboxRequest { pod: Some(reference(id)) };
        self.with(|mut client| async move { client.delete_sandbox(request).await }).unwrap().deleted
    }

    /// The differences of a pod from its spec, each as `kind place item: what`.
    pub fn check(&self, id: &str) -> Vec<String> {
        let response = (0..100).find_map(|_| {
            let request = v1::CheckPodRequest { pod: Some(reference(id)) };
            match self.with(|mut client| async move { client.check_pod(request).await }) {
                Err(error) if error.reason() == Some(Reason::Busy) => {
                    std::thread::sleep(Duration::from_millis(20));
                    None
                }
                response => Some(response.unwrap()),
            }
        });
        let response = response.expect("a change comes to its end");
        assert_eq!(response.in_sync, response.differences.is_empty());
        let word = |one: &v1::Difference| match one.kind() {
            v1::DifferenceKind::Missing => "missing",
            v1::DifferenceKind::Changed => "changed",
            v1::DifferenceKind::LeftOver => "left over",
            v1::DifferenceKind::Unspecified => "?",
        };
        let all = response.differences.iter();
        all.map(|one| format!("{} {} {}: {}", word(one), one.place, one.item, one.what)).collect()
    }

    pub fn pod(&self, id: &str) -> Option<v1::Pod> {
        let request = v1::GetPodRequest { pod: Some(reference(id)) };
        self.with(|mut client| async move { client.get_pod(request).await })
            .ok()
            .and_then(|response| response.pod)
    }

    /// Whether the node is ready.
    pub fn is_ready(&self) -> bool {
        let response = self.with(|mut client| async move { client.get_readiness(Default::default()).await });
        response.is_ok_and(|response| response.node.unwrap().ready)
    }

    pub fn used_addresses(&self) -> u64 {
        let capacity = self.with(|mut client| async move { client.get_capacity(Default::default()).await });
        capacity.unwrap().networks.iter().map(|network| network.used).sum()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the agent's log:\n{}", self.machine.log());
        }
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The path of the netns of a pod.
pub fn netns(pod: &Pod) -> String {
    format!("/proc/{}/ns/net", pod.pid())
}

pub fn reference(id: &str) -> v1::PodRef {
    v1::PodRef { id: id.to_owned(), ..Default::default() }
}

/// A request for `eth0` on the cluster network.
pub fn attach(id: &str, netns: &str) -> v1::AttachRequest {
    let isolation = v1::Isolation { domain: Some(v1::isolation::Domain::NetnsPath(netns.to_owned())) };
    v1::AttachRequest {
        sandbox: Some(v1::SandboxSpec {
            id: id.to_owned(),
            name: id.to_owned(),
            namespace: "default".to_owned(),
            isolation: Some(isolation),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The addresses of an interface.
pub fn addresses(response: &v1::AttachResponse, name: &str) -> Vec<String> {
    let interfaces = &response.pod.as_ref().unwrap().interfaces;
    let interface = interfaces.iter().find(|interface| interface.name == name).unwrap();
    interface.addresses.iter().map(|address| address.address.clone()).collect()
}

/// The number of host-side links of pods.
pub fn ports(host: &Namespace) -> usize {
    let links = host.ip_json(&["link", "show"]);
    let is_port = |link: &&serde_json::Value| {
        link["ifname"].as_str().unwrap().starts_with("knit") && link["ifname"] != "knit0"
    };
    links.as_array().unwrap().iter().filter(is_port).count()
}

/// Creates a directory.
pub fn folder(path: &Path) -> PathBuf {
    std::fs::create_dir_all(path).unwrap();
    path.to_owned()
}
