//! What is wrong with an input, in words, with the path of the field.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The field, such as `spec.links[1].mtu`; empty when it is the whole object.
    pub field: String,
    /// A stable word for conditions, Events, metrics and error codes.
    pub reason: Reason,
    /// The sentence for people.
    pub message: String,
}

/// Stable reasons. They appear in conditions and metrics, so a name never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A value that no kernel or object takes.
    InvalidValue,
    /// Two inputs ask for the same thing.
    Conflict,
    /// An address range that is in use by something else.
    RangeOverlap,
    /// No free address is left.
    AddressesExhausted,
    /// Something that is named does not exist (yet).
    NotFound,
    /// It exists, and is not the asker's to use.
    NotAllowed,
    /// It exists in the kernel, and Knit did not make it.
    NotOwned,
    /// The kernel does not have it.
    KernelLacks,
    /// The kernel refused or failed.
    KernelRefused,
    /// What was asked for is there already, and that is not what was asked.
    AlreadyPresent,
    /// A later call decided otherwise: a detach while its attach was under way, say.
    Superseded,
    /// The sandbox's isolation domain is gone.
    SandboxGone,
    /// More is under way than Knit takes at once.
    Busy,
    /// A registered extension is away or failed.
    ExtensionFailed,
    /// Something that the node needs for pods is not there yet.
    NotReady,
    /// The namespace has as much as its quota lets it.
    QuotaExceeded,
}

/// A list of problems that can still grow; an input is checked to the end, so that a person sees all of them at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, field: impl Into<String>, reason: Reason, message: impl Into<String>) {
        self.0.push(Problem { field: field.into(), reason, message: message.into() });
    }

    /// Adds a bad value.
    pub fn invalid(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field, Reason::InvalidValue, message);
    }

    /// The value, or a problem at that field.
    pub fn check<T, E: fmt::Display>(&mut self, field: impl Into<String>, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.invalid(field, error.to_string())).ok()
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Reason {
    /// Whether trying again later, with the same input, may help.
    pub fn retry_helps(self) -> bool {
        match self {
            Self::AddressesExhausted
            | Self::NotFound
            | Self::KernelRefused
            | Self::Conflict
            | Self::NotOwned
            | Self::Busy
            | Self::ExtensionFailed
            | Self::NotReady
            | Self::QuotaExceeded => true,
            Self::InvalidValue
            | Self::RangeOverlap
            | Self::NotAllowed
            | Self::KernelLacks
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
