//! Stable error reasons.

use std::fmt;

use tonic::Code;

/// Defines the reasons: each with its name, its gRPC code and whether a retry may help.
macro_rules! reasons {
    ($(#[doc = $meaning:literal] $name:ident => $code:ident, $retry:literal;)*) => {
        /// Why a call failed. The names appear in errors, metrics, Events and conditions, and are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The description.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning.trim_ascii(),)* }
            }

            /// The gRPC code.
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)* }
            }

            /// Whether the same call may succeed later, by default.
            pub fn retry(self) -> bool {
                match self { $(Self::$name => $retry,)* }
            }
        }
    };
}

reasons! {
    /// A value is invalid.
    InvalidValue => InvalidArgument, false;
    /// Two inputs conflict.
    Conflict => FailedPrecondition, false;
    /// An address range overlaps one that is in use.
    RangeOverlap => FailedPrecondition, false;
    /// An address range is not within those that an admin opened to tenants.
    RangeNotOpen => FailedPrecondition, false;
    /// No free address is left.
    AddressesExhausted => ResourceExhausted, true;
    /// A referenced object does not exist.
    NotFound => NotFound, false;
    /// The caller is not allowed to use it.
    NotAllowed => PermissionDenied, false;
    /// It exists in the kernel and is not managed by Knit.
    NotOwned => FailedPrecondition, false;
    /// The kernel does not support it.
    KernelUnsupported => FailedPrecondition, false;
    /// The kernel returned an error.
    KernelError => Internal, true;
    /// It exists already, and the caller set `fail_if_present`.
    AlreadyPresent => AlreadyExists, false;
    /// The isolation domain of the sandbox no longer exists.
    SandboxGone => FailedPrecondition, false;
    /// A later call supersedes it, such as a detach before a delayed attach.
    Superseded => Aborted, false;
    /// The agent is starting, or the node's network is not ready.
    NotReady => Unavailable, true;
    /// The agent is shutting down.
    Stopping => Unavailable, true;
    /// Too many concurrent calls.
    Busy => ResourceExhausted, true;
    /// The agent cannot write its state, for example because the disk is full or read-only.
    StateUnwritable => Unavailable, true;
    /// A registered extension is unavailable or failed.
    ExtensionFailed => Aborted, true;
    /// The deadline of the call expired.
    DeadlineExceeded => DeadlineExceeded, true;
    /// The caller cancelled the call, which was rolled back.
    Cancelled => Cancelled, true;
    /// The position is no longer in the history: restart the watch.
    PositionGone => OutOfRange, false;
    /// The reader of a stream is too slow: resume from the last position.
    SlowReader => ResourceExhausted, true;
    /// The agent does not support it.
    Unsupported => Unimplemented, false;
    /// An internal error of the agent.
    Internal => Internal, false;
}

impl Reason {
    /// Parses a name; `None` for a reason of a newer agent.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == name)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_parsed() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("SomethingNew"), None);
    }
}
