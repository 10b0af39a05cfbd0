//! The errors of a node.

use knit_crds::ParseErrors;
use knit_model::Problems;
use thiserror::Error;

/// The errors of a node.
#[derive(Debug, Error)]
pub enum Error {
    /// The state directory cannot be used.
    #[error(transparent)]
    Store(#[from] knit_store::Error),
    /// The journal has an older format.
    #[error(
        "the state in {folder} has the journal format {found}, this version of knit supports only {supported}: drain the node, remove \
         the directory and restart"
    )]
    OldJournal {
        /// The state directory.
        folder: String,
        /// The format of the journal.
        found: u32,
        /// The supported format.
        supported: u32,
    },
    /// The kernel returned an error.
    #[error(transparent)]
    Kernel(#[from] knit_kernel::Error),
    /// The API server cannot be reached.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Api(#[from] knit_kube::Error),
    /// A file cannot be read or written.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file contains invalid objects.
    #[error("{path}:\n{errors}")]
    Parse {
        /// The file.
        path: String,
        /// Everything that is wrong in it.
        errors: ParseErrors,
    },
    /// Objects are invalid.
    #[error("{}", invalid.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid {
        /// Each object with its problems.
        invalid: Vec<Invalid>,
    },
    /// A sandbox of that name exists.
    #[error("sandbox {name} in namespace {namespace} already exists")]
    SandboxExists {
        /// The pod's name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// There is no sandbox of that name.
    #[error("sandbox {name} in namespace {namespace} not found: `knit sandbox list` lists all sandboxes")]
    NoSandbox {
        /// The pod's name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// The process that holds a sandbox's namespace could not be started.
    #[error("cannot start sandbox {name}: {why}")]
    Holder {
        /// The pod's name.
        name: String,
        /// Why.
        why: String,
    },
    /// A fault point stopped the work, as a crash would: nothing was rolled back or journalled.
    #[error("{unit}: stopped at a fault point")]
    Stopped {
        /// The unit of the work.
        unit: String,
    },
    /// Strays could not be removed.
    #[error("cannot remove stray links with Knit's mark: {why}")]
    Stray {
        /// Why.
        why: String,
    },
    /// Links with Knit's mark exist that this state directory does not own.
    #[error(
        "links of another Knit state directory exist on this machine ({what}): name that directory with --state-dir, or remove its \
         links with --take-over"
    )]
    ForeignLinks {
        /// Their names.
        what: String,
    },
    /// An executor panicked.
    #[error("{what}: internal error (panic): {why}")]
    Panicked {
        /// The work.
        what: String,
        /// The panic message.
        why: String,
    },
    /// The configuration is invalid.
    #[error("{path}: {why}")]
    Config {
        /// The file.
        path: String,
        /// Why.
        why: String,
    },
    /// A socket cannot be served.
    #[error("{what}: {why}")]
    Serve {
        /// The socket or address.
        what: String,
        /// Why.
        why: String,
    },
    /// An object in use cannot change.
    #[error("{what}")]
    InUse {
        /// What cannot change, and why.
        what: String,
    },
    /// The agent ended before it was ready.
    #[error("the agent ended before it was ready")]
    ChangeEnded,
    /// Unused keys cannot be removed.
    #[error("cannot remove unused keys: {source}")]
    Keys {
        /// Why.
        source: std::io::Error,
    },
    /// Objects that are managed by the agent's directory or configuration.
    #[error("{objects}")]
    NotOwned {
        /// Each object with its owner, one per line.
        objects: String,
    },
    /// A sandbox that `knit sandbox add` did not create.
    #[error(
        "sandbox {name} in namespace {namespace} was created by an API call (id {id}): only its caller can change or delete it"
    )]
    OwnedByCall {
        /// The pod's name.
        name: String,
        /// Its namespace.
        namespace: String,
        /// The sandbox's id.
        id: String,
    },
    /// An invalid request.
    #[error("{field}: {why}")]
    Request {
        /// The field.
        field: String,
        /// Why.
        why: String,
    },
    /// The event loop has ended.
    #[error("the agent is stopping or cannot write its state")]
    Ending,
    /// There is no change to undo.
    #[error("there is nothing to undo")]
    NothingToUndo,
}

impl Error {
    /// Whether another process uses the state directory.
    pub fn is_state_locked(&self) -> bool {
        matches!(self, Self::Store(knit_store::Error::Locked { .. }))
    }
}

/// An invalid object.
#[derive(Debug, Error)]
#[error("{object}:\n{problems}")]
pub struct Invalid {
    /// The object.
    pub object: String,
    /// Its problems.
    pub problems: Problems,
}

/// The result of a node's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
