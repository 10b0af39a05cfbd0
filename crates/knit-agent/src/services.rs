//! The agent's gRPC services: packages kni and knit.v1, health and reflection, on one unix socket.
//!
//! A service validates and translates a request, passes it to the event loop, and renders the result. The engine decides.

mod agent;
mod check;
mod connections;
pub mod decode;
mod extensions;
mod frames;
mod kni;
mod knix;
mod logs;
mod nodes;
mod plugin_chain;
mod pods;
mod policies;
pub(crate) mod request;
mod standalone;
mod streams;
mod watch;

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knit_engine::CallId;
use knit_ipam::Time;
use knit_kni::call::CallIdLayer;
use knit_kni::kni::kni_server::KniServer;
use knit_kni::kni::knix_plugin_manager_server::KnixPluginManagerServer;
use knit_kni::v1::agent_server::AgentServer;
use knit_kni::v1::extension_registry_server::ExtensionRegistryServer;
use knit_kni::v1::standalone_server::StandaloneServer;
use knit_kni::{FILE_DESCRIPTOR_SET, MAX_MESSAGE, Reason, RpcError};
use knit_model::problem::{Problem, Reason as Why};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch as signal;
use tonic::metadata::MetadataMap;
use tonic::service::InterceptorLayer;
use tonic::transport::Server;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

pub(crate) use extensions::outgoing_call;

use crate::config::Config;
use crate::daemon::Handle;
use crate::error::{Error, Result};
use crate::log::LogBuffer;
use crate::metrics::Metrics;
use crate::node::now;

/// Upper bound of a request, in bytes: enough for a list of a thousand attachments.
const MAX_REQUEST: usize = 4 << 20;
/// Concurrent calls of one connection; more of them wait.
const MAX_CALLS_PER_CONNECTION: usize = 256;
/// Concurrent streams of one connection.
const MAX_STREAMS: u32 = 512;

/// What the services report about the agent itself.
#[derive(Clone, Debug)]
pub struct AgentInfo {
    /// The node's name.
    pub node: String,
    /// `standalone`, `beside` or `primary`.
    pub profile: String,
    /// When the agent started.
    pub started: Time,
    /// The directory of network namespaces created on request.
    pub netns_dir: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// The directory of KNIX plugin sockets.
    pub plugins: PathBuf,
}

/// Shared by all services.
#[derive(Clone)]
pub struct Services {
    handle: Handle,
    info: Arc<AgentInfo>,
    log: LogBuffer,
    /// Serialises changes through the local API.
    local_api: standalone::LocalApiLock,
    streams: streams::OpenStreams,
}

impl AgentInfo {
    /// Describes this agent.
    pub fn new(config: &Config) -> Self {
        let folder = &config.state_dir;
        Self {
            node: config.node_name.clone(),
            profile: config.profile.name().to_owned(),
            started: now(),
            netns_dir: config.netns_dir.clone(),
            // Clients compare it from other working directories.
            state_dir: folder.canonicalize().unwrap_or_else(|_| folder.clone()),
            plugins: config.kni_socket.with_file_name("plugins"),
        }
    }
}

impl Services {
    /// The services of a daemon.
    pub fn new(handle: Handle, info: AgentInfo, log: LogBuffer) -> Self {
        Self {
            handle,
            info: Arc::new(info),
            log,
            local_api: standalone::LocalApiLock::default(),
            streams: streams::OpenStreams::default(),
        }
    }

    /// Serves the socket until `stop`. Calls in flight are completed first.
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
        // Most tools still use the older version.
        let (reflection, older) =
            (described().build_v1().map_err(cannot)?, described().build_v1alpha().map_err(cannot)?);
        let served = Server::builder()
            .layer(CallIdLayer::new(&format!("{:x}", self.info.started.0 & 0xffff_ffff)))
            .layer(peers)
            .concurrency_limit_per_connection(MAX_CALLS_PER_CONNECTION)
            .max_concurrent_streams(MAX_STREAMS)
            .http2_keepalive_interval(Some(Duration::from_secs(30)))
            .add_service(kni)
            .add_service(agent)
            .add_service(registry)
            .add_service(plugins)
            .add_service(standalone)
            .add_service(health_service)
            .add_service(reflection)
            .add_service(older)
            .serve_with_incoming_shutdown(connections::accept(listener), async move {
                // A dropped sender also means stop.
                let _ = stop.wait_for(|stop| *stop).await;
            })
            .await;
        served.map_err(|why| Error::Serve { what: "the KNI socket".to_owned(), why: why.to_string() })
    }

    /// The id of a call: the caller's, or the one that [`Calls`] generated.
    fn call_id(&self, metadata: &MetadataMap) -> CallId {
        CallId(knit_kni::call::id(metadata).unwrap_or_default().to_owned())
    }
}

