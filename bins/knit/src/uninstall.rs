//! `knit uninstall`: removes Knit from a cluster.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use knit_controller::uninstall::uninstall;

use crate::api_server::ApiServer;

/// The flags of `knit uninstall`.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    server: ApiServer,
    /// How long to wait for agents to clean up nodes and pods
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
}

/// Removes Knit.
pub fn run(flags: &Flags) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = knit_kube::client(flags.server.config().await?)?;
        uninstall(client, Duration::from_secs(flags.timeout), |line| println!("{line}"))
            .await
            .context("Knit is not removed completely: run the command again")?;
        Ok(ExitCode::SUCCESS)
    })
}
