//! What can go wrong in the kernel room, in words that name the object.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// The result of talking to the kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller was doing, such as `add link pnobr0`: a kernel's "file exists" names no object.
pub type Context = Cow<'static, str>;

/// Why something could not be said to the kernel, or was refused by it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel understood the message and said no.
    #[error("{context}: {}", refusal(*errno, message.as_deref(), *offset))]
    Refused {
        /// What was asked for.
        context: Context,
        /// The kernel's error number.
        errno: Errno,
        /// The kernel's own words, where it has some (`NLMSGERR_ATTR_MSG`).
        message: Option<String>,
        /// Which byte of the message the kernel points at (`NLMSGERR_ATTR_OFFS`).
        offset: Option<u32>,
    },
    /// A system call around the message failed.
    #[error("{context}: cannot {action}: {source}")]
    System {
        /// What was asked for.
        context: Context,
        /// What was tried, such as `open a netlink socket`.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The kernel did not answer in time.
    #[error("{context}: the kernel did not answer within {seconds} s")]
    Timeout {
        /// What was asked for.
        context: Context,
        /// How long Knit waited.
        seconds: u64,
    },
    /// The socket's receive buffer ran over: messages are lost, what was known of the kernel's state is stale.
    #[error("{context}: the kernel sent more than the socket could hold, some messages are lost")]
    Overrun {
        /// What was asked for.
        context: Context,
    },
    /// The kernel's tables changed under every one of several dumps.
    #[error("{context}: the kernel's tables changed during each of {attempts} dumps")]
    Unsettled {
        /// What was asked for.
        context: Context,
        /// How many dumps were tried.
        attempts: u32,
    },
    /// The kernel's answer is not what the protocol says.
    #[error("{context}: the kernel's answer cannot be read: {what}")]
    Malformed {
        /// What was asked for.
        context: Context,
        /// What is wrong with the answer.
        what: &'static str,
    },
    /// The message does not fit into netlink's lengths.
    #[error("{context}: the message is too long for netlink (an attribute holds 65531 bytes)")]
    TooLong {
        /// What was asked for.
        context: Context,
    },
    /// A sandbox that a plan or a look names, and whose namespace nobody gave.
    #[error("{scope}: its network namespace is not known here")]
    NoNamespace {
        /// The scope.
        scope: String,
    },
    /// The kernel was built without something.
    #[error("{context}: this kernel has no {what}: {config}")]
    Lacks {
        /// What was asked for.
        context: Context,
        /// What it lacks, such as `vxlan`.
        what: String,
        /// The option that it was built without.
        config: &'static str,
    },
    /// A device that this process may not open.
    #[error("{context}: {}", denial(device, source))]
    Denied {
        /// What was asked for.
        context: Context,
        /// The device.
        device: &'static str,
        /// Why it could not be opened.
        source: io::Error,
    },
    /// A secret key that nobody has.
    #[error("{context}: {why}")]
    NoKey {
        /// What was asked for.
        context: Context,
        /// Why there is none.
        why: String,
    },
    /// A value that cannot be said to the kernel.
    #[error("{context}: {why}")]
    Unsayable {
        /// What was asked for.
        context: Context,
        /// What is wrong with it.
        why: String,
    },
    /// A path or process that should lead to a sandbox's network namespace does not.
    #[error("network namespace {}: {why}", path.display())]
    NotANamespace {
        /// The path as given.
        path: PathBuf,
        /// What is there instead.
        why: Cow<'static, str>,
    },
}

impl Error {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            Self::System { source, .. } => source.raw_os_error().map(Errno::from_raw),
            _ => None,
        }
    }

    /// Whether the same request may succeed when it is made again.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Overrun { .. } | Self::Unsettled { .. } => true,
            Self::Refused { .. } | Self::System { .. } => matches!(
                self.errno(),
                Some(Errno::EBUSY | Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::ENOMEM)
            ),
            Self::Malformed { .. }
            | Self::TooLong { .. }
            | Self::NotANamespace { .. }
            | Self::NoNamespace { .. }
            | Self::Lacks { .. }
            | Self::Denied { .. }
            | Self::NoKey { .. }
            | Self::Unsayable { .. } => false,
        }
    }

    /// The stable word for conditions, Events and metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Timeout { .. } => "KernelTimeout",
            Self::Overrun { .. } => "KernelOverrun",
            Self::Unsettled { .. } => "KernelUnsettled",
            Self::Malformed { .. } => "KernelAnswerMalformed",
            Self::TooLong { .. } => "KernelMessageTooLong",
            Self::NotANamespace { .. } | Self::NoNamespace { .. } => "NotANetworkNamespace",
            Self::Lacks { .. } => "KernelLacksFeature",
            Self::Denied { .. } => "PermissionDenied",
            Self::NoKey { .. } => "NotFound",
            Self::Unsayable { .. } => "InvalidValue",
            Self::Refused { .. } | Self::System { .. } => match self.errno() {
                Some(Errno::EPERM | Errno::EACCES) => "PermissionDenied",
                Some(Errno::EEXIST) => "AlreadyExists",
                Some(Errno::ENODEV | Errno::ENOENT | Errno::ESRCH | Errno::EADDRNOTAVAIL) => "NotFound",
                Some(Errno::EBUSY) => "KernelBusy",
                Some(Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT) => {
                    "KernelLacksFeature"
                }
                _ => "KernelRefused",
            },
        }
    }

    /// What this machine does not have for Knit, in words; `None` if that is not the reason.
    pub fn lack(&self) -> Option<String> {
        match self {
            Self::Lacks { what, config, .. } => Some(format!("this kernel has no {what}: {config}")),
            Self::Denied { device, source, .. } => Some(denial(device, source)),
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

fn denial(device: &str, source: &io::Error) -> String {
    format!(
        "{device} may not be opened here: {source} (in a container its runtime says which devices may be)"
    )
}

fn refusal(errno: Errno, message: Option<&str>, offset: Option<u32>) -> String {
    let at = offset.map(|offset| format!(", at byte {offset}")).unwrap_or_default();
    match message {
        Some(message) => format!("{message} ({errno:?}{at})"),
        None => format!("{} ({errno:?}{at})", errno.desc().to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno, message: Option<&str>, offset: Option<u32>) -> Error {
        let message = message.map(str::to_owned);
        Error::Refused { context: "add link pnobr0".into(), errno, message, offset }
    }

    #[test]
    fn a_refusal_names_the_object_and_the_cause() {
        assert_eq!(refused(Errno::EEXIST, None, None).to_string(), "add link pnobr0: file exists (EEXIST)");
        assert_eq!(
            refused(Errno::EOPNOTSUPP, Some("Unknown device type"), Some(36)).to_string(),
            "add link pnobr0: Unknown device type (EOPNOTSUPP, at byte 36)"
        );
    }

    #[test]
    fn busy_is_worth_a_retry_and_exists_is_not() {
        assert!(refused(Errno::EBUSY, None, None).may_retry());
        assert!(!refused(Errno::EEXIST, None, None).may_retry());
        assert_eq!(refused(Errno::EEXIST, None, None).reason(), "AlreadyExists");
    }

    #[test]
    fn a_system_call_that_failed_keeps_its_number() {
        let error = Error::system("observe node", "open a netlink socket", Errno::EPERM);
        assert_eq!(error.errno(), Some(Errno::EPERM));
        assert_eq!(error.reason(), "PermissionDenied");
        assert!(error.to_string().starts_with("observe node: cannot open a netlink socket: "));
    }
}
