//! The network configuration on standard input.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::capabilities::{Capabilities, field_ignoring_case};
use crate::environment;
use crate::error::{CniError, DECODING_FAILURE, INCOMPATIBLE_VERSION, UNSUPPORTED_FIELD};
use crate::prev_result::PrevResult;
use crate::version::Version;

/// The default timeout of a call.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TIMEOUT_SECONDS: u64 = 600;

/// A valid network configuration.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The CNI version of the result.
    pub version: Version,
    /// The name of the configuration: the scope of a GC.
    pub name: String,
    /// The network of Knit; empty for the cluster network.
    pub network: String,
    /// Overrides `CNI_IFNAME`.
    pub interface: Option<String>,
    /// The MTU; 0 for the MTU of the network.
    pub mtu: u32,
    /// Whether the interface gets the default route; unset for the agent's default.
    pub default_route: Option<bool>,
    /// The socket of the agent.
    pub socket: PathBuf,
    /// The timeout of a call.
    pub timeout: Duration,
    /// The settings for this container.
    pub capabilities: Capabilities,
    /// The result of the previous plugins in the chain.
    pub prev_result: Option<PrevResult>,
    /// The valid attachments of a GC: containers and interfaces.
    pub valid_attachments: Vec<(String, String)>,
}

/// The version for the result or error, also of an invalid configuration.
pub(crate) fn version_of(input: &[u8]) -> Version {
    let value: Option<Value> = serde_json::from_slice(input).ok();
    let text = value.as_ref().and_then(|value| value.get("cniVersion")?.as_str());
    text.and_then(Version::parse).unwrap_or(Version::NEWEST)
}

impl Config {
    /// Parses standard input.
    pub fn parse(input: &[u8]) -> Result<Self, CniError> {
        let undecodable =
            |reason: String| CniError::new(DECODING_FAILURE, format!("network configuration: {reason}"));
        let value: Value = serde_json::from_slice(input).map_err(|error| undecodable(error.to_string()))?;
        let Value::Object(fields) = value else {
            return Err(undecodable("expected a JSON object".to_owned()));
        };
        let version = text(&fields, "cniVersion")?;
        let version = Version::parse(version).ok_or_else(|| {
            let ours = Version::ALL.map(Version::as_str).join(", ");
            let shown = version.escape_debug();
            CniError::new(
                INCOMPATIBLE_VERSION,
                format!("unsupported cniVersion `{shown}`: supported are {ours}"),
            )
        })?;
        let mut config = Self {
            version,
            name: network_name(text(&fields, "name")?)?,
            network: String::new(),
            interface: None,
            mtu: 0,
            default_route: None,
            socket: knit_kni::frame::DEFAULT_SOCKET.into(),
            timeout: DEFAULT_TIMEOUT,
            capabilities: Capabilities::default(),
            prev_result: None,
            valid_attachments: Vec::new(),
        };
        for (key, value) in &fields {
            config.set(key, value)?;
        }
        // `runtimeConfig` takes precedence over the other fields.
        if let Some(runtime) = fields.get("runtimeConfig").filter(|value| !value.is_null()) {
            config.capabilities.read_runtime(runtime)?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &Value) -> Result<(), CniError> {
        let invalid =
            |expected: &str| CniError::invalid_config(key, format!("expected {expected}, not {value}"));
        let string = || value.as_str().ok_or_else(|| invalid("a string"));
        match key {
            // Read by another module, or used only by the runtime.
            "cniVersion" | "name" | "type" | "capabilities" | "runtimeConfig" => {}
            "network" => self.network = network_name(string()?)?,
            "interface" => {
                let name = environment::interface(key, string()?);
                self.interface = Some(name.map_err(|_| invalid("an interface name"))?);
            }
            "mtu" => {
                let mtu = value.as_u64().and_then(|mtu| u32::try_from(mtu).ok());
                self.mtu = mtu.ok_or_else(|| invalid("an MTU"))?;
            }
            "defaultRoute" => {
                self.default_route = Some(value.as_bool().ok_or_else(|| invalid("true or false"))?);
            }
            "socket" => {
                let path = string()?;
                if !path.starts_with('/') || path.contains('\0') {
                    return Err(invalid("an absolute path"));
                }
                self.socket = path.into();
            }
            "timeoutSeconds" => {
                let seconds = value.as_u64().filter(|seconds| (1..=MAX_TIMEOUT_SECONDS).contains(seconds));
                self.timeout = Duration::from_secs(seconds.ok_or_else(|| invalid("seconds from 1 to 600"))?);
            }
            "dns" => self.capabilities.read_dns(key, value)?,
            "args" => self.capabilities.read_args(value)?,
            "prevResult" if value.is_null() => {}
            "prevResult" => self.prev_result = Some(PrevResult::read(value)?),
            "cni.dev/valid-attachments" | "cni.dev/attachments" => {
                self.valid_attachments = valid_attachments(key, value)?
            }
            // Reserved by the specification.
            key if key.starts_with("cni.dev/") => {}
            _ => {
                let value = value.to_string();
                let short: String = value.chars().take(200).collect();
                let message =
                    format!("network configuration: field `{}` with value {short}", key.escape_debug());
                return Err(CniError::new(UNSUPPORTED_FIELD, format!("{message} is not supported")));
            }
        }
        Ok(())
    }
}

fn text<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<&'a str, CniError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(CniError::invalid_config(key, format!("expected a string, not {other}"))),
    }
}

