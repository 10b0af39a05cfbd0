//! Who answers what the commands ask: the node in this process, or an agent that has it. Both answer the same requests with
//! the same answers.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use knit_agent::Standalone;
use knit_agent::standalone::desk;
use knit_kni::{Client, Error, v1};
use tokio::runtime::{Builder, Runtime};

/// How long an agent may take to say who it is. What it is asked then may take as long as it takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who answers.
pub enum Desk {
    /// The node in this process, under the lock of its folder.
    Here(Box<Standalone>),
    /// An agent.
    Agent(Box<Agent>),
}

/// An agent that runs, and what it has.
pub struct Agent {
    client: Client,
    runtime: Runtime,
    folder: String,
}

impl Agent {
    /// The agent that listens there; `None` if nobody does.
    pub fn at(socket: &Path) -> Result<Option<Self>> {
        let listens = match std::os::unix::net::UnixStream::connect(socket) {
            Ok(_) => true,
            // The client says it in words.
            Err(why) => why.kind() == std::io::ErrorKind::PermissionDenied,
        };
        if !listens {
            return Ok(None);
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime that talks to the agent")?;
        let asked = runtime.block_on(async {
            let client = Client::connect(socket).await?;
            let node = client.clone().with_deadline(PATIENCE).get_node(v1::GetNodeRequest {}).await?;
            Ok::<_, Error>((client, node.node.unwrap_or_default()))
        });
        let (client, node) = asked?;
        Ok(Some(Self { client, runtime, folder: node.state_dir }))
    }

    /// Whether this is the folder that the agent has.
    pub fn has(&self, folder: &Path) -> bool {
        folder.canonicalize().is_ok_and(|folder| folder == Path::new(&self.folder))
    }
}

/// One method for each request.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($request:ident) -> $answer:ident;)*) => {
        impl Desk {
            $(
                $(#[$doc])*
                pub fn $name(&mut self, request: v1::$request) -> Result<v1::$answer> {
                    match self {
                        Self::Here(node) => Ok(desk::$name(node, request)?),
                        Self::Agent(agent) => Ok(agent.runtime.block_on(agent.client.$name(request))?),
                    }
                }
            )*
        }
    };
}

requests! {
    /// Makes the node look as objects say.
    apply(ApplyRequest) -> ApplyResponse;
    /// Deletes objects.
    delete_objects(DeleteObjectsRequest) -> DeleteObjectsResponse;
    /// Goes back to the objects before the last change.
    undo(UndoRequest) -> UndoResponse;
    /// Objects with their status.
    list_objects(ListObjectsRequest) -> ListObjectsResponse;
    /// What Knit has made, what is in the way, and what someone changed by hand.
    get_status(GetStatusRequest) -> GetStatusResponse;
    /// Has a sandbox known.
    add_sandbox(AddSandboxRequest) -> AddSandboxResponse;
    /// Changes a sandbox's labels.
    label_sandbox(LabelSandboxRequest) -> LabelSandboxResponse;
    /// Takes everything of a sandbox back, and ends it.
    end_sandbox(EndSandboxRequest) -> EndSandboxResponse;
    /// Sandboxes with their interfaces.
    list_sandboxes(ListSandboxesRequest) -> ListSandboxesResponse;
}

/// Says on standard error what someone had changed by hand.
pub fn tell_repairs(repairs: &[String]) {
    for repair in repairs {
        eprintln!("knit: {repair}");
    }
}
