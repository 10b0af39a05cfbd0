//! A fake agent with prepared responses, for states that are rare with a real agent.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use knit_kni::v1::agent_server::{Agent, AgentServer};
use knit_kni::{Reason, RpcError, v1};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// The prepared responses, and the requests.
#[derive(Default)]
pub struct Responses {
    pub pods: Vec<v1::Pod>,
    pub networks: Vec<v1::Network>,
    pub capacity: v1::GetCapacityResponse,
    pub readiness: v1::GetReadinessResponse,
    pub garbage: v1::CollectGarbageResponse,
    pub policies: v1::ListPoliciesResponse,
    pub pod_policies: v1::GetPodPoliciesResponse,
    /// The explanation of a connection, or why there is none.
    pub connection: Option<v1::ExplainConnectionResponse>,
    /// One list for each watch: the events before the stream breaks.
    pub watches: Vec<Vec<v1::WatchEvent>>,
    pub lines: Vec<v1::LogLine>,
    /// The debug output of the requests.
    pub requests: Vec<String>,
}

/// The agent, on a socket in a temporary directory. Dropping it stops it.
pub struct FakeAgent {
    folder: TempDir,
    responses: Arc<Mutex<Responses>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Service(Arc<Mutex<Responses>>);

type Reply<T> = Result<Response<T>, Status>;
type Many<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

impl FakeAgent {
    /// Starts the agent.
    pub fn start(responses: Responses) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("kni.sock");
        let responses = Arc::new(Mutex::new(responses));
        let (stop, stopped) = oneshot::channel();
        let service = Service(Arc::clone(&responses));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(&socket).unwrap()
        };
        let thread = std::thread::spawn(move || {
            let server = tonic::transport::Server::builder().add_service(AgentServer::new(service));
            let served = server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                let _ = stopped.await;
            });
            runtime.block_on(served).unwrap();
        });
        Self { folder, responses, stop: Some(stop), thread: Some(thread) }
    }

    /// The socket of the agent.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("kni.sock")
    }

    /// The temporary directory.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.responses.lock().unwrap().requests.clone()
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Service {
    fn record<T: std::fmt::Debug>(&self, request: &Request<T>) -> std::sync::MutexGuard<'_, Responses> {
        let mut responses = self.0.lock().unwrap();
        responses.requests.push(format!("{:?}", request.get_ref()));
        responses
    }
}

fn unsupported<T>() -> Reply<T> {
    Err(RpcError::new(Reason::Unsupported, "the fake agent cannot do this").call("fake").into())
}

#[tonic::async_trait]
impl Agent for Service {
    type WatchStream = Many<v1::WatchEvent>;
    type LogsStream = Many<v1::LogLine>;

    async fn create_sandbox(&self, _: Request<v1::CreateSandboxRequest>) -> Reply<v1::CreateSandboxResponse> {
        unsupported()
    }

    async fn delete_sandbox(&self, _: Request<v1::DeleteSandboxRequest>) -> Reply<v1::DeleteSandboxResponse> {
        unsupported()
    }

    async fn attach(&self, _: Request<v1::AttachRequest>) -> Reply<v1::AttachResponse> {
        unsupported()
    }

    async fn detach(&self, _: Request<v1::DetachRequest>) -> Reply<v1::DetachResponse> {
        unsupported()
    }

    async fn check_pod(&self, _: Request<v1::CheckPodRequest>) -> Reply<v1::CheckPodResponse> {
        unsupported()
    }

    async fn get_pod(&self, request: Request<v1::GetPodRequest>) -> Reply<v1::GetPodResponse> {
        let reference = request.get_ref().pod.clone().unwrap_or_default();
        let responses = self.record(&request);
        let found = responses.pods.iter().find(|pod| pod.id == reference.id || pod.name == reference.name);
        match found {
            Some(pod) => Ok(Response::new(v1::GetPodResponse { pod: Some(pod.clone()) })),
            None => Err(RpcError::new(Reason::NotFound, format!("pod {} not found", reference.name))
                .about(format!("pod {}", reference.name))
                .call("call-7")
                .into()),
        }
    }

    async fn list_pods(&self, request: Request<v1::ListPodsRequest>) -> Reply<v1::ListPodsResponse> {
        let pods = self.record(&request).pods.clone();
        Ok(Response::new(v1::ListPodsResponse { pods, position: None }))
    }

    async fn get_node(&self, _: Request<v1::GetNodeRequest>) -> Reply<v1::GetNodeResponse> {
        unsupported()
    }

    async fn list_networks(
        &self,
        request: Request<v1::ListNetworksRequest>,
    ) -> Reply<v1::ListNetworksResponse> {
        let networks = self.record(&request).networks.clone();
        Ok(Response::new(v1::ListNetworksResponse { networks, position: None }))
    }

    async fn get_readiness(
        &self,
        request: Request<v1::GetReadinessRequest>,
    ) -> Reply<v1::GetReadinessResponse> {
        let mut responses = self.record(&request);
        let response = responses.readiness.clone();
        // Ready from the second question on.
        if let Some(new_pods) = &mut responses.readiness.new_pods {
            *new_pods = v1::Readiness { ready: true, conditions: Vec::new() };
        }
        Ok(Response::new(response))
    }

    async fn get_capacity(&self, request: Request<v1::GetCapacityRequest>) -> Reply<v1::GetCapacityResponse> {
        Ok(Response::new(self.record(&request).capacity.clone()))
    }

    async fn collect_garbage(
        &self,
        request: Request<v1::CollectGarbageRequest>,
    ) -> Reply<v1::CollectGarbageResponse> {
        Ok(Response::new(self.record(&request).garbage.clone()))
    }

    async fn list_policies(
        &self,
        request: Request<v1::ListPoliciesRequest>,
    ) -> Reply<v1::ListPoliciesResponse> {
        Ok(Response::new(self.record(&request).policies.clone()))
    }

    async fn get_pod_policies(
        &self,
        request: Request<v1::GetPodPoliciesRequest>,
    ) -> Reply<v1::GetPodPoliciesResponse> {
        Ok(Response::new(self.record(&request).pod_policies.clone()))
    }

    async fn explain_connection(
        &self,
        request: Request<v1::ExplainConnectionRequest>,
    ) -> Reply<v1::ExplainConnectionResponse> {
        self.record(&request).connection.clone().map_or_else(unsupported, |reply| Ok(Response::new(reply)))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Reply<Self::WatchStream> {
        let mut responses = self.record(&request);
        if responses.watches.is_empty() {
            return unsupported();
        }
        let events = responses.watches.remove(0);
        let last = Status::from(RpcError::new(Reason::Stopping, "the agent is going away").call("w"));
        let items: Vec<_> = events.into_iter().map(Ok).chain([Err(last)]).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(items))))
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Reply<Self::LogsStream> {
        let lines = self.record(&request).lines.clone();
        Ok(Response::new(Box::pin(tokio_stream::iter(lines.into_iter().map(Ok)))))
    }
}
