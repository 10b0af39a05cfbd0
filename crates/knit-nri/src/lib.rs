//! NRI v1alpha1 plugin (containerd 2, CRI-O): pod sandboxes before their containers start.
//!
//! The plugin changes no containers. The runtime reports each new sandbox and waits for the response before it starts
//! the first container. A runtime that waits too long closes the connection and continues. An error response would fail
//! the pod, so the plugin never returns one: an invalid message closes the connection.

#[allow(missing_docs, clippy::all, clippy::unwrap_used, reason = "generated")]
mod proto {
    pub(crate) mod nri {
        include!("generated/nri.pkg.api.v1alpha1.rs");
    }
    pub(crate) mod ttrpc {
        include!("generated/ttrpc.rs");
    }
}

mod decode;
mod mux;
mod protocol;
mod session;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use decode::decode;
pub use session::serve;

/// The default NRI socket of runtimes.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("NRI at {socket}: cannot connect ({source}): is the runtime running with NRI enabled?")]
    Connect {
        /// Its socket.
        socket: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The connection was closed.
    #[error("NRI: the runtime closed the connection ({source})")]
    Disconnected {
        /// The cause.
        source: io::Error,
    },
    /// The runtime rejected the plugin.
    #[error("NRI: the runtime rejected the plugin: {why}")]
    Rejected {
        /// The reason.
        why: String,
    },
    /// The registration timed out.
    #[error("NRI: registration timed out after {} s", .timeout.as_secs())]
    RegistrationTimeout {
        /// The timeout.
        timeout: Duration,
    },
    /// The runtime sent an invalid message.
    #[error("NRI: invalid message from the runtime: {what}")]
    InvalidMessage {
        /// The message.
        what: String,
    },
}

/// A pod sandbox, as reported by the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSandbox {
    /// The sandbox's id.
    pub id: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Its labels, including those of the runtime and the kubelet.
    pub labels: BTreeMap<String, String>,
    /// Its annotations, including those of the runtime and the kubelet.
    pub annotations: BTreeMap<String, String>,
    /// The process that holds its namespaces; 0 if there is none.
    pub pid: u32,
}

/// The connected runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// Its name and version.
    pub version: String,
    /// Its request timeout, if it reports one.
    pub request_timeout: Option<Duration>,
}

/// Handles the events of the runtime.
pub trait Plugin: Send + Sync + 'static {
    /// The runtime accepted the plugin.
    fn configure(&self, runtime: RuntimeInfo);

    /// All existing sandboxes, including those whose containers have not started yet.
    fn synchronize(&self, pods: Vec<PodSandbox>);

    /// A sandbox runs, and none of its containers. They start when this future completes. It is dropped if the
    /// connection is closed before: the runtime no longer waits.
    fn run_pod_sandbox(&self, pod: PodSandbox) -> impl Future<Output = ()> + Send;

    /// A sandbox was removed, or failed to start.
    fn remove_pod_sandbox(&self, pod: PodSandbox);
}
