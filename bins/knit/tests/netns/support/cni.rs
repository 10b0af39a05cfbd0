//! A container runtime that calls the CNI plugin as a library, without a process for each call.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use knit_cni::{AgentSocket, Outcome};
use serde_json::{Value, json};

use super::agent::Machine;

/// A CNI command of a container runtime.
#[derive(Clone, Debug)]
pub struct CniCall {
    pub command: &'static str,
    pub container: String,
    pub netns: String,
    pub interface: String,
    pub args: String,
    pub config: Value,
    /// The start time since boot.
    pub started_at: u64,
}

impl CniCall {
    pub fn new(machine: &Machine, command: &'static str, container: &str, netns: &str) -> Self {
        Self::on(machine.path("cni.sock"), command, container, netns)
    }

    pub fn on(socket: PathBuf, command: &'static str, container: &str, netns: &str) -> Self {
        Self {
            command,
            container: container.to_owned(),
            netns: netns.to_owned(),
            interface: "eth0".to_owned(),
            args: String::new(),
            config: json!({
                "cniVersion": "1.1.0", "name": "test", "type": "knit-cni",
                "socket": socket, "timeoutSeconds": 20,
            }),
            started_at: knit_cni::boot_time_nanos(),
        }
    }

    /// Sets a field of the network configuration.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config[key] = value.into();
        self
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome_of(self.config.to_string().into_bytes())
    }

    /// The outcome with this standard input. A CHECK during a repair fails as busy and is repeated.
    pub fn outcome_of(&self, input: Vec<u8>) -> Outcome {
        let is_busy = |outcome: &Outcome| self.command == "CHECK" && outcome.output.contains("reason Busy");
        let mut outcome = self.outcome_once(input.clone());
        for _ in 0..250 {
            if !is_busy(&outcome) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            outcome = self.outcome_once(input.clone());
        }
        outcome
    }

    fn outcome_once(&self, input: Vec<u8>) -> Outcome {
        let variable = |name: &str| {
            let value = match name {
                "CNI_COMMAND" => self.command,
                "CNI_CONTAINERID" => &self.container,
                "CNI_NETNS" => &self.netns,
                "CNI_IFNAME" => &self.interface,
                "CNI_ARGS" => &self.args,
                _ => return None,
            };
            Some(OsString::from(value))
        };
        knit_cni::run(variable, Ok(input), self.started_at, &mut AgentSocket)
    }

    /// The result; panics on an error.
    pub fn succeeded(&self) -> Value {
        let outcome = self.outcome();
        assert!(outcome.success, "{} of {}: {}", self.command, self.container, outcome.output);
        if outcome.output.is_empty() { Value::Null } else { serde_json::from_str(&outcome.output).unwrap() }
    }

    /// The error code and message; panics on success.
    pub fn failed(&self) -> (u64, String) {
        error_of(&self.outcome())
    }
}

pub fn error_of(outcome: &Outcome) -> (u64, String) {
    assert!(!outcome.success, "unexpected success: {}", outcome.output);
    let error: Value = serde_json::from_str(&outcome.output).unwrap();
    (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
}

/// The addresses of a result, without their prefix lengths.
pub fn addresses(result: &Value) -> Vec<String> {
    let all = result["ips"].as_array().unwrap().iter();
    all.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}
