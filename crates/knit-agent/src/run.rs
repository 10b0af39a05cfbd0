//! The agent program: starts everything, and stops it in the right order.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knit_kernel::fault::FaultInjector;
use knit_kernel::memory;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
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
#[cfg(feature = "kubernetes")]
use crate::kubernetes;
use crate::log::LogBuffer;
use crate::services::{AgentInfo, Services, listen};
use crate::{cni, http, nri};

/// How long calls in flight may take when the agent stops; streams are closed then.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(6);
/// How often the configuration file is checked.
const CONFIG_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The configuration, and how it is reloaded.
pub struct Source {
    /// The configuration at the start.
    pub config: Config,
    /// The file.
    pub file: Option<PathBuf>,
    /// Applies flags and environment variables to the file's configuration.
    pub over: Box<dyn Fn(Config) -> Config + Send + Sync>,
    /// The eBPF object file; `None` if the fast path is not built in.
    pub program: Option<&'static [u8]>,
}

type Level = reload::Handle<LevelFilter, Registry>;

/// Runs until SIGTERM or SIGINT. Stopping changes nothing in the kernel.
pub fn run(source: Source, faults: Option<Box<dyn FaultInjector + Send>>) -> Result<()> {
    memory::limit_arenas();
    let log = LogBuffer::default();
    let level = start_log(&source.config, log.clone())?;
    raise_descriptor_limit();
    knit_kernel::set_sysctl_root(&source.config.sysctl_dir);
    let daemon = Daemon::start(source.config.options(source.program)?, faults)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("knit-rpc")
        .enable_all()
        .build()
        .map_err(|why| Error::Serve { what: "threads for calls".to_owned(), why: why.to_string() })?;
    let sockets = [source.config.kni_socket.clone(), source.config.cni_socket()];
    let served = runtime.block_on(serve(source, daemon.handle(), log, level));
    runtime.shutdown_timeout(Duration::from_millis(100));
    daemon.stop();
    if served.is_ok() {
        for socket in sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
    tracing::info!("stopped");
    served
}

/// Raises the limit of file descriptors to what is allowed: service managers keep it low for programs that use `select`. Connections alone
/// may need more.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, allowed)| setrlimit(Resource::RLIMIT_NOFILE, allowed, allowed));
    if let Err(why) = raised {
        tracing::warn!(error = %why, "cannot raise the limit of file descriptors");
    }
}

fn start_log(config: &Config, log: LogBuffer) -> Result<Level> {
    let (filter, level) = reload::Layer::new(level_of(config));
    let format = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let format = match config.log_format {
        LogFormat::Text => format.with_ansi(false).boxed(),
        LogFormat::Json => format.json().flatten_event(true).with_current_span(false).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(format)
        .with(log)
        .try_init()
        .map_err(|why| Error::Serve { what: "the log".to_owned(), why: why.to_string() })?;
    Ok(level)
}

fn level_of(config: &Config) -> LevelFilter {
    config.log_level.parse().unwrap_or(LevelFilter::INFO)
}

async fn serve(source: Source, handle: Handle, log: LogBuffer, level: Level) -> Result<()> {
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
    start_pod_source(config, &handle).await?;
    let services = Services::new(handle.clone(), AgentInfo::new(config), log);
    let frames = listen(&config.cni_socket()).await?;
    let mut framed = tokio::spawn(services.clone().serve_frames(frames, stopped.clone()));
    let mut calls = tokio::spawn(services.serve(listener, stopped.clone()));
    tracing::info!(socket = %config.kni_socket.display(), state = %config.state_dir.display(), "ready");
    // Runtimes call as soon as they find the configuration. Dropping the sender stops the thread.
    let (_installer_guard, until) = std::sync::mpsc::channel();
    cni::start_installer(&config.cni, &config.state_dir, &config.cni_socket(), handle.clone(), until)?;
    tokio::spawn(watch_config(source, handle, level));
    tokio::select! {
        _ = terminate.recv() => tracing::info!("received SIGTERM"),
        _ = interrupt.recv() => tracing::info!("received SIGINT"),
        ended = &mut calls => return ended.unwrap_or(Err(Error::ChangeEnded)),
    }
    // The receivers may be gone.
    let _ = stop.send(true);
    // A stream ends only with its reader, which may take longer.
    let both = async { tokio::join!(&mut calls, &mut framed).0 };
    match tokio::time::timeout(SHUTDOWN_TIMEOUT, both).await {
        Ok(ended) => ended.unwrap_or(Err(Error::ChangeEnded)),
        Err(_) => Ok(()),
    }
}

/// Starts what reports pods: the API server and the container runtime in a cluster, NRI alone otherwise.
async fn start_pod_source(config: &Config, handle: &Handle) -> Result<()> {
    #[cfg(feature = "kubernetes")]
    if config.profile.is_in_cluster() {
        return kubernetes::start(config, handle).await;
    }
    if let Some(socket) = config.nri_socket() {
        let registry = Arc::new(nri::StandaloneRegistry::new(handle.clone()));
        tokio::spawn(nri::run(socket, handle.clone(), registry));
    }
    Ok(())
}

/// Reloads the file when it changes. A mounted ConfigMap changes by replacing symbolic links, so the content is compared, not the
/// modification time.
async fn watch_config(source: Source, handle: Handle, level: Level) {
    let Source { mut config, file: Some(file), over, .. } = source else { return };
    let mut text = std::fs::read_to_string(&file).ok();
    loop {
        tokio::time::sleep(CONFIG_POLL_INTERVAL).await;
        let now = std::fs::read_to_string(&file).ok();
        if now == text || now.is_none() {
            continue;
        }
        text = now;
        match reload(&config, &file, &over, &handle, &level).await {
            Ok(new) => config = new,
            Err(why) => {
                tracing::error!(file = %file.display(), error = %why, "invalid configuration; the previous one stays in effect");
            }
        }
    }
}

async fn reload(
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
            handle.set_cluster_network(new.cluster_network_object()?).await?;
        }
        held.cluster_network = new.cluster_network.clone();
    }
    held.tenant_ranges.clone_from(&new.tenant_ranges);
    if held.tenant_ranges() != old.tenant_ranges() {
        handle.set_tenant_ranges(held.tenant_ranges()).await?;
    }
    if level.modify(|filter| *filter = level_of(&new)).is_err() {
        return Err("logLevel: cannot change the log level".to_owned());
    }
    if later.is_empty() {
        tracing::info!(file = %file.display(), "configuration reloaded");
    } else {
        tracing::warn!(file = %file.display(), keys = %later.join(","), "configuration reloaded; some keys need a restart");
    }
    // Keys that need a restart keep their old value for the next comparison.
    Ok(Config { log_level: new.log_level, ..held })
}
