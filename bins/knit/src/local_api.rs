//! The API behind the commands: a running agent, or the node in this process. Both handle the same requests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use knit_agent::Standalone;
use knit_agent::standalone::local_api;
use knit_kni::{Client, Error, v1};
use tokio::runtime::{Builder, Runtime};

/// Timeout of the first call to an agent. Later calls have none: an apply may take long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Handles the requests of commands.
pub enum LocalApi {
    /// The node in this process, under the lock of the state directory.
    InProcess(Box<Standalone>),
    /// A running agent.
    Agent(Box<AgentClient>),
}

/// A connection to a running agent.
pub struct AgentClient {
    client: Client,
    runtime: Runtime,
    state_dir: String,
}

impl AgentClient {
    /// Connects to the agent on this socket; `None` if nothing listens there.
    pub fn connect(socket: &Path) -> Result<Option<Self>> {
        let listens = match std::os::unix::net::UnixStream::connect(socket) {
            Ok(_) => true,
            // The gRPC client returns a typed error for this.
            Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
        };
        if !listens {
            return Ok(None);
        }
        let runtime =
            Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
        let connected = runtime.block_on(async {
            let client = Client::connect(socket).await?;
            let node = client.clone().with_deadline(CONNECT_TIMEOUT).get_node(v1::GetNodeRequest {}).await?;
            Ok::<_, Error>((client, node.node.unwrap_or_default()))
        });
        let (client, node) = connected?;
        Ok(Some(Self { client, runtime, state_dir: node.state_dir }))
    }

    /// Whether the agent uses this state directory.
    pub fn uses_state_dir(&self, state_dir: &Path) -> bool {
        state_dir.canonicalize().is_ok_and(|state_dir| state_dir == Path::new(&self.state_dir))
    }
}

/// One method for each request.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $response:ident;)*) => {
        impl LocalApi {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, request: v1::$request) -> Result<v1::$response> {
                    match self {
                        Self::InProcess(node) => Ok(local_api::$name(node, request)?),
                        Self::Agent(agent) => Ok(agent.runtime.block_on(agent.client.$name(request))?),
                    }
                }
            )*
        }
    };
}

knit_kni::standalone_calls!(requests);

/// Prints repaired drift to standard error.
pub fn print_repairs(repairs: &[String]) {
    for repair in repairs {
        eprintln!("knit: {repair}");
    }
}
