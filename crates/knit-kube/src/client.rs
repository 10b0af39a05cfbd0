//! Client configuration.

use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Why no client can be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig is invalid.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no service account.
    #[error(
        "no API server is configured: set a kubeconfig, or run in a pod with a service account ({source})"
    )]
    NotInCluster {
        /// The cause.
        source: Box<kube::config::InClusterError>,
    },
    /// There is no usable kubeconfig.
    #[error("no API server is configured: set --kubeconfig or KUBECONFIG ({why})")]
    NoConfig {
        /// The cause.
        why: String,
    },
    /// The client cannot be created.
    #[error("API server client: {source}")]
    Client {
        /// The cause.
        source: Box<kube::Error>,
    },
}

/// Loads the client configuration like kubectl: from the given or the default kubeconfig, with the given or its current
/// context.
pub async fn load_config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Error> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let no_config = |why: String| Error::NoConfig { why };
    match (kubeconfig, context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|source| invalid_kubeconfig(path, source))?;
            let config = Config::from_custom_kubeconfig(file, &options).await;
            config.map_err(|source| invalid_kubeconfig(path, source))
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(|why| no_config(why.to_string())),
        // Falls back to the service account of the pod.
        (None, None) => Config::infer().await.map_err(|why| no_config(why.to_string())),
    }
}

fn invalid_kubeconfig(path: &Path, source: kube::config::KubeconfigError) -> Error {
    Error::Kubeconfig { path: path.to_owned(), source: Box::new(source) }
}

/// The configuration of a kubeconfig or, without one, of the cluster that this pod runs in.
pub async fn connection(kubeconfig: Option<&Path>) -> Result<Config, Error> {
    match kubeconfig {
        Some(path) => load_config(Some(path), None).await,
        None => Config::incluster().map_err(|source| Error::NotInCluster { source: Box::new(source) }),
    }
}

/// A client for the API server of a kubeconfig or, without one, of the cluster that this pod runs in. It does not
/// connect yet.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Client, Error> {
    client(connection(kubeconfig).await?)
}

/// A client with this configuration. It does not connect yet.
pub fn client(config: Config) -> Result<Client, Error> {
    Client::try_from(config).map_err(|source| Error::Client { source: Box::new(source) })
}
