//! Problems with an input: field path, stable reason and message.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::IfName;
use crate::sandbox::Scope;

/// A problem with an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The field, such as `spec.links[1].mtu`; empty for the whole object.
    pub field: String,
    /// Stable reason for conditions, Events, metrics and error codes.
    pub reason: Reason,
    /// Human-readable message. No decision depends on it.
    pub message: String,
    /// What it concerns, to attribute it to objects.
    #[serde(default, skip_serializing_if = "Subject::is_field")]
    pub subject: Subject,
}

/// What a problem concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Subject {
    /// Its field, or the whole object.
    #[default]
    Field,
    /// A link. Boxed, since problems are part of most errors.
    Link(Box<LinkSubject>),
}

/// A link that a problem concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSubject {
    /// The scope of the link.
    pub scope: Scope,
    /// The name of the link.
    pub name: IfName,
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
    /// An address range is not within those that an admin opened to tenants.
    RangeNotOpen,
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

impl Problem {
    /// A problem of a field.
    pub fn new(field: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self { field: field.into(), reason, message: message.into(), subject: Subject::Field }
    }

    /// A problem of a link.
    pub fn of_link(scope: &Scope, name: &IfName, reason: Reason, message: impl Into<String>) -> Self {
        let link = LinkSubject { scope: scope.clone(), name: name.clone() };
        Self { subject: Subject::Link(Box::new(link)), ..Self::new("", reason, message) }
    }
}

impl Subject {
    fn is_field(&self) -> bool {
        *self == Self::Field
    }
}

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, field: impl Into<String>, reason: Reason, message: impl Into<String>) {
        self.0.push(Problem::new(field, reason, message));
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
    /// Its stable name for conditions, Events and metrics; the same as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidValue => "InvalidValue",
            Self::Conflict => "Conflict",
            Self::RangeOverlap => "RangeOverlap",
            Self::RangeNotOpen => "RangeNotOpen",
            Self::AddressesExhausted => "AddressesExhausted",
            Self::NotFound => "NotFound",
            Self::NotAllowed => "NotAllowed",
            Self::NotOwned => "NotOwned",
            Self::KernelUnsupported => "KernelUnsupported",
            Self::KernelError => "KernelError",
            Self::AlreadyPresent => "AlreadyPresent",
            Self::Superseded => "Superseded",
            Self::SandboxGone => "SandboxGone",
            Self::Busy => "Busy",
            Self::ExtensionFailed => "ExtensionFailed",
            Self::NotReady => "NotReady",
            Self::QuotaExceeded => "QuotaExceeded",
        }
    }

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
            | Self::RangeNotOpen
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_reason_is_its_json_form() {
        for reason in [Reason::InvalidValue, Reason::QuotaExceeded, Reason::KernelUnsupported] {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
            assert_eq!(reason.name(), format!("{reason:?}"));
        }
    }

    #[test]
    fn a_problem_without_a_subject_is_read_from_old_state() {
        let old = r#"{"field":"spec.mtu","reason":"InvalidValue","message":"too large"}"#;
        let problem: Problem = serde_json::from_str(old).unwrap();
        assert_eq!(problem, Problem::new("spec.mtu", Reason::InvalidValue, "too large"));
        assert_eq!(serde_json::to_string(&problem).unwrap(), old);
    }
}
