//! The network configuration on standard input.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::capabilities::{Capabilities, part};
use crate::environment;
use crate::failure::{DECODING, Failure, INCOMPATIBLE, UNSUPPORTED};
use crate::prior::Prior;
use crate::version::Version;

/// How long a call may take unless the configuration says otherwise.
const TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_TIMEOUT: u64 = 600;

/// A network configuration, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The version of the specification that the answer is in.
    pub version: Version,
    /// The configuration's name: what one garbage collection is about.
    pub name: String,
    /// The network of Knit's; the cluster's when empty.
    pub network: String,
    /// The interface's name, instead of the runtime's.
    pub interface: Option<String>,
    /// The MTU; the network's when 0.
    pub mtu: u32,
    /// Whether the default route goes there; as the agent sees fit when unset.
    pub default_route: Option<bool>,
    /// The agent's socket.
    pub socket: PathBuf,
    /// How long a call may take.
    pub timeout: Duration,
    /// What the runtime asks for this container.
    pub asked: Capabilities,
    /// What plugins before this one made.
    pub prior: Option<Prior>,
    /// The containers and interfaces that live, for a garbage collection.
    pub living: Vec<(String, String)>,
}

/// The version that an answer is in, as far as it can be told from any input.
pub(crate) fn version_of(input: &[u8]) -> Version {
    let value: Option<Value> = serde_json::from_slice(input).ok();
    let text = value.as_ref().and_then(|value| value.get("cniVersion")?.as_str());
    text.and_then(Version::parse).unwrap_or(Version::NEWEST)
}

impl Config {
    /// Reads what a runtime writes to standard input.
    pub fn parse(input: &[u8]) -> Result<Self, Failure> {
        let undecodable = |why: String| Failure::new(DECODING, format!("network configuration: {why}"));
        let value: Value = serde_json::from_slice(input).map_err(|why| undecodable(why.to_string()))?;
        let Value::Object(fields) = value else {
            return Err(undecodable("it is no JSON object".to_owned()));
        };
        let version = text(&fields, "cniVersion")?;
        let version = Version::parse(version).ok_or_else(|| {
            let ours = Version::ALL.map(Version::as_str).join(", ");
            let shown = version.escape_debug();
            Failure::new(INCOMPATIBLE, format!("cniVersion `{shown}` is none of {ours}"))
        })?;
        let mut config = Self {
            version,
            name: network_name(text(&fields, "name")?)?,
            network: String::new(),
            interface: None,
            mtu: 0,
            default_route: None,
            socket: knit_kni::frame::DEFAULT_SOCKET.into(),
            timeout: TIMEOUT,
            asked: Capabilities::default(),
            prior: None,
            living: Vec::new(),
        };
        for (key, value) in &fields {
            config.take(key, value)?;
        }
        // What the runtime asks for this container goes before what the configuration says of all.
        if let Some(runtime) = fields.get("runtimeConfig").filter(|value| !value.is_null()) {
            config.asked.read_runtime(runtime)?;
        }
        Ok(config)
    }

