//! CNI errors. The codes up to 99 are those of the specification and of libcni.

use knit_kni::{Reason, v1};
use serde_json::json;

use crate::version::Version;

/// The CNI version is not supported.
pub const INCOMPATIBLE_VERSION: u32 = 1;
/// A field of the network configuration is not supported.
pub const UNSUPPORTED_FIELD: u32 = 2;
/// The container does not exist; the runtime need not clean up.
pub const UNKNOWN_CONTAINER: u32 = 3;
/// An environment variable is missing or invalid.
pub const INVALID_ENVIRONMENT: u32 = 4;
/// An I/O error.
pub const IO_FAILURE: u32 = 5;
/// The input cannot be decoded.
pub const DECODING_FAILURE: u32 = 6;
/// The network configuration is invalid.
pub const INVALID_NETWORK_CONFIG: u32 = 7;
/// A retry may succeed.
pub const TRY_AGAIN_LATER: u32 = 11;
/// ADD cannot succeed now.
pub const PLUGIN_NOT_AVAILABLE: u32 = 50;
/// ADD cannot succeed now, and existing containers may have limited connectivity.
pub const LIMITED_CONNECTIVITY: u32 = 51;
/// The interface is already attached. Codes from 100 on are specific to Knit.
pub const ALREADY_ATTACHED: u32 = 100;
/// The node does not support the request.
pub const NOT_SUPPORTED_BY_NODE: u32 = 101;
/// CHECK found a difference.
pub const CHECK_FAILED: u32 = 102;
/// An internal error of the agent.
pub const INTERNAL: u32 = 999;

/// The error of a CNI command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The code.
    pub code: u32,
    /// The message.
    pub message: String,
    /// Details: the reason, the field, the object and the call id.
    pub details: String,
}

impl CniError {
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }

    /// A field of the network configuration is invalid.
    pub(crate) fn invalid_config(field: &str, reason: impl std::fmt::Display) -> Self {
        Self::new(INVALID_NETWORK_CONFIG, format!("network configuration: {field}: {reason}"))
    }

    /// An environment variable is invalid.
    pub(crate) fn invalid_environment(name: &str, reason: impl std::fmt::Display) -> Self {
        Self::new(INVALID_ENVIRONMENT, format!("environment variable {name}: {reason}"))
    }

    /// The error in a reply of the agent.
    pub(crate) fn from_reply(reply: v1::FramedReply) -> Self {
        let detail = reply.error.unwrap_or_default();
        let reason = Reason::parse(&detail.reason);
        let netns_fields = ["sandbox.isolation", "isolation", "netns"];
        let code = match reason {
            _ if detail.retry => TRY_AGAIN_LATER,
            Some(Reason::InvalidValue | Reason::NotOwned)
                if netns_fields.iter().any(|field| detail.field.starts_with(field)) =>
            {
                INVALID_ENVIRONMENT
            }
            Some(Reason::SandboxGone | Reason::Superseded) => UNKNOWN_CONTAINER,
            Some(Reason::AlreadyPresent | Reason::Conflict) => ALREADY_ATTACHED,
            Some(Reason::KernelUnsupported | Reason::NotOwned) => NOT_SUPPORTED_BY_NODE,
            Some(
                Reason::InvalidValue
                | Reason::RangeOverlap
                | Reason::RangeNotOpen
                | Reason::NotFound
                | Reason::NotAllowed
                | Reason::Unsupported,
            ) => INVALID_NETWORK_CONFIG,
            _ => INTERNAL,
        };
        let message = match code {
            INVALID_ENVIRONMENT => format!("environment variable CNI_NETNS: {}", reply.message),
            _ => reply.message,
        };
        let mut details = format!("reason {}", detail.reason);
        for (name, value) in [("field", &detail.field), ("object", &detail.object), ("call", &detail.call_id)]
        {
            if !value.is_empty() {
                details += &format!(", {name} {value}");
            }
        }
        Self { code, message, details }
    }

    /// The error as the runtime reads it.
    pub(crate) fn to_json(&self, version: Version) -> String {
        let mut error = json!({ "cniVersion": version.as_str(), "code": self.code, "msg": self.message });
        if !self.details.is_empty() {
            error["details"] = json!(self.details);
        }
        error.to_string()
    }
}
