//! A container runtime that asks through the CNI shim, as a library: the same code without a process for each call.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use knit_cni::{Outcome, Socket};
use serde_json::{Value, json};

use super::agent::Machine;

/// One call, as a runtime would make it. Change what a test is about.
#[derive(Clone, Debug)]
pub struct Call {
    pub command: &'static str,
    pub container: String,
    pub netns: String,
    pub interface: String,
    pub args: String,
    pub config: Value,
    /// When it began, on the machine's clock since boot.
    pub began: u64,
}

impl Call {
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
            began: knit_cni::since_boot(),
        }
    }

    /// With this in the configuration.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.config[key] = value.into();
        self
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome_of(self.config.to_string().into_bytes())
    }

    /// What comes of it with this on standard input. A check is refused while something is repaired: then it is made again.
    pub fn outcome_of(&self, input: Vec<u8>) -> Outcome {
        let is_under_way = |outcome: &Outcome| {
            self.command == "CHECK" && outcome.output.contains("a change is under way: ask again")
        };
        let mut outcome = self.outcome_once(input.clone());
        for _ in 0..250 {
            if !is_under_way(&outcome) {
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
        knit_cni::run(variable, Ok(input), self.began, &mut Socket)
    }

    /// What it answers; it has to work.
    pub fn done(&self) -> Value {
        let outcome = self.outcome();
        assert!(outcome.success, "{} of {}: {}", self.command, self.container, outcome.output);
        if outcome.output.is_empty() { Value::Null } else { serde_json::from_str(&outcome.output).unwrap() }
    }

    /// The code and the sentence that it fails with; it has to fail.
    pub fn failed(&self) -> (u64, String) {
        failure(&self.outcome())
    }
}

pub fn failure(outcome: &Outcome) -> (u64, String) {
    assert!(!outcome.success, "it worked: {}", outcome.output);
    let error: Value = serde_json::from_str(&outcome.output).unwrap();
    (error["code"].as_u64().unwrap(), error["msg"].as_str().unwrap().to_owned())
}

/// The addresses of a result, without their prefix lengths.
pub fn addresses(result: &Value) -> Vec<String> {
    let all = result["ips"].as_array().unwrap().iter();
    all.map(|one| one["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}
