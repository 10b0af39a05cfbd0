//! Global flags that select the node: the state directory and the agent that may own it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use knit_agent::Standalone;
use knit_kni::DEFAULT_SOCKET;

use crate::fault;
use crate::local_api::{AgentClient, LocalApi};

/// The default state directory.
const DEFAULT_STATE_DIR: &str = "/var/lib/knit/standalone";

/// Advice if the state directory is locked and the agent on the socket does not own it.
const LOCKED_ADVICE: &str = "if an agent uses the state directory, set its socket with --kni-socket; otherwise wait until the other command has finished";

/// The default namespace, as with kubectl.
pub const DEFAULT_NAMESPACE: &str = "default";

/// The node that a command works on.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// State directory [default: /var/lib/knit/standalone]
    #[arg(long, global = true, env = "KNIT_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Socket of the agent; commands call the agent while it runs [default: /run/knit/kni.sock]
    #[arg(long, global = true, env = "KNIT_KNI_SOCKET", value_name = "PATH")]
    kni_socket: Option<PathBuf>,
    /// Remove links of a Knit with another state directory, instead of rejecting the change
    #[arg(long, global = true)]
    take_over: bool,
}

impl NodeArgs {
    /// The state directory, if it is set explicitly.
    pub fn explicit_state_dir(&self) -> Option<&Path> {
        self.state_dir.as_deref()
    }

    /// The state directory.
    pub fn state_dir(&self) -> &Path {
        self.explicit_state_dir().unwrap_or(Path::new(DEFAULT_STATE_DIR))
    }

    /// Connects to the running agent, or opens the node in this process.
    ///
    /// An explicit state directory takes precedence: an agent with another state directory is ignored.
    pub fn local_api(&self) -> Result<LocalApi> {
        let socket = self.kni_socket.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
        match AgentClient::connect(socket) {
            Ok(Some(agent))
                if self.explicit_state_dir().is_none_or(|state_dir| agent.uses_state_dir(state_dir)) =>
            {
                Ok(LocalApi::Agent(Box::new(agent)))
            }
            // An agent that this user may not call cannot own an explicit state directory of this user.
            Err(error) if self.explicit_state_dir().is_none() => Err(error),
            Ok(_) | Err(_) => Ok(LocalApi::InProcess(Box::new(self.open()?))),
        }
    }

    /// Opens the node in this process. Prints problems with the state directory to standard error.
    fn open(&self) -> Result<Standalone> {
        let opened = Standalone::open(self.state_dir());
        let is_locked = matches!(&opened, Err(error) if error.is_state_locked());
        let mut node = if is_locked { opened.context(LOCKED_ADVICE)? } else { opened? };
        for note in &node.notes {
            eprintln!("knit: {note}");
        }
        if !self.take_over {
            node.node().keep_foreign_links();
        }
        fault::inject(&mut node)?;
        Ok(node)
    }
}
