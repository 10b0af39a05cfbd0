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
    /// No kubeconfig can be used.
    #[error("no API server is known: name a kubeconfig with --kubeconfig or KUBECONFIG ({why})")]
    NoConfig {
        /// What is missing.
        why: String,
    },
    /// The client cannot be made.
    #[error("client of the API server: {source}")]
    Client {
        /// What happened.
        source: Box<kube::Error>,
    },
}

/// The way to the API server that a person means: of the kubeconfig that is named or that kubectl would take, and of its
/// current context unless another is named.
pub async fn as_person(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Error> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let no_config = |why: String| Error::NoConfig { why };
    match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|source| unusable(path, source))?;
            let config = Config::from_custom_kubeconfig(file, &options).await;
            config.map_err(|source| unusable(path, source))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|why| no_config(why.to_string())),
        // Without any kubeconfig, a pod's service account.
        (None, None) => Config::infer().await.map_err(|why| no_config(why.to_string())),
    }
}

fn unusable(path: &Path, source: kube::config::KubeconfigError) -> Error {
    Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) }
}

/// A client for the API server of a kubeconfig or, without one, for that of the cluster that this is a pod of. Nothing is
/// asked yet: an API server that is away shows when it is.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    let config = match kubeconfig {
        Some(path) => as_person(Some(path), None).await?,
        None => Config::incluster().map_err(|source| Error::NotInCluster { source: Box::new(source) })?,
    };
    client(config)
}

/// A client of it. Nothing is asked yet.
pub fn client(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(|source| Error::Client { source: Box::new(source) })
}
