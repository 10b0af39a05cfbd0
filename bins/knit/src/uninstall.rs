//! `knit uninstall`: Knit out of a cluster.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use knit_controller::uninstall::uninstall;

use crate::api_server::ApiServer;

/// Which cluster, and how long to wait.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    server: ApiServer,
    /// How long agents have to take back what they made, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

/// Removes Knit.
pub fn run(flags: &Flags) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = knit_kube::client(flags.server.config().await?)?;
        uninstall(client, Duration::from_secs(flags.patience), |line| println!("{line}"))
            .await
            .context("Knit could not be removed wholly: run it again")?;
        Ok(ExitCode::SUCCESS)
    })
}
