//! The agent as a program: everything started, and ended in the right order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knit_kernel::fault::Observer;
use knit_kernel::memory;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::config::{Config, LogFormat, Profile};
use crate::daemon::{Daemon, Handle};
use crate::error::{Error, Result};
use crate::kubernetes;
use crate::log::Lines;
use crate::services::{About, Services, listen};
use crate::{cni, http, nri};

/// Calls that are under way when the agent ends have this long; streams end then.
const GRACE: Duration = Duration::from_secs(6);
/// The configuration file is looked at this often.
const CONFIG: Duration = Duration::from_secs(1);

/// The configuration, and how it is made again when its file has changed.
pub struct Source {
    /// What holds at the start.
    pub config: Config,
    /// The file.
    pub file: Option<PathBuf>,
    /// What flags and environment say, put over what the file says.
    pub over: Box<dyn Fn(Config) -> Config + Send + Sync>,
    /// The object file of the eBPF program.
    pub program: &'static [u8],
}

type Level = reload::Handle<LevelFilter, Registry>;

/// Runs until SIGTERM or SIGINT. Nothing in the kernel changes when it ends.
pub fn run(source: Source, faults: Option<Box<dyn Observer + Send>>) -> Result<()> {
    memory::share();
    let lines = Lines::default();
    let level = start_log(&source.config, lines.clone())?;
    knit_kernel::use_sysctls_at(&source.config.sysctl_dir);
    let daemon = Daemon::start(source.config.options(Some(source.program))?, faults)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("knit-rpc")
        .enable_all()
        .build()
        .map_err(|why| Error::Serve { what: "threads for calls".to_owned(), why: why.to_string() })?;
    let sockets = [source.config.kni_socket.clone(), source.config.cni_socket()];
    let served = runtime.block_on(serve(source, daemon.handle(), lines, level));
    runtime.shutdown_timeout(Duration::from_millis(100));
    daemon.stop();
    if served.is_ok() {
        for socket in sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
    tracing::info!("ended");
    served
}

fn start_log(config: &Config, lines: Lines) -> Result<Level> {
    let (filter, level) = reload::Layer::new(level_of(config));
    let format = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let format = match config.log_format {
        LogFormat::Text => format.with_ansi(false).boxed(),
        LogFormat::Json => format.json().flatten_event(true).with_current_span(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(format)
        .with(lines)
        .try_init()
        .map_err(|why| Error::Serve { what: "the log".to_owned(), why: why.to_string() })?;
    Ok(level)
}

fn level_of(config: &Config) -> LevelFilter {
    config.log_level.parse().unwrap_or(LevelFilter::INFO)
}

async fn serve(source: Source, handle: Handle, lines: Lines, level: Level) -> Result<()> {
    let failed = |why: std::io::Error| Error::Serve { what: "signals".to_owned(), why: why.to_string() };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (stop, stopped) = watch::channel(false);
    let config = &source.config;
    if !config.metrics_addr.is_empty() {
        http::serve_metrics(&config.metrics_addr, handle.clone(), stopped.clone()).await?;
    }
    if !config.health_addr.is_empty() {
        http::serve_health(&config.health_addr, handle.clone(), stopped.clone()).await?;
    }
    let listener = listen(&config.kni_socket).await?;
    if config.profile.is_in_cluster() {
        kubernetes::start(config, &handle).await?;
    } else if let Some(socket) = config.nri_socket() {
        let keeper = Arc::new(nri::Machine::new(handle.clone()));
        tokio::spawn(nri::follow(socket, handle.clone(), keeper));
    }
    let services = Services::new(handle.clone(), About::new(config), lines);
    let frames = listen(&config.cni_socket()).await?;
    let mut framed = tokio::spawn(services.clone().serve_frames(frames, stopped.clone()));
    let mut calls = tokio::spawn(services.serve(listener, stopped.clone()));
    tracing::info!(socket = %config.kni_socket.display(), state = %config.state_dir.display(), "ready");
    // Runtimes may call as soon as they find the configuration. Dropped at the end, it ends the thread.
    let (_kept, until) = std::sync::mpsc::channel();
    cni::keep(&config.cni, &config.state_dir, &config.cni_socket(), handle.clone(), until)?;
    tokio::spawn(follow_config(source, handle, level));
    tokio::select! {
        _ = terminate.recv() => tracing::info!("told to end (SIGTERM)"),
        _ = interrupt.recv() => tracing::info!("told to end (SIGINT)"),
        ended = &mut calls => return ended.unwrap_or(Err(Error::Ended)),
    }
    // Whoever listens for it may be gone already.
    let _ = stop.send(true);
    // A stream ends only when its reader goes; it is not waited for longer than this.
    let both = async { tokio::join!(&mut calls, &mut framed).0 };
    match tokio::time::timeout(GRACE, both).await {
        Ok(ended) => ended.unwrap_or(Err(Error::Ended)),
        Err(_) => Ok(()),
    }
}

/// Reads the file again whenever it has changed. It may be a mounted ConfigMap, which changes by a swap of symbolic links:
/// so its text is compared, not its times.
async fn follow_config(source: Source, handle: Handle, level: Level) {
    let Source { mut config, file: Some(file), over, .. } = source else { return };
    let mut text = std::fs::read_to_string(&file).ok();
    loop {
        tokio::time::sleep(CONFIG).await;
        let now = std::fs::read_to_string(&file).ok();
        if now == text || now.is_none() {
            continue;
        }
        text = now;
        match take_over(&config, &file, &over, &handle, &level).await {
            Ok(new) => config = new,
            Err(why) => {
                tracing::error!(file = %file.display(), %why, "the new configuration is refused; the old one stays");
            }
        }
    }
}

async fn take_over(
    old: &Config,
    file: &std::path::Path,
    over: &(dyn Fn(Config) -> Config + Send + Sync),
    handle: &Handle,
    level: &Level,
) -> Result<Config, String> {
    let new = over(Config::read(file).map_err(|why| why.to_string())?);
    new.check()?;
    let later = old.needs_restart(&new);
    let mut held = old.clone();
    if old.profile != Profile::Primary {
        if new.cluster_network != old.cluster_network {
            handle.set_cluster(new.cluster()?).await?;
        }
        held.cluster_network = new.cluster_network.clone();
    }
    if level.modify(|filter| *filter = level_of(&new)).is_err() {
        return Err("logLevel: the log cannot be changed any more".to_owned());
    }
    if later.is_empty() {
        tracing::info!(file = %file.display(), "the new configuration holds");
    } else {
        tracing::warn!(file = %file.display(), keys = %later.join(","), "these keys need a restart; all others hold");
    }
    // What needs a restart is compared with what was started with, also the next time.
    Ok(Config { log_level: new.log_level, ..held })
}
