//! `knit controller`: the cluster controller.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_controller::run::{self, Options};
use tracing_subscriber::filter::LevelFilter;

/// The flags of the controller.
#[derive(Clone, Debug, Args)]
pub struct Flags {
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
    let name = flags.identity.unwrap_or_else(|| {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        format!("{}-{}", host.unwrap_or_default(), std::process::id())
    });
    run::run(Options {
        kubeconfig: flags.kubeconfig,
        namespace: flags.namespace,
        name,
        sample_image: flags.sample_image,
        health_addr: flags.health_addr,
    })?;
    Ok(ExitCode::SUCCESS)
}
