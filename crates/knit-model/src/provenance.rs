//! Where a desired value came from. It travels with the value into plan, journal, status and explain.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Who asked for a value, in which language, and in which field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Provenance {
    /// The input language.
    pub dialect: Dialect,
    /// The object that says so; `None` for a call without one.
    pub object: Option<ObjectRef>,
    /// The field's path inside the object, such as `spec.networkAttachments[0].cidr`.
    pub field: String,
    /// The id of the call, for an RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
}

/// An input language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// A Kubernetes object from the API server.
    Kubernetes,
    /// The same object from a file.
    File,
    /// A KNI call.
    Kni,
    /// A CNI call.
    Cni,
    /// An annotation on a pod.
    Annotation,
    /// Knit itself: a value that follows from others.
    Knit,
}

/// Which object, and which generation of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for a cluster-wide object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: the same name made again is another object.
    pub uid: String,
    /// Which generation of its spec.
    pub generation: i64,
}

impl Provenance {
    /// The same origin, one field further in.
    #[must_use]
    pub fn at(&self, field: impl fmt::Display) -> Self {
        Self { field: field.to_string(), ..self.clone() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(out, "{} {}", self.kind, self.name)
        } else {
            write!(out, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.object {
            Some(object) => write!(out, "{object} {}", self.field),
            None => write!(out, "{:?} {}", self.dialect, self.field),
        }?;
        match &self.call {
            Some(call) => write!(out, " (call {call})"),
            None => Ok(()),
        }
    }
}
