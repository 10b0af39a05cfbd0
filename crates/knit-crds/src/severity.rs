//! The type of Kubernetes Events.

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Informational.
    Normal,
    /// Needs attention.
    Warning,
}
