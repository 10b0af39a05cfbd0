//! An extension that runs inside the test: it does what the test says, and remembers what it was called for.

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

/// What is known of an extension from outside.
#[derive(Clone, Default)]
pub struct World {
    /// Sandboxes and interfaces for which it has done something and not undone it.
    pub has: BTreeSet<(String, String)>,
    /// Every call, as `phase sandbox`, with what earlier extensions said.
    pub calls: Vec<(String, v1::ExtensionCall)>,
    /// Calls of the proof of concept's service.
    pub knix: Vec<kni::PostAttachInterfaceRequest>,
    /// How long each call takes.
    pub slow: Duration,
    /// Whether it refuses.
    pub refuses: bool,
}

/// A running extension. It ends with this.
pub struct Extension {
    pub name: String,
    pub socket: PathBuf,
    pub world: Arc<Mutex<World>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Handler {
    name: String,
    world: Arc<Mutex<World>>,
}

impl Extension {
    /// Listens in this folder, with a world of its own.
    pub fn start(folder: &Path, name: &str) -> Self {
        Self::start_with(&folder.join(format!("{name}.sock")), name, Arc::default())
    }

    /// Listens on this socket, with this world.
    pub fn start_with(socket: &Path, name: &str, world: Arc<Mutex<World>>) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(socket);
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let handler = Handler { name: name.to_owned(), world: Arc::clone(&world) };
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
                // Dropped, it is gone at once, with every call that is under way.
                tokio::select! { _ = serve => {}, _ = stopped => {} }
            });
        });
        is_ready.recv().unwrap();
        Self {
            name: name.to_owned(),
            socket: socket.to_owned(),
            world,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// An extension with this name and socket that takes part in everything.
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

    pub fn has(&self) -> Vec<String> {
        let world = self.world.lock().unwrap();
        world.has.iter().map(|(sandbox, interface)| format!("{sandbox}/{interface}")).collect()
    }

    pub fn calls(&self) -> Vec<String> {
        self.world.lock().unwrap().calls.iter().map(|(said, _)| said.clone()).collect()
    }

    /// Ends it at once.
    pub fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.end();
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
    /// Takes note of a call, takes its time, and refuses if it was told to.
    async fn hear(&self, phase: &str, call: Option<v1::ExtensionCall>) -> Result<v1::ExtensionCall, Status> {
        let call = call.unwrap();
        let slow = self.world.lock().unwrap().slow;
        tokio::time::sleep(slow).await;
        let mut world = self.world.lock().unwrap();
        world.calls.push((format!("{phase} {}", call.pod.as_ref().unwrap().id), call.clone()));
        if world.refuses { Err(Status::failed_precondition("not today")) } else { Ok(call) }
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
        self.hear("before-attach", request.into_inner().call).await?;
        Ok(Response::new(v1::BeforeAttachResponse { data: self.data("before") }))
    }

    async fn after_attach(
        &self,
        request: Request<v1::AfterAttachRequest>,
    ) -> Result<Response<v1::AfterAttachResponse>, Status> {
        let call = self.hear("after-attach", request.into_inner().call).await?;
        self.world.lock().unwrap().has.extend(Self::keys(&call));
        Ok(Response::new(v1::AfterAttachResponse { data: self.data("after") }))
    }

    async fn after_detach(
        &self,
        request: Request<v1::AfterDetachRequest>,
    ) -> Result<Response<v1::AfterDetachResponse>, Status> {
        let call = self.hear("after-detach", request.into_inner().call).await?;
        let mut world = self.world.lock().unwrap();
        for key in Self::keys(&call) {
            world.has.remove(&key);
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
        let mut world = self.world.lock().unwrap();
        if world.refuses {
            return Err(Status::internal("not today"));
        }
        world.knix.push(request.into_inner());
        let extradata = self.data("knix");
        Ok(Response::new(kni::PostAttachInterfaceResponse { extradata, ..Default::default() }))
    }
}