    fn take(&mut self, key: &str, value: &Value) -> Result<(), Failure> {
        let wrong = |what: &str| Failure::config(key, format!("{value} is no {what}"));
        let string = || value.as_str().ok_or_else(|| wrong("text"));
        match key {
            // Read already, or the runtime's own business.
            "cniVersion" | "name" | "type" | "capabilities" | "runtimeConfig" => {}
            "network" => self.network = network_name(string()?)?,
            "interface" => {
                let name = environment::interface(key, string()?);
                self.interface = Some(name.map_err(|_| wrong("name of an interface"))?);
            }
            "mtu" => {
                let mtu = value.as_u64().and_then(|mtu| u32::try_from(mtu).ok());
                self.mtu = mtu.ok_or_else(|| wrong("MTU"))?;
            }
            "defaultRoute" => {
                self.default_route = Some(value.as_bool().ok_or_else(|| wrong("truth value"))?);
            }
            "socket" => {
                let path = string()?;
                if !path.starts_with('/') || path.contains('\0') {
                    return Err(wrong("absolute path"));
                }
                self.socket = path.into();
            }
            "timeoutSeconds" => {
                let seconds = value.as_u64().filter(|seconds| (1..=LONGEST_TIMEOUT).contains(seconds));
                self.timeout = Duration::from_secs(seconds.ok_or_else(|| wrong("time from 1 to 600"))?);
            }
            "dns" => self.asked.read_dns(key, value)?,
            "args" => self.asked.read_args(value)?,
            "prevResult" if value.is_null() => {}
            "prevResult" => self.prior = Some(Prior::read(value)?),
            "cni.dev/valid-attachments" | "cni.dev/attachments" => self.living = living(key, value)?,
            // The specification keeps this space for itself.
            key if key.starts_with("cni.dev/") => {}
            _ => {
                let shown = value.to_string();
                let short: String = shown.chars().take(200).collect();
                let message =
                    format!("network configuration: field `{}` with value {short}", key.escape_debug());
                return Err(Failure::new(UNSUPPORTED, format!("{message} is not supported")));
            }
        }
        Ok(())
    }
}

fn text<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<&'a str, Failure> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(Failure::config(key, format!("{other} is no text"))),
    }
}

/// A network's name: a letter or digit, then letters, digits, `_`, `.` and `-`.
fn network_name(name: &str) -> Result<String, Failure> {
    environment::container("name", name).map_err(|_| {
        let shown = name.escape_debug();
        Failure::config("name", format!("`{shown}` must be letters, digits, `_`, `.` and `-`"))
    })
}

fn living(key: &str, value: &Value) -> Result<Vec<(String, String)>, Failure> {
    let wrong = |value: &Value| Failure::config(key, format!("{value} is no list of attachments"));
    if value.is_null() {
        return Ok(Vec::new());
    }
    let all = value.as_array().ok_or_else(|| wrong(value))?;
    let one = |value: &Value| {
        let container = part(value, "containerID").and_then(Value::as_str).unwrap_or_default();
        let interface = part(value, "ifname").and_then(Value::as_str).unwrap_or_default();
        let container = environment::container(key, container).map_err(|_| wrong(value))?;
        let interface = environment::interface(key, interface).map_err(|_| wrong(value))?;
        Ok((container, interface))
    };
    all.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::CONFIGURATION;

    fn code(text: &str) -> u32 {
        Config::parse(text.as_bytes()).map(|_| 0).unwrap_or_else(|failure| failure.code)
    }

    #[test]
    fn input_that_is_none_has_the_code_of_the_specification() {
        for (text, expected) in [
            ("", DECODING),
            ("{\"cniVersion\": \"1.0.0\"", DECODING),
            ("[]", DECODING),
            ("{}", INCOMPATIBLE),
            (r#"{"cniVersion":"0.2.0","name":"n"}"#, INCOMPATIBLE),
            (r#"{"cniVersion":"9.9.9","name":"n"}"#, INCOMPATIBLE),
            (r#"{"cniVersion":1,"name":"n"}"#, CONFIGURATION),
            (r#"{"cniVersion":"1.0.0"}"#, CONFIGURATION),
            (r#"{"cniVersion":"1.0.0","name":"a/b"}"#, CONFIGURATION),
            (r#"{"cniVersion":"1.0.0","name":"n","mtu":"big"}"#, CONFIGURATION),
            (r#"{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local"}}"#, UNSUPPORTED),
            (r#"{"cniVersion":"1.0.0","name":"n","prevResult":[]}"#, DECODING),
            (r#"{"cniVersion":"1.0.0","name":"n","cni.dev/new":1}"#, 0),
            (r#"{"cniVersion":"1.1.0","name":"n","type":"knit-cni","network":"blue"}"#, 0),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
        let failure = Config::parse(br#"{"cniVersion":"1.0.0","name":"n","typo":42}"#).unwrap_err();
        assert!(failure.message.contains("typo") && failure.message.contains("42"), "{}", failure.message);
    }
}
