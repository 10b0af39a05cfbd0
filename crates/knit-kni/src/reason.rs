//! Stable words for what went wrong.

use std::fmt;

use tonic::Code;

/// Defines the reasons: each with its word, its gRPC code and whether the same call may succeed later.
macro_rules! reasons {
    ($(#[doc = $meaning:literal] $name:ident => $code:ident, $retry:literal;)*) => {
        /// Why a call failed. The words appear in errors, metrics, Events and conditions: none changes its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $meaning] $name,)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The word.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// What it means, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning.trim_ascii(),)* }
            }

            /// The gRPC code that goes with it.
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)* }
            }

            /// Whether the same call may succeed later, as a rule.
            pub fn retry(self) -> bool {
                match self { $(Self::$name => $retry,)* }
            }
        }
    };
}

reasons! {
    /// A value of the request that nothing can be made of.
    InvalidValue => InvalidArgument, false;
    /// Two inputs ask for the same thing differently.
    Conflict => FailedPrecondition, false;
    /// An address range that is in use by something else.
    RangeOverlap => FailedPrecondition, false;
    /// No free address is left.
    AddressesExhausted => ResourceExhausted, true;
    /// Something that is named does not exist.
    NotFound => NotFound, false;
    /// It exists, and is not the caller's to use.
    NotAllowed => PermissionDenied, false;
    /// It exists in the kernel, and Knit did not make it.
    NotOwned => FailedPrecondition, false;
    /// The kernel does not have it.
    KernelLacks => FailedPrecondition, false;
    /// The kernel refused or failed.
    KernelRefused => Internal, true;
    /// It is there already, and the caller said that this is an error.
    AlreadyPresent => AlreadyExists, false;
    /// The sandbox's isolation domain is gone.
    SandboxGone => FailedPrecondition, false;
    /// A later call decided otherwise: an attach that comes after the detach of its sandbox, say.
    Superseded => Aborted, false;
    /// The agent is starting, or the node's part of the network does not stand yet.
    NotReady => Unavailable, true;
    /// The agent is going away.
    Stopping => Unavailable, true;
    /// Too many calls at once.
    Busy => ResourceExhausted, true;
    /// The agent cannot write its state: the disk is full or read-only, say.
    StateUnwritable => Unavailable, true;
    /// A registered extension is away or failed.
    ExtensionFailed => Aborted, true;
    /// The call took longer than it was given.
    DeadlineExceeded => DeadlineExceeded, true;
    /// The caller went away; nothing is left of the call.
    Cancelled => Cancelled, true;
    /// The history does not reach back so far: begin a watch anew.
    PositionGone => OutOfRange, false;
    /// The reader of a stream did not keep up: go on from the last position.
    SlowReader => ResourceExhausted, true;
    /// This agent cannot do it.
    Unsupported => Unimplemented, false;
    /// A fault of the agent itself.
    Internal => Internal, false;
}

impl Reason {
    /// The reason with this word; `None` for one of a newer agent.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
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
    fn every_word_is_read_back() {
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("SomethingNew"), None);
    }
}
