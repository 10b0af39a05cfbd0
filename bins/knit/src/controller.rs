//! `knit controller`: the cluster controller.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_agent::config::{Config, ServiceProxy};
use knit_controller::run::{self, Options};
use tracing_subscriber::filter::LevelFilter;

use crate::preflight::Profile;

/// The flags of the controller.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Profile of the agents
    #[arg(long, env = "KNIT_PROFILE", value_enum, default_value_t)]
    profile: Profile,
    /// Configuration file of the agents, with `--profile primary`: whether they isolate namespaces and apps, and
    /// whether they translate Services
    #[arg(long, env = "KNIT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig file [default: the service account of the pod]
    #[arg(long, env = "KNIT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the leader election lease
    #[arg(long, env = "KNIT_NAMESPACE", value_name = "NAME", default_value = "pod-network-operator")]
    namespace: String,
    /// Identity in the leader election [default: host name and process id]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// Image of sample Deployments; it must accept the argument `pause` and sleep
    #[arg(
        long,
        env = "KNIT_SAMPLE_IMAGE",
        value_name = "IMAGE",
        default_value = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
    )]
    sample_image: String,
    /// Listen address of the health endpoints; `:9477` is all addresses, empty disables them
    #[arg(long, env = "KNIT_HEALTH_ADDR", value_name = "ADDRESS", default_value = "127.0.0.1:9477")]
    health_addr: String,
    /// Log level: error, warn, info, debug or trace
    #[arg(long, env = "KNIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: LevelFilter,
}

/// Runs the controller.
pub fn run(flags: Flags) -> Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_max_level(flags.log_level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let agents = match flags.profile {
        Profile::Beside => None,
        Profile::Primary => Some(agent_config(flags.config.as_deref())?.cluster_network),
    };
    let name = flags.identity.unwrap_or_else(|| {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        format!("{}-{}", host.unwrap_or_default(), std::process::id())
    });
    run::run(Options {
        kubeconfig: flags.kubeconfig,
        namespace: flags.namespace,
        name,
        sample_image: flags.sample_image,
        // Whether the agents isolate namespaces and apps.
        cluster_network: agents.as_ref().map(|agents| agents.network_policy),
        service_addresses: agents.is_some_and(|agents| agents.service_proxy == ServiceProxy::Knit),
        health_addr: flags.health_addr,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration of the agents.
fn agent_config(config: Option<&Path>) -> Result<Config> {
    Ok(config.map_or_else(|| Ok(Config::default()), Config::read)?)
}
