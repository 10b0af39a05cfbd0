//! Problems with an input: field path, stable reason and message.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A problem with an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The field, such as `spec.links[1].mtu`; empty for the whole object.
    pub field: String,
    /// Stable reason for conditions, Events, metrics and error codes.
    pub reason: Reason,
    /// Human-readable message.
    pub message: String,
}

/// Stable reasons. They are public API: they appear in conditions, Events and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A value is invalid.
    InvalidValue,
    /// Two inputs request the same resource.
    Conflict,
    /// An address range overlaps another one in use.
    RangeOverlap,
    /// No free address is left in the pool.
    AddressesExhausted,
    /// A referenced object does not exist (yet).
    NotFound,
    /// A referenced object may not be used by the requester.
    NotAllowed,
    /// An object exists in the kernel and is not owned by Knit.
    NotOwned,
    /// The kernel does not support it.
    KernelUnsupported,
    /// The kernel returned an error.
    KernelError,
    /// It already exists with other properties than requested.
    AlreadyPresent,
    /// Superseded by a later call, such as a detach during an attach.
    Superseded,
    /// The isolation domain of the sandbox no longer exists.
    SandboxGone,
    /// Too many operations are in flight.
    Busy,
    /// A registered extension is unavailable or failed.
    ExtensionFailed,
    /// The node is not ready for pods yet.
    NotReady,
    /// The quota of the namespace is exhausted.
    QuotaExceeded,
}

/// Collected problems. An input is checked completely, so that all problems are reported at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, field: impl Into<String>, reason: Reason, message: impl Into<String>) {
        self.0.push(Problem { field: field.into(), reason, message: message.into() });
    }

    /// Adds an invalid value.
    pub fn invalid(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field, Reason::InvalidValue, message);
    }

    /// Unwraps a result, or adds its error as a problem of the field.
    pub fn check<T, E: fmt::Display>(&mut self, field: impl Into<String>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.invalid(field, error.to_string())).ok()
    }

    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Reason {
    /// Whether a retry with the same input may succeed.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::AddressesExhausted
            | Self::NotFound
            | Self::KernelError
            | Self::Conflict
            | Self::NotOwned
            | Self::Busy
            | Self::ExtensionFailed
            | Self::NotReady
            | Self::QuotaExceeded => true,
            Self::InvalidValue
            | Self::RangeOverlap
            | Self::NotAllowed
            | Self::KernelUnsupported
            | Self::AlreadyPresent
            | Self::Superseded
            | Self::SandboxGone => false,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            out.write_str(&self.message)
        } else {
            write!(out, "{}: {}", self.field, self.message)
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(out, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}
