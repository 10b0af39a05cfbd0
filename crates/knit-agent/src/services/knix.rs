//! Plugins of the KNI proof of concept (KNIX). Their messages are empty: a plugin is identified by the socket that its process listens on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use knit_engine::Event;
use knit_engine::extension::{ExtensionProtocol, ExtensionSpec, FailPolicy, HookPhase};
use knit_engine::extensions::{ExtensionRegistration, ExtensionRemoval};
use knit_kni::kni;
use knit_kni::kni::knix_plugin_manager_server::KnixPluginManager;
use knit_kni::{Reason, RpcError};
use tokio::net::UnixStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

use super::agent::ok;
use super::{Services, answer, extensions};

/// Fixed settings: KNIX has no fields for them.
const ORDER: i32 = 1_000;
const DEADLINE: u64 = 5_000;
/// Timeout of connecting to a plugin's socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The metadata key with the names of all extensions.
const NAMES: &str = "knit-extensions";

/// The calling plugin: its name and its socket.
async fn plugin_of<T>(request: &Request<T>, folder: &Path) -> Result<(String, PathBuf), RpcError> {
    let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
    let unknown = || RpcError::new(Reason::NotAllowed, "the pid of the calling process is unknown");
    let pid = peer.and_then(|peer| peer.pid()).filter(|pid| *pid > 0).ok_or_else(unknown)?;
    let mut sockets: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    sockets.sort();
    for socket in sockets {
        if listener(&socket).await == Some(pid) {
            let stem = socket.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            return Ok((extensions::name("the socket's name", stem)?, socket));
        }
    }
    let message = format!(
        "process {pid} does not listen on a socket in {}: a plugin has to listen on <name>.sock there before it registers",
        folder.display()
    );
    Err(RpcError::new(Reason::NotFound, message))
}

/// The process that listens on a socket.
async fn listener(socket: &Path) -> Option<i32> {
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await.ok()?.ok()?;
    stream.peer_cred().ok()?.pid()
}

#[tonic::async_trait]
impl KnixPluginManager for Services {
    async fn register_plugin(
        &self,
        request: Request<kni::RegisterPluginRequest>,
    ) -> Result<Response<kni::RegisterPluginResponse>, Status> {
        let call = self.call_id(request.metadata());
        let (name, socket) = plugin_of(&request, &self.info.plugins).await?;
        let object = format!("extension {name}");
        let spec = ExtensionSpec {
            name,
            order: ORDER,
            socket: socket.display().to_string(),
            phases: [HookPhase::AfterAttach].into(),
            namespaces: Default::default(),
            labels: Default::default(),
            fail: FailPolicy::Fail,
            deadline: DEADLINE,
            protocol: ExtensionProtocol::Knix,
        };
        // The socket serves as its token: a registration with a token has another digest.
        let (shown, fresh) = (Some(String::new()), String::new());
        let requested = ExtensionRegistration {
            call: call.clone(),
            spec,
            token_digest: shown,
            new_token_digest: fresh,
            admin: false,
        };
        let event = Event::ExtensionRegistrationRequested(Box::new(requested));
        self.call(&call, &object, event, |_, answer| ok(answer)).await?;
        tracing::info!(call = %call, %object, "registered a KNIX plugin");
        Ok(answer(&call, kni::RegisterPluginResponse {}))
    }

    async fn deregister_plugin(
        &self,
        request: Request<kni::DeregisterPluginRequest>,
    ) -> Result<Response<kni::DeregisterPluginResponse>, Status> {
        let call = self.call_id(request.metadata());
        let (name, _) = plugin_of(&request, &self.info.plugins).await?;
        let object = format!("extension {name}");
        let requested =
            ExtensionRemoval { call: call.clone(), name, token_digest: Some(String::new()), admin: false };
        self.call(&call, &object, Event::ExtensionRemovalRequested(requested), |_, answer| ok(answer))
            .await?;
        tracing::info!(call = %call, %object, "deregistered a KNIX plugin");
        Ok(answer(&call, kni::DeregisterPluginResponse {}))
    }

    async fn list_plugins(
        &self,
        request: Request<kni::ListPluginsRequest>,
    ) -> Result<Response<kni::ListPluginsResponse>, Status> {
        let call = self.call_id(request.metadata());
        let names = self
            .query(|node| {
                let all = node.state().extensions.in_order().into_iter();
                Ok(all.map(|one| one.spec.name.clone()).collect::<Vec<String>>().join(","))
            })
            .await?;
        let mut response = answer(&call, kni::ListPluginsResponse {});
        // Names are ASCII, so this never fails.
        if let Ok(value) = names.parse() {
            response.metadata_mut().insert(NAMES, value);
        }
        Ok(response)
    }
}
