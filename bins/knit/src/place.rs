//! Where a command works: the state folder and the namespace.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use knit_agent::Standalone;

use crate::fault;

/// The folder that holds what Knit knows, unless told otherwise.
const STATE_DIR: &str = "/var/lib/knit/standalone";

/// What to do when the folder is in use. An agent holds it for as long as it runs.
const ASK_THE_AGENT: &str = "if an agent runs here, ask it (`knit pods`, `knit networks`, `knit ready`) and put objects into \
    the folder that it watches (`knit agent --standalone`); otherwise wait for the other command";

/// The namespace of what names none, as with kubectl.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Where a command works.
#[derive(Debug, Args)]
pub struct Place {
    /// The folder that holds what Knit knows [default: /var/lib/knit/standalone]
    #[arg(long, global = true, env = "KNIT_STATE_DIR", value_name = "DIR")]
    state_dir: Option<PathBuf>,
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

    /// Opens the node to look at it. Says on standard error what was found wrong in its folder.
    pub fn open(&self) -> Result<Standalone> {
        let opened = Standalone::open(self.folder());
        let is_locked =
            matches!(&opened, Err(knit_agent::Error::Store(why)) if why.reason() == "StateLocked");
        let mut node = if is_locked { opened.context(ASK_THE_AGENT)? } else { opened? };
        for note in &node.notes {
            eprintln!("knit: {note}");
        }
        fault::arm(&mut node)?;
        Ok(node)
    }

    /// Opens the node to change it. What someone changed by hand is repaired first, and said on standard error.
    pub fn change(&self) -> Result<Standalone> {
        let mut node = self.open()?;
        for repair in node.repair()? {
            eprintln!("knit: {repair}");
        }
        Ok(node)
    }
}
