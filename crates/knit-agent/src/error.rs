//! What can go wrong on a node.

use knit_crds::ParseErrors;
use knit_model::Problems;
use thiserror::Error;

/// What can go wrong on a node.
#[derive(Debug, Error)]
pub enum Error {
    /// The state folder cannot be used.
    #[error(transparent)]
    Store(#[from] knit_store::Error),
    /// The kernel could not be asked.
    #[error(transparent)]
    Kernel(#[from] knit_kernel::Error),
    /// There is no way to an API server.
    #[error(transparent)]
    Api(#[from] knit_kube::Error),
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file does not hold objects.
    #[error("{path}:\n{errors}")]
    Parse {
        /// The file.
        path: String,
        /// Everything that is wrong in it.
        errors: ParseErrors,
    },
    /// Objects ask for what cannot be.
    #[error("{}", invalid.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid {
        /// Each object with everything that is wrong with it.
        invalid: Vec<Invalid>,
    },
    /// A sandbox of that name exists.
    #[error("there is a sandbox {name} in namespace {namespace} already")]
    SandboxExists {
        /// The pod's name.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// No sandbox of that name.
    #[error(
        "there is no sandbox {name} in namespace {namespace}: `knit sandbox list` shows those that are there"
    )]
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
    /// A fault point ended the work, as a crash would: nothing was taken back and nothing was written down.
    #[error("{unit}: stopped at a fault point")]
    Stopped {
        /// What was being worked on.
        unit: String,
    },
    /// What has Knit's mark and nobody asks for could not be removed.
    #[error("links with Knit's mark that nobody asks for could not be removed: {why}")]
    Stray {
        /// Why.
        why: String,
    },
    /// Links have Knit's mark, and this state folder knows nothing of them.
    #[error(
        "another Knit's network is on this machine ({what}), of which this state folder knows nothing: name its folder \
         with --state-dir, or remove what it made with --take-over"
    )]
    Others {
        /// Their names.
        what: String,
    },
    /// A job of the agent panicked.
    #[error("{what}: a fault of knit itself: {why}")]
    Panicked {
        /// What was being done.
        what: String,
        /// What the panic said.
        why: String,
    },
    /// A configuration that cannot be used.
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
        /// Which.
        what: String,
        /// Why.
        why: String,
    },
    /// What is in use does not change.
    #[error("{what}")]
    InUse {
        /// What, in words.
        what: String,
    },
    /// The agent ended before it began.
    #[error("the agent ended before it was ready")]
    Ended,
    /// The folder of keys cannot be cleaned.
    #[error("cannot remove keys that nobody uses any more: {source}")]
    Keys {
        /// Why.
        source: std::io::Error,
    },
    /// Objects that are someone else's to change.
    #[error("{objects}")]
    NotYours {
        /// Each with whose it is, a line each.
        objects: String,
    },
    /// A sandbox that `knit sandbox add` did not make.
    #[error(
        "sandbox {name} in namespace {namespace} was made by a call (id {id}): its caller changes and ends it"
    )]
    Called {
        /// The pod's name.
        name: String,
        /// Its namespace.
        namespace: String,
        /// The sandbox's id.
        id: String,
    },
    /// A request that nothing can be made of.
    #[error("{field}: {why}")]
    Request {
        /// The field.
        field: String,
        /// Why.
        why: String,
    },
    /// The agent's loop answers no more.
    #[error("the agent is ending, or cannot write its state")]
    Ending,
    /// Nothing to take back.
    #[error("there is nothing to undo")]
    NothingToUndo,
}

/// An object that asks for what cannot be.
#[derive(Debug, Error)]
#[error("{object}:\n{problems}")]
pub struct Invalid {
    /// The object.
    pub object: String,
    /// Everything that is wrong with it.
    pub problems: Problems,
}

/// What a node's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
