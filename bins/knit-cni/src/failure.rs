//! Errors as the specification has them: a code, a sentence, details.

use knit_kni::{Reason, v1};
use serde_json::json;

use crate::version::Version;

/// The version of the specification is not one of ours.
pub const INCOMPATIBLE: u32 = 1;
/// A field of the configuration that means nothing here.
pub const UNSUPPORTED: u32 = 2;
/// The container is unknown or gone; there is nothing to clean up.
pub const UNKNOWN_CONTAINER: u32 = 3;
/// An environment variable is missing or wrong.
pub const ENVIRONMENT: u32 = 4;
/// Reading or writing failed.
pub const INPUT_OUTPUT: u32 = 5;
/// What was read is not what it should be.
pub const DECODING: u32 = 6;
/// The configuration says something that cannot be.
pub const CONFIGURATION: u32 = 7;
/// It may work later.
pub const TRY_AGAIN: u32 = 11;
/// No pod can be added now.
pub const UNAVAILABLE: u32 = 50;
/// No pod can be added now, and those that are there may be cut off.
pub const LIMITED: u32 = 51;
/// From here on the codes are Knit's own. The interface is there already.
pub const PRESENT: u32 = 100;
/// This node cannot do it.
pub const INCAPABLE: u32 = 101;
/// A check found that something is not as it was made.
pub const NOT_AS_MADE: u32 = 102;
/// A fault of the agent itself.
pub const INTERNAL: u32 = 999;

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub code: u32,
    /// A sentence.
    pub message: String,
    /// More, for whoever looks into it.
    pub details: String,
}

impl Failure {
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: String::new() }
    }

    /// A field of the configuration is wrong.
    pub(crate) fn config(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(CONFIGURATION, format!("network configuration: {field}: {why}"))
    }

    /// A variable of the environment is wrong.
    pub(crate) fn variable(name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(ENVIRONMENT, format!("environment variable {name}: {why}"))
    }

    /// What the agent said.
    pub(crate) fn refused(reply: v1::FramedReply) -> Self {
        let detail = reply.error.unwrap_or_default();
        let reason = Reason::parse(&detail.reason);
        let about_netns = ["sandbox.isolation", "isolation", "netns"];
        let code = match reason {
            _ if detail.retry => TRY_AGAIN,
            Some(Reason::InvalidValue | Reason::NotOwned)
                if about_netns.iter().any(|field| detail.field.starts_with(field)) =>
            {
                ENVIRONMENT
            }
            Some(Reason::SandboxGone | Reason::Superseded) => UNKNOWN_CONTAINER,
            Some(Reason::AlreadyPresent | Reason::Conflict) => PRESENT,
            Some(Reason::KernelLacks | Reason::NotOwned) => INCAPABLE,
            Some(
                Reason::InvalidValue
                | Reason::RangeOverlap
                | Reason::NotFound
                | Reason::NotAllowed
                | Reason::Unsupported,
            ) => CONFIGURATION,
            _ => INTERNAL,
        };
        let message = match code {
            ENVIRONMENT => format!("environment variable CNI_NETNS: {}", reply.message),
            _ => reply.message,
        };
        let mut details = format!("reason {}", detail.reason);
        for (what, value) in [("field", &detail.field), ("object", &detail.object), ("call", &detail.call_id)]
        {
            if !value.is_empty() {
                details += &format!(", {what} {value}");
            }
        }
        Self { code, message, details }
    }

    /// As a runtime reads it.
    pub(crate) fn to_json(&self, version: Version) -> String {
        let mut error = json!({ "cniVersion": version.as_str(), "code": self.code, "msg": self.message });
        if !self.details.is_empty() {
            error["details"] = json!(self.details);
        }
        error.to_string()
    }
}
