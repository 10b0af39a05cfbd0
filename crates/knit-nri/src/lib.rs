//! Pods as the container runtime tells of them before their containers start, by NRI v1alpha1 (containerd 2, CRI-O).
//!
//! Knit is a plugin that changes no container. It is told when a sandbox runs, and the runtime waits for its answer before it
//! starts the first container. A runtime that waits too long ends the connection and goes on; an answer that is an error
//! would fail the pod, so there is none: what cannot be understood ends the connection, too.

#[allow(missing_docs, clippy::all, clippy::unwrap_used, reason = "generated")]
mod proto {
    pub(crate) mod nri {
        include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));
    }
    pub(crate) mod ttrpc {
        include!(concat!(env!("OUT_DIR"), "/ttrpc.rs"));
    }
}

mod answers;
mod frames;
mod session;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use session::serve;

/// Where runtimes listen for plugins.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to the runtime.
    #[error("NRI at {socket}: cannot connect ({source}): is it running, with NRI on?")]
    Connect {
        /// Its socket.
        socket: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The connection ended.
    #[error("NRI: the runtime ended the connection ({source})")]
    Ended {
        /// What happened.
        source: io::Error,
    },
    /// The runtime did not take the plugin.
    #[error("NRI: the runtime refuses the plugin: {why}")]
    Refused {
        /// Its words.
        why: String,
    },
    /// The runtime did not answer.
    #[error("NRI: the runtime did not answer the registration within {} s", .within.as_secs())]
    Silent {
        /// How long it was waited for.
        within: Duration,
    },
    /// What the runtime sent cannot be understood.
    #[error("NRI: what the runtime sent cannot be understood: {what}")]
    Unclear {
        /// What it is.
        what: String,
    },
}

/// A pod's sandbox, as the runtime tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// The sandbox's id.
    pub id: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Its labels, with those that the runtime and the kubelet added.
    pub labels: BTreeMap<String, String>,
    /// Its annotations, with those that the runtime and the kubelet added.
    pub annotations: BTreeMap<String, String>,
    /// The process that holds its namespaces; 0 if there is none.
    pub pid: u32,
}

/// The runtime at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Its name and version.
    pub title: String,
    /// How long it waits for an answer, if it says so.
    pub waits: Option<Duration>,
}

/// Who is told.
pub trait Plugin: Send + Sync + 'static {
    /// The runtime has taken the plugin.
    fn configured(&self, runtime: Runtime);

    /// All pods that there are. Those whose containers have not been started may be among them.
    fn synchronized(&self, pods: Vec<Pod>);

    /// A pod's sandbox runs, and none of its containers. They are started once this has ended. Dropped if the connection
    /// ends before: the runtime does not wait any more.
    fn starts(&self, pod: Pod) -> impl Future<Output = ()> + Send;

    /// A sandbox is gone, or never came to be.
    fn removed(&self, pod: Pod);
}
