//! Which API server a person means.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use knit_kube::kube::Config;

/// As kubectl has them.
#[derive(Clone, Debug, Args)]
pub struct ApiServer {
    /// The kubeconfig [default: as kubectl takes it: $KUBECONFIG, or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ApiServer {
    /// The way there.
    pub async fn config(&self) -> Result<Config> {
        Ok(knit_kube::as_person(self.kubeconfig.as_deref(), self.context.as_deref()).await?)
    }
}
