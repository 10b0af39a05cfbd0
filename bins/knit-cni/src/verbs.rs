//! The six commands.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use knit_kni::{frame, v1};
use prost::Message;
use serde_json::json;

use crate::Outcome;
use crate::config::{self, Config};
use crate::environment::{Command, Environment};
use crate::failure::{
    DECODING, Failure, INCOMPATIBLE, INPUT_OUTPUT, INTERNAL, LIMITED, NOT_AS_MADE, PRESENT, TRY_AGAIN,
    UNAVAILABLE, UNKNOWN_CONTAINER,
};
use crate::version::Version;
use crate::{request, result};

/// A runtime asks for STATUS often, and waits for it with everything else.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// The way to the agent.
pub trait Ask {
    /// Asks, and waits so long at most.
    fn ask(
        &mut self,
        socket: &Path,
        timeout: Duration,
        call: v1::FramedCall,
    ) -> Result<v1::FramedReply, Failure>;
}

/// Does what a runtime asks for. `began` is when, on the machine's clock since boot.
pub fn run(
    variable: impl Fn(&str) -> Option<OsString>,
    input: Result<Vec<u8>, String>,
    began: u64,
    agent: &mut dyn Ask,
) -> Outcome {
    let version = input.as_ref().map_or(Version::NEWEST, |input| config::version_of(input));
    let mut words = Vec::new();
    let done = carry_out(variable, input, began, agent, &mut words);
    match done {
        Ok(output) => Outcome { output, words, success: true },
        Err(failure) => Outcome { output: failure.to_json(version), words, success: false },
    }
}

fn carry_out(
    variable: impl Fn(&str) -> Option<OsString>,
    input: Result<Vec<u8>, String>,
    began: u64,
    agent: &mut dyn Ask,
    words: &mut Vec<String>,
) -> Result<String, Failure> {
    let environment = Environment::read(variable)?;
    let input = input.map_err(|why| Failure::new(INPUT_OUTPUT, format!("standard input: {why}")))?;
    if environment.command == Command::Version {
        return versions(&input);
    }
    let config = Config::parse(&input)?;
    let since = match environment.command {
        Command::Check => Version::V0_4_0,
        Command::Gc | Command::Status => Version::V1_1_0,
        _ => Version::V0_3_0,
    };
    if config.version < since {
        let message = format!(
            "cniVersion {} has no such command: it came with {}",
            config.version.as_str(),
            since.as_str()
        );
        return Err(Failure::new(INCOMPATIBLE, message));
    }
    let call = Call { environment, config, began };
    match call.environment.command {
        Command::Add => call.add(agent, words),
        Command::Del => call.del(agent),
        Command::Check => call.check(agent, words),
        Command::Gc => call.gc(agent, words),
        Command::Status | Command::Version => call.status(agent),
    }
}

/// Which versions are spoken. Runtimes say at least their own on standard input.
fn versions(input: &[u8]) -> Result<String, Failure> {
    let blank = input.iter().all(u8::is_ascii_whitespace);
    let asked: serde_json::Value = if blank {
        json!({})
    } else {
        let wrong = |why| Failure::new(DECODING, format!("standard input: {why}"));
        serde_json::from_slice(input).map_err(wrong)?
    };
    let asked = asked.get("cniVersion").and_then(serde_json::Value::as_str);
    let asked = asked.unwrap_or(Version::NEWEST.as_str());
    Ok(json!({ "cniVersion": asked, "supportedVersions": Version::ALL.map(Version::as_str) }).to_string())
}

struct Call {
    environment: Environment,
    config: Config,
    began: u64,
}

impl Call {
    fn add(self, agent: &mut dyn Ask, words: &mut Vec<String>) -> Result<String, Failure> {
        let mut request = request::attach(&self.environment, &self.config, words)?;
        request.began = self.began;
        let name = request::interface(&self.environment, &self.config);
        if self.config.prior.as_ref().is_some_and(|prior| prior.has(&name)) {
            let message = format!(
                "prevResult: a plugin before this one made {name}: say in `interface` what Knit's is called"
            );
            return Err(Failure::new(PRESENT, message));
        }
        let answer: v1::AttachResponse = self.ask(agent, "Attach", &request)?;
        words.extend(answer.warnings);
        let pod = answer.pod.unwrap_or_default();
        let interface = interface_of(&pod, &name).ok_or_else(|| {
            Failure::new(INTERNAL, format!("the agent attached {name}, and does not know it"))
        })?;
        let dns =
            result::dns(pod.dns.as_ref().unwrap_or(&v1::DnsConfig::default()), &self.config.asked.domain);
        let netns = &self.environment.netns;
        Ok(result::attached(interface, netns, dns, self.config.version, self.config.prior))
    }

