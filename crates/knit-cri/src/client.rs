//! The client of the runtime's socket.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

use crate::info;
use crate::proto::runtime_service_client::RuntimeServiceClient;
use crate::proto::{
    ContainerEventResponse, ContainerFilter, ContainerState, ContainerStateValue, ContainerStatusRequest,
    GetEventsRequest, ListContainersRequest, ListPodSandboxRequest, NamespaceMode, PodSandboxFilter,
    PodSandboxState, PodSandboxStateValue, PodSandboxStatus, PodSandboxStatusRequest, VersionRequest,
};

/// The default sockets of containerd and CRI-O.
pub const DEFAULT_SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];

/// The timeout of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a response, far above a list of all sandboxes of a full node.
const MAX_RESPONSE: usize = 16 << 20;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("container runtime at {socket}: cannot connect ({source}): is it running?")]
    Connect {
        /// Its socket.
        socket: PathBuf,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// The runtime returned an error.
    #[error("container runtime at {socket}: {call}: {}", .status.message())]
    Call {
        /// Its socket.
        socket: PathBuf,
        /// The method.
        call: &'static str,
        /// The gRPC status.
        status: Box<Status>,
    },
    /// The response lacks a required field.
    #[error("container runtime at {socket}: sandbox {sandbox}: {why}")]
    InvalidResponse {
        /// Its socket.
        socket: PathBuf,
        /// The sandbox.
        sandbox: String,
        /// What is missing.
        why: String,
    },
}

/// A running sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningSandbox {
    /// Its id.
    pub id: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The number of earlier sandboxes of the pod.
    pub attempt: u32,
}

/// The process that holds a sandbox's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxProcess {
    /// This process.
    Pid(u32),
    /// The sandbox uses the host network.
    Host,
    /// The sandbox is not running, or has no process yet.
    None,
}

/// A client of a container runtime. Clones share a connection.
#[derive(Clone, Debug)]
pub struct RuntimeClient {
    socket: PathBuf,
    client: RuntimeServiceClient<Channel>,
}

/// A stream of container events.
#[derive(Debug)]
pub struct ContainerEvents {
    socket: PathBuf,
    stream: Streaming<ContainerEventResponse>,
}

impl RuntimeClient {
    /// Connects to a runtime. Returns its name and version.
    pub async fn connect(socket: &Path) -> Result<(Self, String), Error> {
        let endpoint = knit_grpc::endpoint().connect_timeout(CALL_TIMEOUT);
        let channel = knit_grpc::connect(&endpoint, socket)
            .await
            .map_err(|source| Error::Connect { socket: socket.to_owned(), source })?;
        let client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
        let mut runtime = Self { socket: socket.to_owned(), client };
        let result = runtime.client.version(with_timeout(VersionRequest { version: "v1".to_owned() })).await;
        let version = result.map_err(|status| runtime.call_error("Version", status))?.into_inner();
        Ok((runtime, format!("{} {}", version.runtime_name, version.runtime_version)))
    }

    /// Running sandboxes.
    pub async fn running_sandboxes(&mut self) -> Result<Vec<RunningSandbox>, Error> {
        let state = PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() };
        let filter = PodSandboxFilter { id: String::new(), state: Some(state) };
        let result =
            self.client.list_pod_sandbox(with_timeout(ListPodSandboxRequest { filter: Some(filter) })).await;
        let items = result.map_err(|status| self.call_error("ListPodSandbox", status))?.into_inner().items;
        let listed = items.into_iter().filter(|item| item.state() == PodSandboxState::SandboxReady);
        let listed = listed.filter_map(|item| {
            let metadata = item.metadata?;
            let (uid, namespace, name) = (metadata.uid, metadata.namespace, metadata.name);
            Some(RunningSandbox { id: item.id, uid, namespace, name, attempt: metadata.attempt })
        });
        Ok(listed.collect())
    }

    /// The process that holds a sandbox's network namespace: the sandbox's own, or that of one of its containers.
    pub async fn sandbox_process(&mut self, sandbox: &str) -> Result<SandboxProcess, Error> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: true };
        let answer = match self.client.pod_sandbox_status(with_timeout(request)).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(SandboxProcess::None),
            Err(status) => return Err(self.call_error("PodSandboxStatus", status)),
        };
        let Some(status) = answer.status else {
            return Err(self.invalid_response(sandbox, "the response has no status"));
        };
        if status.state() != PodSandboxState::SandboxReady {
            return Ok(SandboxProcess::None);
        }
        if uses_host_network(&status) {
            return Ok(SandboxProcess::Host);
        }
        match info::pid(&answer.info) {
            Some(pid) => Ok(SandboxProcess::Pid(pid)),
            None => self.container_process(sandbox).await,
        }
    }

    async fn container_process(&mut self, sandbox: &str) -> Result<SandboxProcess, Error> {
        let state = Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() });
        let filter = ContainerFilter { state, pod_sandbox_id: sandbox.to_owned() };
        let result =
            self.client.list_containers(with_timeout(ListContainersRequest { filter: Some(filter) })).await;
        let containers =
            result.map_err(|status| self.call_error("ListContainers", status))?.into_inner().containers;
        for container in containers {
            let request = ContainerStatusRequest { container_id: container.id, verbose: true };
            // A container may exit meanwhile; the others share the namespace.
            let Ok(answer) = self.client.container_status(with_timeout(request)).await else { continue };
            if let Some(pid) = info::pid(&answer.into_inner().info) {
                return Ok(SandboxProcess::Pid(pid));
            }
        }
        Ok(SandboxProcess::None)
    }

    /// Opens the event stream. Not all runtimes support it.
    pub async fn events(&mut self) -> Result<ContainerEvents, Error> {
        let result = self.client.get_container_events(Request::new(GetEventsRequest {})).await;
        let stream = result.map_err(|status| self.call_error("GetContainerEvents", status))?.into_inner();
        Ok(ContainerEvents { socket: self.socket.clone(), stream })
    }

    fn call_error(&self, call: &'static str, status: Status) -> Error {
        Error::Call { socket: self.socket.clone(), call, status: Box::new(status) }
    }

    fn invalid_response(&self, sandbox: &str, why: &str) -> Error {
        Error::InvalidResponse {
            socket: self.socket.clone(),
            sandbox: sandbox.to_owned(),
            why: why.to_owned(),
        }
    }
}

impl ContainerEvents {
    /// Waits for the next event; `None` when the runtime ends the stream.
    pub async fn next(&mut self) -> Result<Option<()>, Error> {
        let next = self.stream.message().await;
        let next = next.map_err(|status| Error::Call {
            socket: self.socket.clone(),
            call: "GetContainerEvents",
            status: Box::new(status),
        })?;
        Ok(next.map(|_| ()))
    }
}

fn uses_host_network(status: &PodSandboxStatus) -> bool {
    let namespaces = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref());
    let options = namespaces.and_then(|namespaces| namespaces.options.as_ref());
    options.is_some_and(|options| options.network() == NamespaceMode::Node)
}

fn with_timeout<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}
