//! An agent that only answers: what it says was written down beforehand, and nothing is behind it. It shows what the
//! commands make of answers that a real agent gives only in rare moments.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use knit_kni::v1::agent_server::{Agent, AgentServer};
use knit_kni::{Reason, Refusal, v1};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// What the agent says.
#[derive(Default)]
pub struct Answers {
    pub pods: Vec<v1::Pod>,
    pub networks: Vec<v1::Network>,
    pub capacity: v1::GetCapacityResponse,
    pub readiness: v1::GetReadinessResponse,
    pub garbage: v1::CollectGarbageResponse,
    /// One list for each watch: what the stream says before it breaks off, or ends where it says so itself.
    pub watches: Vec<Vec<v1::WatchEvent>>,
    pub lines: Vec<v1::LogLine>,
    /// What was asked, as the requests' debug forms.
    pub asked: Vec<String>,
}

/// The agent, on a socket in a folder of its own. It ends with the value.
pub struct FakeAgent {
    folder: TempDir,
    answers: Arc<Mutex<Answers>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Service(Arc<Mutex<Answers>>);

type Answer<T> = Result<Response<T>, Status>;
type Many<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

impl FakeAgent {
    /// Starts it.
    pub fn start(answers: Answers) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("kni.sock");
        let answers = Arc::new(Mutex::new(answers));
        let (stop, stopped) = oneshot::channel();
        let service = Service(Arc::clone(&answers));
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
        Self { folder, answers, stop: Some(stop), thread: Some(thread) }
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("kni.sock")
    }

    /// A folder that goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it was asked.
    pub fn asked(&self) -> Vec<String> {
        self.answers.lock().unwrap().asked.clone()
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
    fn hear<T: std::fmt::Debug>(&self, request: &Request<T>) -> std::sync::MutexGuard<'_, Answers> {
        let mut answers = self.0.lock().unwrap();
        answers.asked.push(format!("{:?}", request.get_ref()));
        answers
    }
}

fn not_here<T>() -> Answer<T> {
    Err(Refusal::new(Reason::Unsupported, "the fake agent cannot do this").call("fake").into())
}

#[tonic::async_trait]
impl Agent for Service {
    type WatchStream = Many<v1::WatchEvent>;
    type LogsStream = Many<v1::LogLine>;

    async fn create_sandbox(
        &self,
        _: Request<v1::CreateSandboxRequest>,
    ) -> Answer<v1::CreateSandboxResponse> {
        not_here()
    }

    async fn delete_sandbox(
        &self,
        _: Request<v1::DeleteSandboxRequest>,
    ) -> Answer<v1::DeleteSandboxResponse> {
        not_here()
    }

    async fn attach(&self, _: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        not_here()
    }

    async fn detach(&self, _: Request<v1::DetachRequest>) -> Answer<v1::DetachResponse> {
        not_here()
    }

    async fn check_pod(&self, _: Request<v1::CheckPodRequest>) -> Answer<v1::CheckPodResponse> {
        not_here()
    }

    async fn get_pod(&self, request: Request<v1::GetPodRequest>) -> Answer<v1::GetPodResponse> {
        let wanted = request.get_ref().pod.clone().unwrap_or_default();
        let answers = self.hear(&request);
        let found = answers.pods.iter().find(|pod| pod.id == wanted.id || pod.name == wanted.name);
        match found {
            Some(pod) => Ok(Response::new(v1::GetPodResponse { pod: Some(pod.clone()) })),
            None => Err(Refusal::new(Reason::NotFound, format!("there is no pod {}", wanted.name))
                .about(format!("pod {}", wanted.name))
                .call("call-7")
                .into()),
        }
    }

    async fn list_pods(&self, request: Request<v1::ListPodsRequest>) -> Answer<v1::ListPodsResponse> {
        let pods = self.hear(&request).pods.clone();
        Ok(Response::new(v1::ListPodsResponse { pods, position: None }))
    }

    async fn get_node(&self, _: Request<v1::GetNodeRequest>) -> Answer<v1::GetNodeResponse> {
        not_here()
    }

    async fn list_networks(
        &self,
        request: Request<v1::ListNetworksRequest>,
    ) -> Answer<v1::ListNetworksResponse> {
        let networks = self.hear(&request).networks.clone();
        Ok(Response::new(v1::ListNetworksResponse { networks, position: None }))
    }

    async fn get_readiness(
        &self,
        request: Request<v1::GetReadinessRequest>,
    ) -> Answer<v1::GetReadinessResponse> {
        let mut answers = self.hear(&request);
        let answer = answers.readiness.clone();
        // Ready from the second question on.
        if let Some(new_pods) = &mut answers.readiness.new_pods {
            *new_pods = v1::Readiness { ready: true, conditions: Vec::new() };
        }
        Ok(Response::new(answer))
    }

    async fn get_capacity(
        &self,
        request: Request<v1::GetCapacityRequest>,
    ) -> Answer<v1::GetCapacityResponse> {
        Ok(Response::new(self.hear(&request).capacity.clone()))
    }

    async fn collect_garbage(
        &self,
        request: Request<v1::CollectGarbageRequest>,
    ) -> Answer<v1::CollectGarbageResponse> {
        Ok(Response::new(self.hear(&request).garbage.clone()))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answer<Self::WatchStream> {
        let mut answers = self.hear(&request);
        if answers.watches.is_empty() {
            return not_here();
        }
        let events = answers.watches.remove(0);
        let last = Status::from(Refusal::new(Reason::Stopping, "the agent is going away").call("w"));
        let items: Vec<_> = events.into_iter().map(Ok).chain([Err(last)]).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(items))))
    }

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Answer<Self::LogsStream> {
        let lines = self.hear(&request).lines.clone();
        Ok(Response::new(Box::pin(tokio_stream::iter(lines.into_iter().map(Ok)))))
    }
}
