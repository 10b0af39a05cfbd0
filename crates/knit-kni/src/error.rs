//! Client errors.

use std::path::{Path, PathBuf};

use tonic::{Code, Status};

use crate::detail;
use crate::reason::Reason;
use crate::v1::ErrorDetail;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent is unavailable.
    #[error("agent unavailable on {}: {why}", socket.display())]
    Unavailable {
        /// The socket.
        socket: PathBuf,
        /// The cause, and what to do.
        why: String,
    },
    /// The agent returned an error, or the call failed in transit.
    #[error("{message}")]
    Status {
        /// The gRPC code.
        code: Code,
        /// The message.
        message: String,
        /// The detail for programs; empty if the server is not Knit's agent.
        detail: Box<ErrorDetail>,
    },
}

impl Error {
    /// The reason; `None` if the agent is unavailable, or is newer and returned an unknown reason.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Unavailable { .. } => None,
            Self::Status { detail, .. } => Reason::parse(&detail.reason),
        }
    }

    /// Whether the same call may succeed later.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Status { code, detail, .. } => {
                detail.retry || (detail.reason.is_empty() && *code == Code::Unavailable)
            }
        }
    }

    /// The call ID; empty if the call did not reach the agent.
    pub fn call_id(&self) -> &str {
        match self {
            Self::Unavailable { .. } => "",
            Self::Status { detail, .. } => &detail.call_id,
        }
    }

    /// The error of a failed connection.
    pub(crate) fn unavailable(socket: &Path, error: &(dyn std::error::Error + 'static)) -> Self {
        let io = causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>());
        let why = match io.map(std::io::Error::kind) {
            Some(std::io::ErrorKind::NotFound) => {
                "the socket does not exist; is `knit agent` running?".to_owned()
            }
            Some(std::io::ErrorKind::ConnectionRefused) => {
                "connection refused; is `knit agent` running?".to_owned()
            }
            Some(std::io::ErrorKind::PermissionDenied) => {
                "permission denied; only the owner of the socket, usually root, may connect".to_owned()
            }
            _ => causes(error).last().map(ToString::to_string).unwrap_or_default(),
        };
        Self::Unavailable { socket: socket.to_owned(), why }
    }

    /// The error of an agent that does not respond.
    pub(crate) fn timeout(socket: &Path) -> Self {
        let why = "no response in time; the agent hangs or is overloaded".to_owned();
        Self::Unavailable { socket: socket.to_owned(), why }
    }

    /// The error of a failed call.
    pub(crate) fn from_status(socket: &Path, status: Status) -> Self {
        let detail = detail::read(&status);
        // The deadline may end a call in either gRPC library, which add no detail.
        if detail.is_none() && matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) {
            return Self::timeout(socket);
        }
        let transport = std::error::Error::source(&status).filter(|_| detail.is_none());
        if let Some(transport) = transport
            && matches!(status.code(), Code::Unavailable | Code::Unknown)
        {
            return Self::unavailable(socket, transport);
        }
        let code = status.code();
        let message = match status.message() {
            "" => code.description().to_owned(),
            message => message.to_owned(),
        };
        Self::Status { code, message, detail: Box::new(detail.unwrap_or_default()) }
    }
}

/// An error and its sources.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}
