//! Where a command works: the state folder, the namespace, and the agent that may have the folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use knit_agent::Standalone;
use knit_kni::DEFAULT_SOCKET;

use crate::desk::{Agent, Desk};
use crate::fault;

/// The folder that holds what Knit knows, unless told otherwise.
const STATE_DIR: &str = "/var/lib/knit/standalone";

/// What to do when the folder is in use and no agent on the socket says that it has it.
const LOCKED: &str =
    "if an agent has it, name that agent's socket with --kni-socket; otherwise wait for the other command";

/// The namespace of what names none, as with kubectl.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Where a command works.
#[derive(Debug, Args)]
pub struct Place {
    /// The folder that holds what Knit knows [default: /var/lib/knit/standalone]
    #[arg(long, global = true, env = "KNIT_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The agent's socket: while an agent has the node, commands ask it [default: /run/knit/kni.sock]
    #[arg(long, global = true, env = "KNIT_KNI_SOCKET", value_name = "PATH")]
    kni_socket: Option<PathBuf>,
    /// Remove what a Knit with another state folder made on this machine, instead of refusing to change anything
    #[arg(long, global = true)]
    take_over: bool,
}

impl Place {
    /// The folder, if one was named.
    pub fn named(&self) -> Option<&Path> {
        self.state_dir.as_deref()
    }

    /// The folder, named or not.
    pub fn folder(&self) -> &Path {
        self.named().unwrap_or(Path::new(STATE_DIR))
    }

    /// Who has the node: an agent that runs here, or else this process.
    ///
    /// A folder that is named is meant whoever runs on the machine, so that an agent with another folder is passed over.
    pub fn desk(&self) -> Result<Desk> {
        let socket = self.kni_socket.as_deref().unwrap_or(Path::new(DEFAULT_SOCKET));
        match Agent::at(socket) {
            Ok(Some(agent)) if self.named().is_none_or(|folder| agent.has(folder)) => {
                Ok(Desk::Agent(Box::new(agent)))
            }
            // An agent that does not let this user in has nothing to say about a folder of theirs.
            Err(why) if self.named().is_none() => Err(why),
            Ok(_) | Err(_) => Ok(Desk::Here(Box::new(self.open()?))),
        }
    }

    /// Opens the node in this process. Says on standard error what was found wrong in its folder.
    fn open(&self) -> Result<Standalone> {
        let opened = Standalone::open(self.folder());
        let is_locked =
            matches!(&opened, Err(knit_agent::Error::Store(why)) if why.reason() == "StateLocked");
        let mut node = if is_locked { opened.context(LOCKED)? } else { opened? };
        for note in &node.notes {
            eprintln!("knit: {note}");
        }
        if !self.take_over {
            node.node().spare_strays();
        }
        fault::arm(&mut node)?;
        Ok(node)
    }
}
