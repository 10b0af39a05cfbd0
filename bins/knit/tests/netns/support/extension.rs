//! An extension in the test process that records its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use knit_kni::kni::knix_server::{Knix, KnixServer};
use knit_kni::v1::extension_server::{Extension as Service, ExtensionServer};
use knit_kni::{Error, kni, v1};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::agent::Agent;

/// The recorded calls and the behaviour of an extension.
#[derive(Clone, Default)]
pub struct ExtensionState {
    /// Sandboxes and interfaces that are set up and not yet undone.
    pub active: BTreeSet<(String, String)>,
    /// Every call as `phase sandbox`, with the results of earlier extensions.
    pub calls: Vec<(String, v1::ExtensionCall)>,
    /// Calls of the KNIX service.
    pub knix: Vec<kni::PostAttachInterfaceRequest>,
    /// The delay of each call.
    pub delay: Duration,
    /// Whether calls fail.
    pub fails: bool,
}

/// A running extension. Dropping it stops it.
pub struct Extension {
    pub name: String,
    pub socket: PathBuf,
    pub state: Arc<Mutex<ExtensionState>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Handler {
    name: String,
    state: Arc<Mutex<ExtensionState>>,
}

impl Extension {
    /// Listens in this directory with a new state.
    pub fn start(folder: &Path, name: &str) -> Self {
        Self::start_with(&folder.join(format!("{name}.sock")), name, Arc::default())
    }

    /// Listens on this socket with this state.
    pub fn start_with(socket: &Path, name: &str, state: Arc<Mutex<ExtensionState>>) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(socket);
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let handler = Handler { name: name.to_owned(), state: Arc::clone(&state) };
        let path = socket.to_owned();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = UnixListener::bind(path).unwrap();
                ready.send(()).unwrap();
                let serve = Server::builder()
                    .add_service(ExtensionServer::new(handler.clone()))
                    .add_service(KnixServer::new(handler))
                    .serve_with_incoming(UnixListenerStream::new(listener));
                // Dropping the runtime aborts all calls.
                tokio::select! { _ = serve => {}, _ = stopped => {} }
            });
        });
        is_ready.recv().unwrap();
        Self {
            name: name.to_owned(),
            socket: socket.to_owned(),
            state,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// A registration for all phases.
    pub fn spec(&self) -> v1::ExtensionSpec {
        let phases = [
            v1::ExtensionPhase::BeforeAttach,
            v1::ExtensionPhase::AfterAttach,
            v1::ExtensionPhase::AfterDetach,
        ];
        v1::ExtensionSpec {
            name: self.name.clone(),
            socket: self.socket.display().to_string(),
            phases: phases.map(Into::into).to_vec(),
            ..Default::default()
        }
    }

    pub fn register(&self, agent: &Agent<'_>) -> v1::RegisterResponse {
        register(agent, self.spec(), "").unwrap()
    }

    pub fn active(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.active.iter().map(|(sandbox, interface)| format!("{sandbox}/{interface}")).collect()
    }

    pub fn calls(&self) -> Vec<String> {
        self.state.lock().unwrap().calls.iter().map(|(call, _)| call.clone()).collect()
    }

    /// Stops the extension immediately.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.stop();
    }
}

pub fn register(
    agent: &Agent<'_>,
    extension: v1::ExtensionSpec,
    token: &str,
) -> Result<v1::RegisterResponse, Error> {
    let request =
        v1::RegisterRequest { extension: Some(extension), token: token.to_owned(), as_admin: false };
    agent.with(|mut client| async move { client.register_extension(request).await })
}

pub fn deregister(agent: &Agent<'_>, name: &str, token: &str) -> Result<v1::DeregisterResponse, Error> {
    let request = v1::DeregisterRequest { name: name.to_owned(), token: token.to_owned(), as_admin: false };
    agent.with(|mut client| async move { client.deregister_extension(request).await })
}

pub fn get(agent: &Agent<'_>, name: &str) -> v1::GetExtensionResponse {
    let request = v1::GetExtensionRequest { name: name.to_owned() };
    agent.with(|mut client| async move { client.get_extension(request).await }).unwrap()
}

impl Handler {
    /// Records a call, waits for the delay, and fails if configured.
    async fn record(
        &self,
        phase: &str,
        call: Option<v1::ExtensionCall>,
    ) -> Result<v1::ExtensionCall, Status> {
        let call = call.unwrap();
        let delay = self.state.lock().unwrap().delay;
        tokio::time::sleep(delay).await;
        let mut state = self.state.lock().unwrap();
        state.calls.push((format!("{phase} {}", call.pod.as_ref().unwrap().id), call.clone()));
        if state.fails { Err(Status::failed_precondition("failed by the test")) } else { Ok(call) }
    }

    fn keys(call: &v1::ExtensionCall) -> Vec<(String, String)> {
        let id = &call.pod.as_ref().unwrap().id;
        call.interfaces.iter().map(|name| (id.clone(), name.clone())).collect()
    }

    fn data(&self, phase: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("said".to_owned(), format!("{} {phase}", self.name))])
    }
}

#[tonic::async_trait]
impl Service for Handler {
    async fn before_attach(
        &self,
        request: Request<v1::BeforeAttachRequest>,
    ) -> Result<Response<v1::BeforeAttachResponse>, Status> {
        self.record("before-attach", request.into_inner().call).await?;
        Ok(Response::new(v1::BeforeAttachResponse { data: self.data("before") }))
    }

    async fn after_attach(
        &self,
        request: Request<v1::AfterAttachRequest>,
    ) -> Result<Response<v1::AfterAttachResponse>, Status> {
        let call = self.record("after-attach", request.into_inner().call).await?;
        self.state.lock().unwrap().active.extend(Self::keys(&call));
        Ok(Response::new(v1::AfterAttachResponse { data: self.data("after") }))
    }

    async fn after_detach(
        &self,
        request: Request<v1::AfterDetachRequest>,
    ) -> Result<Response<v1::AfterDetachResponse>, Status> {
        let call = self.record("after-detach", request.into_inner().call).await?;
        let mut state = self.state.lock().unwrap();
        for key in Self::keys(&call) {
            state.active.remove(&key);
        }
        Ok(Response::new(v1::AfterDetachResponse {}))
    }
}

#[tonic::async_trait]
impl Knix for Handler {
    async fn post_attach_interface(
        &self,
        request: Request<kni::PostAttachInterfaceRequest>,
    ) -> Result<Response<kni::PostAttachInterfaceResponse>, Status> {
        let mut state = self.state.lock().unwrap();
        if state.fails {
            return Err(Status::internal("failed by the test"));
        }
        state.knix.push(request.into_inner());
        let extradata = self.data("knix");
        Ok(Response::new(kni::PostAttachInterfaceResponse { extradata, ..Default::default() }))
    }
}
