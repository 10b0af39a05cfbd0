//! Flags that select the API server.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use knit_kube::kube::Config;

/// The API server, selected as with kubectl.
#[derive(Clone, Debug, Args)]
pub struct ApiServer {
    /// Kubeconfig file [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl ApiServer {
    /// The client configuration.
    pub async fn config(&self) -> Result<Config> {
        Ok(knit_kube::load_config(self.kubeconfig.as_deref(), self.context.as_deref()).await?)
    }
}
