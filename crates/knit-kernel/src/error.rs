//! Errors of the kernel layer.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// The result of a kernel operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was attempted, such as `create link pnobr0`: the kernel's "file exists" names no object.
pub type Context = Cow<'static, str>;

/// Why a kernel operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel rejected the request with an error number.
    #[error("{context}: {}", rejection_text(*errno, message.as_deref(), *offset))]
    Rejected {
        /// What was attempted.
        context: Context,
        /// The kernel's error number.
        errno: Errno,
        /// The kernel's message, if any (`NLMSGERR_ATTR_MSG`).
        message: Option<String>,
        /// Offset of the rejected attribute in the request (`NLMSGERR_ATTR_OFFS`).
        offset: Option<u32>,
    },
    /// A system call failed.
    #[error("{context}: cannot {action}: {source}")]
    System {
        /// What was attempted.
        context: Context,
        /// The operation, such as `open a netlink socket`.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel did not reply in time.
    #[error("{context}: the kernel did not reply within {seconds} s")]
    Timeout {
        /// What was attempted.
        context: Context,
        /// The timeout.
        seconds: u64,
    },
    /// The socket's receive buffer overflowed: messages are lost, and cached kernel state is stale.
    #[error("{context}: the socket's receive buffer overflowed, messages are lost")]
    Overrun {
        /// What was attempted.
        context: Context,
    },
    /// The kernel's tables changed during every attempt to dump them (`NLM_F_DUMP_INTR`).
    #[error("{context}: the kernel's tables changed during each of {attempts} dumps")]
    DumpInterrupted {
        /// What was attempted.
        context: Context,
        /// The number of attempts.
        attempts: u32,
    },
    /// The kernel's reply violates the protocol.
    #[error("{context}: malformed reply from the kernel: {what}")]
    Malformed {
        /// What was attempted.
        context: Context,
        /// What is wrong with the reply.
        what: &'static str,
    },
    /// The message exceeds netlink's length fields.
    #[error("{context}: the message is too long for netlink (an attribute holds 65531 bytes)")]
    TooLong {
        /// What was attempted.
        context: Context,
    },
    /// A plan or query names a sandbox whose network namespace is not part of the transaction.
    #[error("{scope}: its network namespace is not open")]
    NoNamespace {
        /// The scope.
        scope: String,
    },
    /// The kernel was built without a feature.
    #[error("{context}: this kernel has no {what}: {config}")]
    Unsupported {
        /// What was attempted.
        context: Context,
        /// The missing feature, such as `vxlan`.
        what: String,
        /// The kernel's build option for it.
        config: &'static str,
    },
    /// Only the process that owns an nftables table can change it.
    #[error("{context}: the table belongs to another process (netlink port {port})")]
    Owned {
        /// What was attempted.
        context: Context,
        /// The port number of its socket.
        port: u32,
    },
    /// This process is not permitted to open a device.
    #[error("{context}: {}", denial_text(device, source))]
    DeviceDenied {
        /// What was attempted.
        context: Context,
        /// The device.
        device: &'static str,
        /// Why it could not be opened.
        source: io::Error,
    },
    /// A private key that no source provides.
    #[error("{context}: {reason}")]
    MissingKey {
        /// What was attempted.
        context: Context,
        /// Why it is missing.
        reason: String,
    },
    /// A value that the kernel interface cannot express.
    #[error("{context}: {reason}")]
    InvalidValue {
        /// What was attempted.
        context: Context,
        /// What is wrong with it.
        reason: String,
    },
    /// A path or process that does not lead to a usable network namespace.
    #[error("network namespace {}: {reason}", path.display())]
    NotANamespace {
        /// The path as given.
        path: PathBuf,
        /// What is wrong with it.
        reason: Cow<'static, str>,
    },
}

