//! Keeps the shim and its configuration installed while the agent runs, on its own thread.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use super::{CniConfig, FileFingerprint};
use crate::daemon::{Handle, ReadinessBlocker};
use crate::error::{Error, Result};

/// How often the files are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The file in the state directory that records what the agent installed, so that it can remove it later.
const NOTE: &str = "cni.json";

/// The readiness condition that reports a failed installation.
const CONDITION: &str = "CniConfiguration";

/// Starts the thread, if there is something to install or to remove. It ends when the sender of `stop` is dropped. The files stay:
/// running pods are deleted through them.
pub(crate) fn start(
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
    let installer = Installer {
        config: config.clone(),
        old: old.filter(|old| !config.install || paths(old) != paths(config)),
        note,
        socket: socket.to_owned(),
        handle,
        logged: String::new(),
        complete: None,
    };
    if config.install {
        installer.write_note()?;
    }
    std::thread::Builder::new()
        .name("knit-cni".to_owned())
        .spawn(move || installer.run(&stop))
        .map_err(|source| Error::File { path: "thread knit-cni".to_owned(), source })?;
    Ok(())
}

fn paths(config: &CniConfig) -> (&Path, &Path, &str) {
    (&config.bin_dir, &config.conf_dir, &config.conf_name)
}

struct Installer {
    config: CniConfig,
    /// An installation in other directories that is to be removed.
    old: Option<CniConfig>,
    note: PathBuf,
    socket: PathBuf,
    handle: Handle,
    /// The last logged message, so that each is logged once.
    logged: String,
    /// The fingerprints of a complete installation: while they match, no file has to be read.
    complete: Option<[FileFingerprint; 4]>,
}

impl Installer {
    fn run(mut self, stop: &Receiver<()>) {
        loop {
            self.remove_old();
            if self.config.install {
                self.reinstall();
            } else if self.old.is_none() {
                return;
            }
            if !matches!(stop.recv_timeout(CHECK_INTERVAL), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    fn write_note(&self) -> Result<()> {
        let text = serde_json::to_vec(&self.config).unwrap_or_default();
        super::put(&self.note, &text, 0o600)
    }

    /// Removes the configuration at once, and the shim when no pod that was added through it is left.
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
        let has_pods = self.handle.query_blocking(|node| {
            node.state().attachments.all().any(|attachment| attachment.metadata.group.starts_with("cni:"))
        });
        has_pods.unwrap_or(true)
    }

    /// Reinstalls missing files and reports what prevents it.
    fn reinstall(&mut self) {
        if self.complete.is_some() && self.complete == self.config.fingerprints() {
            return;
        }
        let problem = match self.config.install(&self.socket) {
            Ok(done) => {
                done.iter().for_each(|line| tracing::info!("CNI: {line}"));
                self.shadowed_by()
            }
            Err(why) => {
                self.complete = None;
                Some(("CniNotInstalled", why.to_string()))
            }
        };
        let logged = problem.as_ref().map(|(_, message)| message.clone()).unwrap_or_default();
        if logged != self.logged {
            match &problem {
                Some((reason, message)) => tracing::warn!(reason, "CNI: {message}"),
                None => tracing::info!("CNI: container runtimes use {}", self.config.conf_name),
            }
            self.logged = logged;
        }
        let blocker =
            problem.map(|(reason, message)| ReadinessBlocker { condition: CONDITION, reason, message });
        self.handle.set_readiness_blocker(CONDITION, blocker);
    }

    fn shadowed_by(&mut self) -> Option<(&'static str, String)> {
        // Taken before the check: a change in between changes the fingerprints.
        let fingerprints = self.config.fingerprints();
        let status = self.config.status(&self.socket).ok()?;
        self.complete = fingerprints.filter(|_| status.is_complete());
        let shadow = status.shadowed_by()?;
        let message = format!(
            "container runtimes use {} instead of {}: remove it, or set cni.confName to a name that sorts first",
            shadow.display(),
            status.configuration.display()
        );
        Some(("CniShadowed", message))
    }
}

fn report(done: Result<Vec<String>>) {
    match done {
        Ok(lines) => lines.iter().for_each(|line| tracing::info!("CNI: {line}")),
        Err(why) => tracing::warn!(error = %why, "CNI: removal failed"),
    }
}
