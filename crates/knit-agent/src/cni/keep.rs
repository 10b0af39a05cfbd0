//! Keeps shim and configuration in their places while the agent runs, on a thread of its own.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{CniConfig, Print};
use crate::daemon::{Handle, Outside};
use crate::error::{Error, Result};

/// How often the folders are looked at.
const LOOK: Duration = Duration::from_secs(2);
/// In the state folder: what the agent installed, so that it removes it when it is told to install it no more.
const NOTE: &str = "cni.json";

/// Who asks for readiness hears what is wrong under this name.
const CONDITION: &str = "CniConfiguration";

/// Starts the thread, if there is something to keep or to remove. It ends when the other end of `stop` is dropped; files
/// stay as they are then, because pods that live on are deleted through them.
pub(crate) fn keep(
    config: &CniConfig,
    state_dir: &Path,
    socket: &Path,
    handle: Handle,
    stop: Receiver<()>,
) -> Result<()> {
    let note = state_dir.join(NOTE);
    let old: Option<CniConfig> =
        std::fs::read(&note).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if !config.install && old.is_none() {
        return Ok(());
    }
    let keeper = Keeper {
        config: config.clone(),
        old: old.filter(|old| !config.install || places(old) != places(config)),
        note,
        socket: socket.to_owned(),
        handle,
        said: String::new(),
        stood: None,
    };
    if config.install {
        keeper.write_note()?;
    }
    std::thread::Builder::new()
        .name("knit-cni".to_owned())
        .spawn(move || keeper.run(&stop))
        .map_err(|source| Error::File { path: "thread knit-cni".to_owned(), source })?;
    Ok(())
}

fn places(config: &CniConfig) -> (&Path, &Path, &str) {
    (&config.bin_dir, &config.conf_dir, &config.conf_name)
}

struct Keeper {
    config: CniConfig,
    /// What was installed elsewhere, and is to go.
    old: Option<CniConfig>,
    note: PathBuf,
    socket: PathBuf,
    handle: Handle,
    /// What was said last, so that it is said once.
    said: String,
    /// What there was when all was as it should be: while that is there nothing has to be read.
    stood: Option<[Print; 4]>,
}

impl Keeper {
    fn run(mut self, stop: &Receiver<()>) {
        loop {
            self.remove_old();
            if self.config.install {
                self.look();
            } else if self.old.is_none() {
                return;
            }
            if !matches!(stop.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    fn write_note(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.config).unwrap_or_default();
        super::put(&self.note, &text, 0o600)
    }

    /// The configuration goes at once; the shim once no pod is left that was added through it.
    fn remove_old(&mut self) {
        let Some(old) = &self.old else { return };
        let configuration = (old.conf_dir != self.config.conf_dir
            || old.conf_name != self.config.conf_name
            || !self.config.install)
            .then(|| old.remove_configuration());
        report(configuration.unwrap_or(Ok(Vec::new())));
        let moved = self.config.install && old.bin_dir == self.config.bin_dir;
        if !moved {
            if self.has_pods() {
                return;
            }
            report(old.remove_shim());
        }
        self.old = None;
        if !self.config.install {
            let _ = std::fs::remove_file(&self.note);
        }
    }

    fn has_pods(&self) -> bool {
        let asked = self.handle.ask_blocking(|node| {
            node.state().called.all().any(|there| there.notes.group.starts_with("cni:"))
        });
        asked.unwrap_or(true)
    }

    /// Puts back what is missing, and says what is in the way.
    fn look(&mut self) {
        if self.stood.is_some() && self.stood == self.config.prints() {
            return;
        }
        let wrong = match self.config.install(&self.socket) {
            Ok(done) => {
                done.iter().for_each(|line| tracing::info!("CNI: {line}"));
                self.shadow()
            }
            Err(why) => {
                self.stood = None;
                Some(("CniNotInstalled", why.to_string()))
            }
        };
        let said = wrong.as_ref().map(|(_, message)| message.clone()).unwrap_or_default();
        if said != self.said {
            match &wrong {
                Some((reason, message)) => tracing::warn!(reason, "CNI: {message}"),
                None => tracing::info!("CNI: container runtimes take {}", self.config.conf_name),
            }
            self.said = said;
        }
        let outside = wrong.map(|(reason, message)| Outside { what: CONDITION, reason, message });
        self.handle.set_outside(CONDITION, outside);
    }

    fn shadow(&mut self) -> Option<(&'static str, String)> {
        // Before what follows: what changes meanwhile is another the next time.
        let prints = self.config.prints();
        let look = self.config.look(&self.socket).ok()?;
        self.stood = prints.filter(|_| look.stands());
        let shadow = look.shadow()?;
        let message = format!(
            "container runtimes take {} before {}: remove it, or give Knit's an earlier name (cni.confName)",
            shadow.display(),
            look.configuration.display()
        );
        Some(("CniShadowed", message))
    }
}

fn report(done: Result<Vec<String>>) {
    match done {
        Ok(lines) => lines.iter().for_each(|line| tracing::info!("CNI: {line}")),
        Err(why) => tracing::warn!(%why, "CNI: could not be removed"),
    }
}
