//! The client.

use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Why there is no way to an API server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<kube::config::KubeconfigError>,
    },
    /// This is no pod of a cluster.
    #[error("no API server is known: name a kubeconfig, or run as a pod with a service account ({source})")]
    NotInCluster {
        /// What is missing.
        source: Box<kube::config::InClusterError>,
    },
    /// The client cannot be made.
    #[error("client of the API server: {source}")]
    Client {
        /// What happened.
        source: Box<kube::Error>,
    },
}

/// A client for the API server of a kubeconfig or, without one, for that of the cluster that this is a pod of. Nothing is
/// asked yet: an API server that is away shows when it is.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let config = match kubeconfig {
        Some(path) => {
            let failed = |source| Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
            let file = Kubeconfig::read_from(path).map_err(failed)?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(failed)?
        }
        None => Config::incluster().map_err(|source| Error::NotInCluster { source: Box::new(source) })?,
    };
    Client::try_from(config).map_err(|source| Error::Client { source: Box::new(source) })
}
