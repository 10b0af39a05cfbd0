//! The agent's gRPC services: packages kni and knit.v1, health and reflection, on one unix socket.
//!
//! A service checks and translates a request, hands it to the loop, and puts the answer into the answer's words. What is
//! decided is decided by the engine.

mod agent;
mod chained;
mod check;
mod extensions;
mod frames;
mod kni;
mod knix;
mod logs;
mod nodes;
mod pods;
pub(crate) mod request;
mod standalone;
mod watch;

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knit_engine::CallId;
use knit_ipam::Time;
use knit_kni::call::Calls;
use knit_kni::kni::kni_server::KniServer;
use knit_kni::kni::knix_plugin_manager_server::KnixPluginManagerServer;
use knit_kni::v1::agent_server::AgentServer;
use knit_kni::v1::extension_registry_server::ExtensionRegistryServer;
use knit_kni::v1::standalone_server::StandaloneServer;
use knit_kni::{FILE_DESCRIPTOR_SET, MAX_MESSAGE, Reason, Refusal};
use knit_model::problem::{Problem, Reason as Why};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch as signal;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::metadata::MetadataMap;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

pub(crate) use extensions::outgoing;

use crate::config::Config;
use crate::daemon::Handle;
use crate::error::{Error, Result};
use crate::log::Lines;
use crate::metrics::Metrics;
use crate::node::now;

/// A request is small, also one that lists a thousand living attachments.
const MAX_REQUEST: usize = 4 << 20;
/// So many calls of one connection are worked on at once; more of them wait.
const PER_CONNECTION: usize = 256;
/// So many streams one connection may have open.
const STREAMS: u32 = 512;

/// What the services say about the agent itself.
#[derive(Clone, Debug)]
pub struct About {
    /// The node's name.
    pub node: String,
    /// `standalone`, `beside` or `primary`.
    pub profile: String,
    /// When the agent started.
    pub started: Time,
    /// Where namespaces are made.
    pub netns_dir: PathBuf,
    /// The folder that holds what the agent knows.
    pub state_dir: PathBuf,
    /// Where plugins of the proof of concept listen.
    pub plugins: PathBuf,
}

/// What every service has.
#[derive(Clone)]
pub struct Services {
    handle: Handle,
    about: Arc<About>,
    lines: Lines,
    /// Whoever gives objects and sandboxes by hand comes one after the other.
    desk: standalone::Desk,
}

impl About {
    /// This agent, from now on.
    pub fn new(config: &Config) -> Self {
        let folder = &config.state_dir;
        Self {
            node: config.node_name.clone(),
            profile: config.profile.name().to_owned(),
            started: now(),
            netns_dir: config.netns_dir.clone(),
            // Whoever compares it may stand elsewhere.
            state_dir: folder.canonicalize().unwrap_or_else(|_| folder.clone()),
            plugins: config.kni_socket.with_file_name("plugins"),
        }
    }
}

impl Services {
    /// The services of a daemon.
    pub fn new(handle: Handle, about: About, lines: Lines) -> Self {
        Self { handle, about: Arc::new(about), lines, desk: standalone::Desk::default() }
    }

    /// Serves the socket until told to stop. Calls that are under way are answered first.
    pub async fn serve(self, listener: UnixListener, mut stop: signal::Receiver<bool>) -> Result<()> {
        let metrics = Arc::clone(self.handle.metrics());
        let peers = InterceptorLayer::new(move |request: Request<()>| check_peer(request, &metrics));
        let (health, health_service) = tonic_health::server::health_reporter();
        let kni = KniServer::new(self.clone()).max_decoding_message_size(MAX_REQUEST);
        let agent = AgentServer::new(self.clone())
            .max_decoding_message_size(MAX_REQUEST)
            .max_encoding_message_size(MAX_MESSAGE);
        let registry = ExtensionRegistryServer::new(self.clone()).max_decoding_message_size(MAX_REQUEST);
        let plugins = KnixPluginManagerServer::new(self.clone()).max_decoding_message_size(MAX_REQUEST);
        let standalone = StandaloneServer::new(self.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        health.set_serving::<KniServer<Self>>().await;
        health.set_serving::<AgentServer<Self>>().await;
        let described = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let cannot = |why: tonic_reflection::server::Error| Error::Serve {
            what: "reflection".to_owned(),
            why: why.to_string(),
        };
        // Most tools still speak the older version.
        let (reflection, older) =
            (described().build_v1().map_err(cannot)?, described().build_v1alpha().map_err(cannot)?);
        let served = Server::builder()
            .layer(Calls::new(&format!("{:x}", self.about.started.0 & 0xffff_ffff)))
            .layer(peers)
            .concurrency_limit_per_connection(PER_CONNECTION)
            .max_concurrent_streams(STREAMS)
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .add_service(kni)
            .add_service(agent)
            .add_service(registry)
            .add_service(plugins)
            .add_service(standalone)
            .add_service(health_service)
            .add_service(reflection)
            .add_service(older)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
                // Whoever tells it may be gone: that, too, means stop.
                let _ = stop.wait_for(|stop| *stop).await;
            })
            .await;
        served.map_err(|why| Error::Serve { what: "the KNI socket".to_owned(), why: why.to_string() })
    }

    /// The id of a call: it came with one, or [`Calls`] gave it one.
    fn call_id(&self, metadata: &MetadataMap) -> CallId {
        CallId(knit_kni::call::id(metadata).unwrap_or_default().to_owned())
    }
}

