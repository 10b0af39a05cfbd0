//! Provenance of desired values. It is carried into plans, the journal, status and `knit explain`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The origin of a value: dialect, object and field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Provenance {
    /// The input dialect.
    pub dialect: Dialect,
    /// The object; `None` for a call.
    pub object: Option<ObjectRef>,
    /// Path of the field in the object, such as `spec.networkAttachments[0].cidr`.
    pub field: String,
    /// Id of the RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
}

/// An input dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// A Kubernetes object from the API server.
    Kubernetes,
    /// An object from a file.
    File,
    /// A KNI call.
    Kni,
    /// A CNI call.
    Cni,
    /// An annotation on a pod.
    Annotation,
    /// Knit itself: a derived value.
    Knit,
}

/// Reference to an object and its generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for a cluster-wide object.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, which distinguishes recreated objects of the same name.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
}

impl Provenance {
    /// The same origin with another field.
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