    /// Whatever is not there is detached already.
    fn del(self, agent: &mut dyn Ask) -> Result<String, Failure> {
        let request = request::detach(&self.environment, &self.config, self.began);
        let _: v1::DetachResponse = self.ask(agent, "Detach", &request)?;
        Ok(String::new())
    }

    /// What an ADD would still have to do is what is missing. It is rehearsed rather than asked for as `CheckPod`, because
    /// that way the agent also compares the namespace and the configuration with those of the ADD.
    fn check(self, agent: &mut dyn Ask, words: &mut Vec<String>) -> Result<String, Failure> {
        let Some(prior) = &self.config.prior else {
            return Err(Failure::config("prevResult", "a CHECK needs the result of the ADD"));
        };
        let mut request = request::attach(&self.environment, &self.config, words)?;
        (request.fail_if_present, request.dry_run) = (false, true);
        let name = request::interface(&self.environment, &self.config);
        let container = &self.environment.container;
        let answer: v1::AttachResponse = self.ask(agent, "Attach", &request)?;
        let Some(pod) = answer.pod else {
            return Err(Failure::new(UNKNOWN_CONTAINER, format!("container {container} is not known")));
        };
        let Some(interface) = interface_of(&pod, &name) else {
            let message = format!("container {container}: interface {name} is not attached");
            return Err(Failure::new(UNKNOWN_CONTAINER, message));
        };
        let plan = answer.plan.unwrap_or_default();
        if plan.steps > 0 {
            let lines = plan.text.lines().map(str::trim);
            let steps: Vec<&str> = lines.filter(|line| line.starts_with(['+', '~', '-'])).collect();
            let message = format!(
                "container {container}: interface {name} is not as it was made; it needs: {}",
                steps.join("; ")
            );
            return Err(Failure::new(NOT_AS_MADE, message));
        }
        let is_there = |wanted: &&str| {
            let mut all = interface.addresses.iter();
            all.any(|one| format!("{}/{}", one.address, one.prefix_length) == **wanted)
        };
        let lost = prior.addresses(&name).into_iter().find(|wanted| !is_there(wanted));
        match lost {
            None => Ok(String::new()),
            Some(lost) => {
                let message =
                    format!("container {container}: interface {name} has no lease of {lost} any more");
                Err(Failure::new(NOT_AS_MADE, message))
            }
        }
    }

    fn gc(self, agent: &mut dyn Ask, words: &mut Vec<String>) -> Result<String, Failure> {
        let answer: v1::CollectGarbageResponse =
            self.ask(agent, "CollectGarbage", &request::collect(&self.config))?;
        for gone in answer.collected {
            words.push(format!("collected {} of container {}", gone.interfaces.join(", "), gone.sandbox_id));
        }
        Ok(String::new())
    }

    /// Whether pods can be added; an agent that is away is a node that cannot. Addresses that are used up are not said
    /// here: a runtime that is told so has the whole node be not ready, and Kubernetes evicts the pods that have them.
    fn status(mut self, agent: &mut dyn Ask) -> Result<String, Failure> {
        self.config.timeout = self.config.timeout.min(STATUS_TIMEOUT);
        let asked = self.ask(agent, "GetReadiness", &v1::GetReadinessRequest::default());
        let answer: v1::GetReadinessResponse = asked.map_err(|failure| match failure.code {
            TRY_AGAIN => Failure { code: UNAVAILABLE, ..failure },
            _ => failure,
        })?;
        let (node, pods) = (answer.node.unwrap_or_default(), answer.new_pods.unwrap_or_default());
        let bad = pods.conditions.iter().filter(|condition| {
            !condition.ok && condition.reason != knit_kni::Reason::AddressesExhausted.as_str()
        });
        let why: Vec<String> =
            bad.map(|condition| format!("{}: {}", condition.reason, condition.message)).collect();
        if pods.ready || (why.is_empty() && !pods.conditions.is_empty()) {
            return Ok(String::new());
        }
        let code = if node.ready { UNAVAILABLE } else { LIMITED };
        Err(Failure::new(code, format!("new pods cannot come: {}", why.join("; "))))
    }

    fn ask<A: Message + Default>(
        &self,
        agent: &mut dyn Ask,
        method: &str,
        request: &impl Message,
    ) -> Result<A, Failure> {
        let timeout = self.config.timeout;
        let deadline = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let reply = agent.ask(&self.config.socket, timeout, frame::call(method, request, deadline))?;
        if reply.code != 0 {
            return Err(Failure::refused(reply));
        }
        A::decode(reply.response.as_slice())
            .map_err(|why| Failure::new(INTERNAL, format!("the agent's answer cannot be read: {why}")))
    }
}

fn interface_of<'a>(pod: &'a v1::Pod, name: &str) -> Option<&'a v1::Interface> {
    pod.interfaces.iter().find(|interface| interface.name == name)
}