/// Listens on a socket that only this user can open. A socket that an earlier agent left is replaced; a living agent's is
/// not.
pub async fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |what: &str, source| Error::File { path: format!("{} ({what})", path.display()), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| failed("make its folder", source))?;
    }
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            let why = "it is there already, and is no socket".to_owned();
            return Err(Error::Serve { what: path.display().to_string(), why });
        }
        if UnixStream::connect(path).await.is_ok() {
            let why = "another agent listens there".to_owned();
            return Err(Error::Serve { what: path.display().to_string(), why });
        }
        std::fs::remove_file(path).map_err(|source| failed("remove the old one", source))?;
    }
    // Between its birth and the change of its mode nobody else may open it: it is born beside its place, in a name that
    // nobody knows, and moved there when it is closed to others.
    let born = path.with_extension(format!("{}.new", std::process::id()));
    let _ = std::fs::remove_file(&born);
    let listener = UnixListener::bind(&born).map_err(|source| failed("listen", source))?;
    std::fs::set_permissions(&born, Permissions::from_mode(0o600))
        .map_err(|source| failed("close it to others", source))?;
    std::fs::rename(&born, path).map_err(|source| failed("put it in its place", source))?;
    Ok(listener)
}

fn check_peer(request: Request<()>, metrics: &Metrics) -> Result<Request<()>, Status> {
    let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
    check_credentials(peer, metrics).map(|()| request)
}

/// Only root and the agent's own user may call.
fn check_credentials(peer: Option<UCred>, metrics: &Metrics) -> Result<(), Status> {
    let mine = nix::unistd::geteuid().as_raw();
    match peer {
        Some(peer) if peer.uid() == 0 || peer.uid() == mine => Ok(()),
        peer => {
            let who = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.uid().to_string());
            metrics.refused_peer();
            metrics.failed(Why::NotAllowed);
            tracing::warn!(uid = %who, "a peer without the right credentials was refused");
            let message = format!("user {who} may not call this agent: only root may");
            Err(Refusal::new(Reason::NotAllowed, message).into())
        }
    }
}

/// What the engine says is wrong, in the interface's words.
fn refusal(problem: &Problem, call: &CallId, object: &str) -> Refusal {
    let reason = match problem.reason {
        Why::InvalidValue => Reason::InvalidValue,
        Why::Conflict => Reason::Conflict,
        Why::RangeOverlap => Reason::RangeOverlap,
        Why::AddressesExhausted => Reason::AddressesExhausted,
        Why::NotFound => Reason::NotFound,
        Why::NotAllowed => Reason::NotAllowed,
        Why::NotOwned => Reason::NotOwned,
        Why::KernelLacks => Reason::KernelLacks,
        Why::KernelRefused => Reason::KernelRefused,
        Why::AlreadyPresent => Reason::AlreadyPresent,
        Why::Superseded => Reason::Superseded,
        Why::SandboxGone => Reason::SandboxGone,
        Why::Busy => Reason::Busy,
        Why::ExtensionFailed => Reason::ExtensionFailed,
        // Quotas are for what objects ask for; a call is never refused by one.
        Why::NotReady | Why::QuotaExceeded => Reason::NotReady,
    };
    let mut refusal = Refusal::new(reason, problem.to_string()).about(object).call(&call.0);
    if !problem.field.is_empty() {
        refusal = refusal.field(&problem.field);
    }
    refusal
}

/// An answer that carries the call's id.
fn answer<T>(call: &CallId, message: T) -> Response<T> {
    let mut response = Response::new(message);
    knit_kni::call::set_id(response.metadata_mut(), &call.0);
    response
}

/// Why this agent is not ready for new pods, in words; nothing when it is. Addresses that are used up are not the agent's to
/// mend: one that is not ready for want of them would keep all agents from being replaced by newer ones.
pub fn readiness(state: &knit_engine::State) -> Vec<String> {
    let new_pods = nodes::readiness(state).new_pods.unwrap_or_default();
    let exhausted = Reason::AddressesExhausted.as_str();
    let bad =
        new_pods.conditions.into_iter().filter(|condition| !condition.ok && condition.reason != exhausted);
    bad.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect()
}
