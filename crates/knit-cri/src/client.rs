//! The runtime's socket, and what is asked there.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::info;
use crate::proto::runtime_service_client::RuntimeServiceClient;
use crate::proto::{
    ContainerEventResponse, ContainerFilter, ContainerState, ContainerStateValue, ContainerStatusRequest,
    GetEventsRequest, ListContainersRequest, ListPodSandboxRequest, NamespaceMode, PodSandboxFilter,
    PodSandboxState, PodSandboxStateValue, PodSandboxStatus, PodSandboxStatusRequest, VersionRequest,
};

/// Where runtimes listen: containerd, then CRI-O.
pub const SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

/// How long the runtime may take for an answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// A list of all sandboxes of a full node is far smaller.
const MAX_ANSWER: usize = 16 << 20;

/// Why the runtime did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to it.
    #[error("container runtime at {socket}: cannot connect ({source}): is it running?")]
    Connect {
        /// Its socket.
        socket: PathBuf,
        /// What happened.
        source: tonic::transport::Error,
    },
    /// It refused.
    #[error("container runtime at {socket}: {call}: {}", .status.message())]
    Refused {
        /// Its socket.
        socket: PathBuf,
        /// What was asked.
        call: &'static str,
        /// Its answer.
        status: Box<Status>,
    },
    /// It answered without what CRI demands.
    #[error("container runtime at {socket}: sandbox {sandbox}: {why}")]
    Unclear {
        /// Its socket.
        socket: PathBuf,
        /// The sandbox.
        sandbox: String,
        /// What is missing.
        why: String,
    },
}

/// A sandbox that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// How often the pod's sandbox was made before.
    pub attempt: u32,
}

/// Who holds a sandbox's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// This process does.
    Pid(u32),
    /// The sandbox uses the node's own network.
    Host,
    /// The sandbox runs no more, or no process is known yet.
    None,
}

/// A container runtime. Clones share a connection.
#[derive(Clone, Debug)]
pub struct Runtime {
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
}

/// A stream that says that something of the runtime's changed.
#[derive(Debug)]
pub struct Events {
    socket: PathBuf,
    stream: Streaming<ContainerEventResponse>,
}

impl Runtime {
    /// Connects to a runtime, and asks it for its name and version.
    pub async fn connect(socket: &Path) -> Result<(Self, String), Error> {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost").connect_timeout(DEADLINE);
        let channel = endpoint
            .connect_with_connector(connector)
            .await
            .map_err(|source| Error::Connect { socket: socket.to_owned(), source })?;
        let client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        let mut runtime = Self { socket: socket.to_owned(), client };
        let asked = runtime.client.version(timed(VersionRequest { version: "v1".to_owned() })).await;
        let version = asked.map_err(|status| runtime.refused("Version", status))?.into_inner();
        Ok((runtime, format!("{} {}", version.runtime_name, version.runtime_version)))
    }

    /// Sandboxes that run.
    pub async fn running(&mut self) -> Result<Vec<Listed>, Error> {
        let state = PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() };
        let filter = PodSandboxFilter { id: String::new(), state: Some(state) };
        let asked = self.client.list_pod_sandbox(timed(ListPodSandboxRequest { filter: Some(filter) })).await;
        let items = asked.map_err(|status| self.refused("ListPodSandbox", status))?.into_inner().items;
        let listed = items.into_iter().filter(|item| item.state() == PodSandboxState::SandboxReady);
        let listed = listed.filter_map(|item| {
            let metadata = item.metadata?;
            let (uid, namespace, name) = (metadata.uid, metadata.namespace, metadata.name);
            Some(Listed { id: item.id, uid, namespace, name, attempt: metadata.attempt })
        });
        Ok(listed.collect())
    }

    /// The process that holds a sandbox's network namespace: the sandbox's own, or that of any of its containers.
    pub async fn process(&mut self, sandbox: &str) -> Result<Process, Error> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: true };
        let answer = match self.client.pod_sandbox_status(timed(request)).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(Process::None),
            Err(status) => return Err(self.refused("PodSandboxStatus", status)),
        };
        let Some(status) = answer.status else { return Err(self.unclear(sandbox, "it has no status")) };
        if status.state() != PodSandboxState::SandboxReady {
            return Ok(Process::None);
        }
        if is_host(&status) {
            return Ok(Process::Host);
        }
        match info::pid(&answer.info) {
            Some(pid) => Ok(Process::Pid(pid)),
            None => self.process_of_containers(sandbox).await,
        }
    }

    async fn process_of_containers(&mut self, sandbox: &str) -> Result<Process, Error> {
        let state = Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() });
        let filter = ContainerFilter { state, pod_sandbox_id: sandbox.to_owned() };
        let asked = self.client.list_containers(timed(ListContainersRequest { filter: Some(filter) })).await;
        let containers =
            asked.map_err(|status| self.refused("ListContainers", status))?.into_inner().containers;
        for container in containers {
            let request = ContainerStatusRequest { container_id: container.id, verbose: true };
            // A container may end while it is asked about; another one has the same namespace.
            let Ok(answer) = self.client.container_status(timed(request)).await else { continue };
            if let Some(pid) = info::pid(&answer.into_inner().info) {
                return Ok(Process::Pid(pid));
            }
        }
        Ok(Process::None)
    }

    /// Asks to be told about changes. A runtime that cannot tell says so.
    pub async fn events(&mut self) -> Result<Events, Error> {
        let asked = self.client.get_container_events(Request::new(GetEventsRequest {})).await;
        let stream = asked.map_err(|status| self.refused("GetContainerEvents", status))?.into_inner();
        Ok(Events { socket: self.socket.clone(), stream })
    }

    fn refused(&self, call: &'static str, status: Status) -> Error {
        Error::Refused { socket: self.socket.clone(), call, status: Box::new(status) }
    }

    fn unclear(&self, sandbox: &str, why: &str) -> Error {
        Error::Unclear { socket: self.socket.clone(), sandbox: sandbox.to_owned(), why: why.to_owned() }
    }
}

impl Events {
    /// Waits for the next change. `None`: the runtime ended the stream.
    pub async fn next(&mut self) -> Result<Option<()>, Error> {
        let next = self.stream.message().await;
        let next = next.map_err(|status| Error::Refused {
            socket: self.socket.clone(),
            call: "GetContainerEvents",
            status: Box::new(status),
        })?;
        Ok(next.map(|_| ()))
    }
}

fn is_host(status: &PodSandboxStatus) -> bool {
    let namespaces = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
    let options = namespaces.and_then(|namespaces| namespaces.options.as_ref());
    options.is_some_and(|options| options.network() == NamespaceMode::Node)
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}
