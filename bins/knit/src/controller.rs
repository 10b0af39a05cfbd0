//! `knit controller`: what no single node can say.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_controller::run::{self, Options};
use tracing_subscriber::EnvFilter;

/// What the controller is told.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// The kubeconfig [default: the pod's service account]
    #[arg(long, env = "KNIT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the lease
    #[arg(long, env = "KNIT_NAMESPACE", value_name = "NAME", default_value = "pod-network-operator")]
    namespace: String,
    /// Who this is among several controllers [default: the machine's host name and the process id]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// What the pods of sample Deployments run: an image that sleeps when told `pause`
    #[arg(
        long,
        env = "KNIT_SAMPLE_IMAGE",
        value_name = "IMAGE",
        default_value = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
    )]
    sample_image: String,
    /// Where health is served; `:9477` is every address, empty is nowhere
    #[arg(long, env = "KNIT_HEALTH_ADDR", value_name = "ADDRESS", default_value = "127.0.0.1:9477")]
    health_addr: String,
    /// Which log lines are written: error, warn, info, debug or trace
    #[arg(long, env = "KNIT_LOG_LEVEL", value_name = "LEVEL", default_value = "info")]
    log_level: String,
}

/// Runs the controller.
pub fn run(flags: Flags) -> Result<ExitCode> {
    let filter = EnvFilter::try_new(&flags.log_level)?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
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
