//! A client over the agent's socket.

mod extensions;
mod standalone;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

use crate::error::Error;
use crate::kni::kni_client::KniClient;
use crate::v1::agent_client::AgentClient;
use crate::{MAX_MESSAGE, call, v1};

/// The agent's socket, unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/knit/kni.sock";

/// How long a connection may take. The socket is on this machine.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest head of an answer. An error's words stand there, and an error may list all that is wrong with many objects.
const LONGEST_HEAD: u32 = 4 << 20;
/// How often an open call asks whether the agent is still there, and how long that may take.
const ALIVE: Duration = Duration::from_secs(10);

/// A connection to the agent. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    channel: Channel,
    agent: AgentClient<Channel>,
    kni: KniClient<Channel>,
    deadline: Option<Duration>,
    call_id: Option<String>,
}

/// Answers of a call that gives many.
#[derive(Debug)]
pub struct Stream<T> {
    socket: PathBuf,
    inner: Streaming<T>,
}

/// One method of the client for each method of the service that gives one answer.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $answer:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&mut self, request: v1::$request) -> Result<v1::$answer, Error> {
                    let request = self.request(request);
                    let answer = self.agent.$name(request).await;
                    answer.map(tonic::Response::into_inner).map_err(|status| Error::of(&self.socket, status))
                }
            )*
        }
    };
}

calls! {
    /// Makes a sandbox.
    create_sandbox(CreateSandboxRequest) -> CreateSandboxResponse;
    /// Removes a sandbox.
    delete_sandbox(DeleteSandboxRequest) -> DeleteSandboxResponse;
    /// Gives a sandbox interfaces.
    attach(AttachRequest) -> AttachResponse;
    /// Takes interfaces away.
    detach(DetachRequest) -> DetachResponse;
    /// One pod.
    get_pod(GetPodRequest) -> GetPodResponse;
    /// Whether a pod is as it was asked for.
    check_pod(CheckPodRequest) -> CheckPodResponse;
    /// Pods.
    list_pods(ListPodsRequest) -> ListPodsResponse;
    /// Who the agent is.
    get_node(GetNodeRequest) -> GetNodeResponse;
    /// Networks.
    list_networks(ListNetworksRequest) -> ListNetworksResponse;
    /// How ready the node is.
    get_readiness(GetReadinessRequest) -> GetReadinessResponse;
    /// How much room there is.
    get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    /// Removes what is dead.
    collect_garbage(CollectGarbageRequest) -> CollectGarbageResponse;
}

impl Client {
    /// Connects to the agent.
    pub async fn connect(socket: impl Into<PathBuf>) -> Result<Self, Error> {
        let socket = socket.into();
        let path = socket.clone();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // A path is no authority in HTTP/2, so the host's name stands there as gRPC's own libraries have it.
        let endpoint = Endpoint::from_static("http://localhost")
            .connect_timeout(CONNECT)
            .http2_max_header_list_size(LONGEST_HEAD)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE);
        let channel =
            endpoint.connect_with_connector(connector).await.map_err(|error| Error::away(&socket, &error))?;
        Ok(Self {
            socket,
            channel: channel.clone(),
            agent: AgentClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            kni: KniClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
            deadline: None,
            call_id: None,
        })
    }

    /// Gives every later call so much time. The agent knows it and takes back what is not done by then.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Gives every later call this id, so that it can be found in the agent's log.
    #[must_use]
    pub fn with_call_id(mut self, id: impl Into<String>) -> Self {
        self.call_id = Some(id.into());
        self
    }

    /// The client of package `kni`, on the same connection.
    pub fn kni(&self) -> KniClient<Channel> {
        self.kni.clone()
    }

    /// The connection itself, for services that this client has no methods for, such as health.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What changes. The deadline is for its beginning.
    pub async fn watch(&mut self, request: v1::WatchRequest) -> Result<Stream<v1::WatchEvent>, Error> {
        let (request, mut agent) = (self.open_end(request), self.agent.clone());
        self.stream(agent.watch(request)).await
    }

    /// Log lines. The deadline is for their beginning.
    pub async fn logs(&mut self, request: v1::LogsRequest) -> Result<Stream<v1::LogLine>, Error> {
        let (request, mut agent) = (self.open_end(request), self.agent.clone());
        self.stream(agent.logs(request)).await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = self.open_end(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    fn open_end<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(id) = &self.call_id {
            call::set_id(request.metadata_mut(), id);
        }
        request
    }

    async fn stream<T>(
        &self,
        begins: impl Future<Output = Result<tonic::Response<Streaming<T>>, tonic::Status>>,
    ) -> Result<Stream<T>, Error> {
        let begun = match self.deadline {
            None => begins.await,
            Some(deadline) => {
                tokio::time::timeout(deadline, begins).await.map_err(|_| Error::silent(&self.socket))?
            }
        };
        let inner = begun.map_err(|status| Error::of(&self.socket, status))?.into_inner();
        Ok(Stream { socket: self.socket.clone(), inner })
    }
}

impl<T> Stream<T> {
    /// The next answer; `None` when the agent has said everything.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        self.inner.message().await.map_err(|status| Error::of(&self.socket, status))
    }
}