impl Error {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Rejected { errno, .. } => Some(*errno),
            Self::System { source, .. } => source.raw_os_error().map(Errno::from_raw),
            _ => None,
        }
    }

    /// Whether a retry may succeed.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Overrun { .. }
            | Self::DumpInterrupted { .. }
            | Self::Owned { .. } => true,
            Self::Rejected { .. } | Self::System { .. } => matches!(
                self.errno(),
                Some(Errno::EBUSY | Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::ENOMEM)
            ),
            Self::Malformed { .. }
            | Self::TooLong { .. }
            | Self::NotANamespace { .. }
            | Self::NoNamespace { .. }
            | Self::Unsupported { .. }
            | Self::DeviceDenied { .. }
            | Self::MissingKey { .. }
            | Self::InvalidValue { .. } => false,
        }
    }

    /// Whether an object or key that the operation needs does not exist.
    pub fn is_not_found(&self) -> bool {
        let is_missing =
            |errno| matches!(errno, Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL);
        matches!(self, Self::MissingKey { .. }) || self.errno().is_some_and(is_missing)
    }

    /// The stable reason for conditions, Events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "KernelTimeout",
            Self::Overrun { .. } => "KernelOverrun",
            Self::DumpInterrupted { .. } => "KernelUnsettled",
            Self::Malformed { .. } => "KernelReplyMalformed",
            Self::TooLong { .. } => "KernelMessageTooLong",
            Self::NotANamespace { .. } | Self::NoNamespace { .. } => "NotANetworkNamespace",
            Self::Unsupported { .. } => "KernelLacksFeature",
            Self::DeviceDenied { .. } | Self::Owned { .. } => "PermissionDenied",
            Self::MissingKey { .. } => "NotFound",
            Self::InvalidValue { .. } => "InvalidValue",
            Self::Rejected { .. } | Self::System { .. } => match self.errno() {
                Some(Errno::EPERM | Errno::EACCES) => "PermissionDenied",
                Some(Errno::EEXIST) => "AlreadyExists",
                Some(Errno::EBUSY) => "KernelBusy",
                Some(Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT) => {
                    "KernelLacksFeature"
                }
                _ if self.is_not_found() => "NotFound",
                _ => "KernelError",
            },
        }
    }

    /// The feature or device that this machine lacks, as text; `None` if the error has another cause.
    pub fn unsupported_feature(&self) -> Option<String> {
        match self {
            Self::Unsupported { what, config, .. } => Some(format!("this kernel has no {what}: {config}")),
            Self::DeviceDenied { device, source, .. } => Some(denial_text(device, source)),
            _ => None,
        }
    }

    pub(crate) fn system(
        context: impl Into<Context>,
        action: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::System { context: context.into(), action, source: source.into() }
    }
}

fn denial_text(device: &str, source: &io::Error) -> String {
    format!("no permission to open {device}: {source} (in a container, the runtime must allow the device)")
}

fn rejection_text(errno: Errno, message: Option<&str>, offset: Option<u32>) -> String {
    let at = offset.map(|offset| format!(", at byte {offset}")).unwrap_or_default();
    match message {
        Some(message) => format!("{message} ({errno:?}{at})"),
        None => format!("{} ({errno:?}{at})", errno.desc().to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(errno: Errno, message: Option<&str>, offset: Option<u32>) -> Error {
        let message = message.map(str::to_owned);
        Error::Rejected { context: "add link pnobr0".into(), errno, message, offset }
    }

    #[test]
    fn a_rejection_names_the_object_and_the_cause() {
        assert_eq!(rejected(Errno::EEXIST, None, None).to_string(), "add link pnobr0: file exists (EEXIST)");
        assert_eq!(
            rejected(Errno::EOPNOTSUPP, Some("Unknown device type"), Some(36)).to_string(),
            "add link pnobr0: Unknown device type (EOPNOTSUPP, at byte 36)"
        );
    }

    #[test]
    fn busy_may_be_retried_and_exists_may_not() {
        assert!(rejected(Errno::EBUSY, None, None).may_retry());
        assert!(!rejected(Errno::EEXIST, None, None).may_retry());
        assert_eq!(rejected(Errno::EEXIST, None, None).reason(), "AlreadyExists");
    }

    #[test]
    fn missing_objects_and_keys_are_not_found() {
        for errno in [Errno::ENODEV, Errno::ENOENT, Errno::ESRCH, Errno::EADDRNOTAVAIL] {
            assert!(rejected(errno, None, None).is_not_found(), "{errno}");
            assert_eq!(rejected(errno, None, None).reason(), "NotFound");
        }
        assert!(!rejected(Errno::EEXIST, None, None).is_not_found());
        let key = Error::MissingKey { context: "set link wg0".into(), reason: "no key".to_owned() };
        assert!(key.is_not_found());
        assert_eq!(key.reason(), "NotFound");
    }

    #[test]
    fn a_failed_system_call_keeps_its_errno() {
        let error = Error::system("observe node", "open a netlink socket", Errno::EPERM);
        assert_eq!(error.errno(), Some(Errno::EPERM));
        assert_eq!(error.reason(), "PermissionDenied");
        assert!(error.to_string().starts_with("observe node: cannot open a netlink socket: "));
    }
}
