//! `knit preflight`: what would not work on a cluster.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use knit_controller::preflight::{judge, look};

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// The kubeconfig [default: as kubectl finds it]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Looks, and prints what was found.
pub fn run(flags: &Flags) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = knit_kube::connect_as_person(flags.kubeconfig.as_deref()).await?;
        let facts = look(&client).await.context("the cluster could not be looked at")?;
        let findings = judge(&facts);
        for finding in &findings {
            println!("{finding}");
        }
        let all_well = findings.iter().all(|finding| finding.ok);
        Ok(if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}