/// Listens on a socket that only this user can open. The socket of an earlier agent is replaced, that of a running one is not.
pub async fn listen(path: &Path) -> Result<UnixListener> {
    let failed = |what: &str, source| Error::File { path: format!("{} ({what})", path.display()), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|source| failed("create its directory", source))?;
    }
    if let Ok(found) = path.symlink_metadata() {
        if !found.file_type().is_socket() {
            let why = "the file exists and is not a socket".to_owned();
            return Err(Error::Serve { what: path.display().to_string(), why });
        }
        if UnixStream::connect(path).await.is_ok() {
            let why = "another agent is listening on it".to_owned();
            return Err(Error::Serve { what: path.display().to_string(), why });
        }
        std::fs::remove_file(path).map_err(|source| failed("remove the old socket", source))?;
    }
    // The socket is created under a temporary name and renamed after its mode is set, so that no other user can open it in between.
    let born = path.with_extension(format!("{}.new", std::process::id()));
    let _ = std::fs::remove_file(&born);
    let listener = UnixListener::bind(&born).map_err(|source| failed("listen", source))?;
    std::fs::set_permissions(&born, Permissions::from_mode(0o600))
        .map_err(|source| failed("set its mode", source))?;
    std::fs::rename(&born, path).map_err(|source| failed("rename it", source))?;
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
            metrics.rejected_peer();
            metrics.failed(Why::NotAllowed);
            tracing::warn!(uid = %who, "rejected a connection because of the peer's credentials");
            let message = format!("user {who} may not call this agent: only root may");
            Err(RpcError::new(Reason::NotAllowed, message).into())
        }
    }
}

/// Renders a problem of the engine.
fn rejection(problem: &Problem, call: &CallId, object: &str) -> RpcError {
    let reason = match problem.reason {
        Why::InvalidValue => Reason::InvalidValue,
        Why::Conflict => Reason::Conflict,
        Why::RangeOverlap => Reason::RangeOverlap,
        Why::RangeNotOpen => Reason::RangeNotOpen,
        Why::AddressesExhausted => Reason::AddressesExhausted,
        Why::NotFound => Reason::NotFound,
        Why::NotAllowed => Reason::NotAllowed,
        Why::NotOwned => Reason::NotOwned,
        Why::KernelUnsupported => Reason::KernelUnsupported,
        Why::KernelError => Reason::KernelError,
        Why::AlreadyPresent => Reason::AlreadyPresent,
        Why::Superseded => Reason::Superseded,
        Why::SandboxGone => Reason::SandboxGone,
        Why::Busy => Reason::Busy,
        Why::ExtensionFailed => Reason::ExtensionFailed,
        // Quotas apply to objects only; a call never exceeds one.
        Why::NotReady | Why::QuotaExceeded => Reason::NotReady,
    };
    let mut refusal = RpcError::new(reason, problem.to_string()).about(object).call(&call.0);
    if !problem.field.is_empty() {
        refusal = refusal.field(&problem.field);
    }
    refusal
}

/// A response with the call's id.
fn answer<T>(call: &CallId, message: T) -> Response<T> {
    let mut response = Response::new(message);
    knit_kni::call::set_id(response.metadata_mut(), &call.0);
    response
}

/// Why this agent is not ready for new pods; empty when it is. Exhausted addresses do not count: they would block rolling updates of the
/// agent without helping.
pub fn readiness(state: &knit_engine::State) -> Vec<String> {
    let new_pods = nodes::readiness(state).new_pods.unwrap_or_default();
    let exhausted = Reason::AddressesExhausted.as_str();
    let bad =
        new_pods.conditions.into_iter().filter(|condition| !condition.ok && condition.reason != exhausted);
    bad.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect()
}