/// A network name: a letter or digit, then letters, digits, `_`, `.` and `-`.
fn network_name(name: &str) -> Result<String, CniError> {
    environment::container("name", name).map_err(|_| {
        let shown = name.escape_debug();
        CniError::invalid_config("name", format!("`{shown}` must be letters, digits, `_`, `.` and `-`"))
    })
}

fn valid_attachments(key: &str, value: &Value) -> Result<Vec<(String, String)>, CniError> {
    let invalid =
        |value: &Value| CniError::invalid_config(key, format!("expected a list of attachments, not {value}"));
    if value.is_null() {
        return Ok(Vec::new());
    }
    let all = value.as_array().ok_or_else(|| invalid(value))?;
    let attachment = |value: &Value| {
        let container = field_ignoring_case(value, "containerID").and_then(Value::as_str).unwrap_or_default();
        let interface = field_ignoring_case(value, "ifname").and_then(Value::as_str).unwrap_or_default();
        let container = environment::container(key, container).map_err(|_| invalid(value))?;
        let interface = environment::interface(key, interface).map_err(|_| invalid(value))?;
        Ok((container, interface))
    };
    all.iter().map(attachment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::INVALID_NETWORK_CONFIG;

    fn code(text: &str) -> u32 {
        Config::parse(text.as_bytes()).map(|_| 0).unwrap_or_else(|error| error.code)
    }

    #[test]
    fn invalid_input_has_the_error_code_of_the_specification() {
        for (text, expected) in [
            ("", DECODING_FAILURE),
            ("{\"cniVersion\": \"1.0.0\"", DECODING_FAILURE),
            ("[]", DECODING_FAILURE),
            ("{}", INCOMPATIBLE_VERSION),
            (r#"{"cniVersion":"0.2.0","name":"n"}"#, INCOMPATIBLE_VERSION),
            (r#"{"cniVersion":"9.9.9","name":"n"}"#, INCOMPATIBLE_VERSION),
            (r#"{"cniVersion":1,"name":"n"}"#, INVALID_NETWORK_CONFIG),
            (r#"{"cniVersion":"1.0.0"}"#, INVALID_NETWORK_CONFIG),
            (r#"{"cniVersion":"1.0.0","name":"a/b"}"#, INVALID_NETWORK_CONFIG),
            (r#"{"cniVersion":"1.0.0","name":"n","mtu":"big"}"#, INVALID_NETWORK_CONFIG),
            (r#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local"}}"#, UNSUPPORTED_FIELD),
            (r#"{"cniVersion":"1.0.0","name":"n","prevResult":[]}"#, DECODING_FAILURE),
            (r#"{"cniVersion":"1.0.0","name":"n","cni.dev/new":1}"#, 0),
            (r#"{"cniVersion":"1.1.0","name":"n","type":"knit-cni","network":"blue"}"#, 0),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
        let error = Config::parse(br#"{"cniVersion":"1.0.0","name":"n","typo":42}"#).unwrap_err();
        assert!(error.message.contains("typo") && error.message.contains("42"), "{}", error.message);
    }
}
