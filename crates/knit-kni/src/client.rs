//! A client of the agent's socket.

mod extensions;
mod standalone;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Streaming};

use crate::error::Error;
use crate::kni::kni_client::KniClient;
use crate::v1::agent_client::AgentClient;
use crate::{MAX_MESSAGE, call, v1};

/// The default socket of the agent.
pub const DEFAULT_SOCKET: &str = "/run/knit/kni.sock";

/// The timeout of a connection attempt. The socket is local.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of response headers, which contain error messages that may list all problems of many objects.
const MAX_HEADER_LIST: u32 = 4 << 20;
/// The interval and timeout of keepalives of open calls.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

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

/// The messages of a streaming call.
#[derive(Debug)]
pub struct Stream<T> {
    socket: PathBuf,
    inner: Streaming<T>,
}

/// A client method for each unary method of the service.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $answer:ident;)*) => {
        impl Client {
            $(
                $(#[$doc])*
                pub async fn $name(&mut self, request: v1::$request) -> Result<v1::$answer, Error> {
                    let request = self.request(request);
                    let answer = self.agent.$name(request).await;
                    answer.map(tonic::Response::into_inner).map_err(|status| Error::from_status(&self.socket, status))
                }
            )*
        }
    };
}

calls! {
    /// Creates a sandbox.
    create_sandbox(CreateSandboxRequest) -> CreateSandboxResponse;
    /// Deletes a sandbox.
    delete_sandbox(DeleteSandboxRequest) -> DeleteSandboxResponse;
    /// Attaches interfaces to a sandbox.
    attach(AttachRequest) -> AttachResponse;
    /// Detaches interfaces from a sandbox.
    detach(DetachRequest) -> DetachResponse;
    /// Returns one pod.
    get_pod(GetPodRequest) -> GetPodResponse;
    /// Compares a pod with its desired state.
    check_pod(CheckPodRequest) -> CheckPodResponse;
    /// Lists pods.
    list_pods(ListPodsRequest) -> ListPodsResponse;
    /// Returns the node and its agent.
    get_node(GetNodeRequest) -> GetNodeResponse;
    /// Lists networks.
    list_networks(ListNetworksRequest) -> ListNetworksResponse;
    /// Returns the readiness of the node.
    get_readiness(GetReadinessRequest) -> GetReadinessResponse;
    /// Returns the address capacity of networks.
    get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    /// Lists network policies.
    list_policies(ListPoliciesRequest) -> ListPoliciesResponse;
    /// Returns the network policies of one pod.
    get_pod_policies(GetPodPoliciesRequest) -> GetPodPoliciesResponse;
    /// Explains why a connection is allowed or denied.
    explain_connection(ExplainConnectionRequest) -> ExplainConnectionResponse;
    /// Collects garbage.
    collect_garbage(CollectGarbageRequest) -> CollectGarbageResponse;
}

impl Client {
    /// Connects to the agent.
    pub async fn connect(socket: impl Into<PathBuf>) -> Result<Self, Error> {
        let socket = socket.into();
        let endpoint = knit_grpc::endpoint()
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_max_header_list_size(MAX_HEADER_LIST)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_INTERVAL);
        let channel = knit_grpc::connect(&endpoint, &socket)
            .await
            .map_err(|error| Error::unavailable(&socket, &error))?;
        Ok(Self {
            socket,
            channel: channel.clone(),
            agent: AgentClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE),
            kni: KniClient::new(channel).max_decoding_message_size(MAX_MESSAGE),
            deadline: None,
            call_id: None,
        })
    }

    /// Sets the deadline of later calls. The agent rolls back calls that exceed it.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the ID of later calls, which appears in the agent's log.
    #[must_use]
    pub fn with_call_id(mut self, id: impl Into<String>) -> Self {
        self.call_id = Some(id.into());
        self
    }

    /// A client of package `kni` on the same connection.
    pub fn kni(&self) -> KniClient<Channel> {
        self.kni.clone()
    }

    /// The connection, for services without methods in this client, such as health.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Streams changes. The deadline applies to the start of the stream.
    pub async fn watch(&mut self, request: v1::WatchRequest) -> Result<Stream<v1::WatchEvent>, Error> {
        let (request, mut agent) = (self.request_without_deadline(request), self.agent.clone());
        self.stream(agent.watch(request)).await
    }

    /// Streams log lines. The deadline applies to the start of the stream.
    pub async fn logs(&mut self, request: v1::LogsRequest) -> Result<Stream<v1::LogLine>, Error> {
        let (request, mut agent) = (self.request_without_deadline(request), self.agent.clone());
        self.stream(agent.logs(request)).await
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = self.request_without_deadline(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    fn request_without_deadline<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(id) = &self.call_id {
            call::set_id(request.metadata_mut(), id);
        }
        request
    }

    async fn stream<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<Streaming<T>>, tonic::Status>>,
    ) -> Result<Stream<T>, Error> {
        let started = match self.deadline {
            None => call.await,
            Some(deadline) => {
                tokio::time::timeout(deadline, call).await.map_err(|_| Error::timeout(&self.socket))?
            }
        };
        let inner = started.map_err(|status| Error::from_status(&self.socket, status))?.into_inner();
        Ok(Stream { socket: self.socket.clone(), inner })
    }
}

impl<T> Stream<T> {
    /// The next message; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        self.inner.message().await.map_err(|status| Error::from_status(&self.socket, status))
    }
}
