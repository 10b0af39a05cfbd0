//! Plugins of the public proof of concept. Their messages are empty, so that a plugin is known by what it listens on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use knit_engine::Event;
use knit_engine::extension::{ExtensionSpec, FailPolicy, Phase, Speaks};
use knit_engine::extensions::{Registration, Removal};
use knit_kni::kni;
use knit_kni::kni::knix_plugin_manager_server::KnixPluginManager;
use knit_kni::{Reason, Refusal};
use tokio::net::UnixStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status};

use super::agent::ok;
use super::{Services, answer, extensions};

/// A plugin says nothing about itself; this holds for all.
const ORDER: i32 = 1_000;
const DEADLINE: u64 = 5_000;
/// So long a socket may take to say whose it is.
const PATIENCE: Duration = Duration::from_secs(1);
/// The metadata with the names of all extensions.
const NAMES: &str = "knit-extensions";

/// The plugin that a process is: a name, and the socket that it listens on.
async fn plugin_of<T>(request: &Request<T>, folder: &Path) -> Result<(String, PathBuf), Refusal> {
    let peer = request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred);
    let unknown =
        || Refusal::new(Reason::NotAllowed, "the calling process is not known to this agent's kernel");
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
        "process {pid} listens on no socket in {}: a plugin listens on <name>.sock there before it calls",
        folder.display()
    );
    Err(Refusal::new(Reason::NotFound, message))
}

/// The process that listens on a socket.
async fn listener(socket: &Path) -> Option<i32> {
    let stream = tokio::time::timeout(PATIENCE, UnixStream::connect(socket)).await.ok()?.ok()?;
    stream.peer_cred().ok()?.pid()
}

#[tonic::async_trait]
impl KnixPluginManager for Services {
    async fn register_plugin(
        &self,
        request: Request<kni::RegisterPluginRequest>,
    ) -> Result<Response<kni::RegisterPluginResponse>, Status> {
        let call = self.call_id(request.metadata());
        let (name, socket) = plugin_of(&request, &self.about.plugins).await?;
        let object = format!("extension {name}");
        let spec = ExtensionSpec {
            name,
            order: ORDER,
            socket: socket.display().to_string(),
            phases: [Phase::AfterAttach].into(),
            namespaces: Default::default(),
            labels: Default::default(),
            fail: FailPolicy::Fail,
            deadline: DEADLINE,
            speaks: Speaks::Knix,
        };
        // What it listens on is its token: one that was registered with another has another digest.
        let (shown, fresh) = (Some(String::new()), String::new());
        let asked = Registration { call: call.clone(), spec, shown, fresh, admin: false };
        let event = Event::ExtensionWanted(Box::new(asked));
        self.carry(&call, &object, event, |_, answer| ok(answer)).await?;
        tracing::info!(call = %call, %object, "registered, as a plugin");
        Ok(answer(&call, kni::RegisterPluginResponse {}))
    }

    async fn deregister_plugin(
        &self,
        request: Request<kni::DeregisterPluginRequest>,
    ) -> Result<Response<kni::DeregisterPluginResponse>, Status> {
        let call = self.call_id(request.metadata());
        let (name, _) = plugin_of(&request, &self.about.plugins).await?;
        let object = format!("extension {name}");
        let asked = Removal { call: call.clone(), name, shown: Some(String::new()), admin: false };
        self.carry(&call, &object, Event::ExtensionUnwanted(asked), |_, answer| ok(answer)).await?;
        tracing::info!(call = %call, %object, "deregistered, by the plugin");
        Ok(answer(&call, kni::DeregisterPluginResponse {}))
    }

    async fn list_plugins(
        &self,
        request: Request<kni::ListPluginsRequest>,
    ) -> Result<Response<kni::ListPluginsResponse>, Status> {
        let call = self.call_id(request.metadata());
        let names = self
            .see(|node| {
                let all = node.state().extensions.in_order().into_iter();
                Ok(all.map(|one| one.spec.name.clone()).collect::<Vec<String>>().join(","))
            })
            .await?;
        let mut response = answer(&call, kni::ListPluginsResponse {});
        // Names are plain ASCII, so this never fails.
        if let Ok(value) = names.parse() {
            response.metadata_mut().insert(NAMES, value);
        }
        Ok(response)
    }
}
