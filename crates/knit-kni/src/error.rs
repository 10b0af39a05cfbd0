//! What can go wrong for a client.

use std::path::{Path, PathBuf};

use tonic::{Code, Status};

use crate::detail;
use crate::reason::Reason;
use crate::v1::ErrorDetail;

/// Why a call gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers on the socket.
    #[error("no agent answers on {}: {why}", socket.display())]
    Away {
        /// The socket.
        socket: PathBuf,
        /// What the machine says, and what to do.
        why: String,
    },
    /// The agent said no, or the call broke on its way.
    #[error("{message}")]
    Refused {
        /// The gRPC code.
        code: Code,
        /// The agent's sentence.
        message: String,
        /// What it said for programs; empty if it is not Knit's agent that answered.
        detail: Box<ErrorDetail>,
    },
}

impl Error {
    /// The stable word; `None` when the agent is away, or is newer and says one that this client does not know.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Away { .. } => None,
            Self::Refused { detail, .. } => Reason::parse(&detail.reason),
        }
    }

    /// Whether the same call may succeed later.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Away { .. } => true,
            Self::Refused { code, detail, .. } => {
                detail.retry || (detail.reason.is_empty() && *code == Code::Unavailable)
            }
        }
    }

    /// The id of the call; empty if it never reached the agent.
    pub fn call_id(&self) -> &str {
        match self {
            Self::Away { .. } => "",
            Self::Refused { detail, .. } => &detail.call_id,
        }
    }

    /// The error of a failed connection.
    pub(crate) fn away(socket: &Path, error: &(dyn std::error::Error + 'static)) -> Self {
        let io = causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>());
        let why = match io.map(std::io::Error::kind) {
            Some(std::io::ErrorKind::NotFound) => {
                "there is no such socket; is `knit agent` running?".to_owned()
            }
            Some(std::io::ErrorKind::ConnectionRefused) => {
                "the socket is left over from an agent that is gone; is `knit agent` running?".to_owned()
            }
            Some(std::io::ErrorKind::PermissionDenied) => {
                "permission denied; the socket is its owner's only, usually root's".to_owned()
            }
            _ => causes(error).last().map(ToString::to_string).unwrap_or_default(),
        };
        Self::Away { socket: socket.to_owned(), why }
    }

    /// The error of an agent that is there and says nothing.
    pub(crate) fn silent(socket: &Path) -> Self {
        let why = "it did not answer in time; it hangs, or has very much to do".to_owned();
        Self::Away { socket: socket.to_owned(), why }
    }

    /// The error of a failed call.
    pub(crate) fn of(socket: &Path, status: Status) -> Self {
        let detail = detail::read(&status);
        // The deadline ends a call here or in the agent's own library, whichever is faster; neither knows reasons.
        if detail.is_none() && matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) {
            return Self::silent(socket);
        }
        let broken = std::error::Error::source(&status).filter(|_| detail.is_none());
        if let Some(broken) = broken
            && matches!(status.code(), Code::Unavailable | Code::Unknown)
        {
            return Self::away(socket, broken);
        }
        let code = status.code();
        let message = match status.message() {
            "" => code.description().to_owned(),
            message => message.to_owned(),
        };
        Self::Refused { code, message, detail: Box::new(detail.unwrap_or_default()) }
    }
}

/// An error, and what caused it.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
