//! The CNI commands.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use knit_kni::{frame, v1};
use prost::Message;
use serde_json::json;

use crate::Outcome;
use crate::config::{self, Config};
use crate::environment::{Command, Environment};
use crate::error::{
    ALREADY_ATTACHED, CHECK_FAILED, CniError, DECODING_FAILURE, INCOMPATIBLE_VERSION, INTERNAL, IO_FAILURE,
    LIMITED_CONNECTIVITY, PLUGIN_NOT_AVAILABLE, TRY_AGAIN_LATER, UNKNOWN_CONTAINER,
};
use crate::version::Version;
use crate::{request, result};

/// STATUS has a shorter timeout: runtimes call it often and block on it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// While the agent is unavailable or starts, STATUS reports the last answer for this long: the data path works without the
/// agent, and Kubernetes would remove the pods of a NotReady node from Services, and later evict them.
const STATUS_GRACE: Duration = Duration::from_secs(600);

/// Sends calls to the agent.
pub trait AgentTransport {
    /// Sends a call and waits for the reply.
    fn call(
        &mut self,
        socket: &Path,
        timeout: Duration,
        call: v1::FramedCall,
    ) -> Result<v1::FramedReply, CniError>;

    /// When the agent on this socket was last known to accept new pods, as time since boot in nanoseconds.
    fn last_ready(&mut self, _socket: &Path) -> Option<u64> {
        None
    }

    /// Remembers when the agent accepted new pods.
    fn set_last_ready(&mut self, _socket: &Path, _at: u64) {}
}

/// Runs a CNI command. `started_at` is the time since boot at its start.
pub fn run(
    variable: impl Fn(&str) -> Option<OsString>,
    input: Result<Vec<u8>, String>,
    started_at: u64,
    agent: &mut dyn AgentTransport,
) -> Outcome {
    let version = input.as_ref().map_or(Version::NEWEST, |input| config::version_of(input));
    let mut warnings = Vec::new();
    match execute(variable, input, started_at, agent, &mut warnings) {
        Ok(output) => Outcome { output, warnings, success: true },
        Err(error) => Outcome { output: error.to_json(version), warnings, success: false },
    }
}

fn execute(
    variable: impl Fn(&str) -> Option<OsString>,
    input: Result<Vec<u8>, String>,
    started_at: u64,
    agent: &mut dyn AgentTransport,
    warnings: &mut Vec<String>,
) -> Result<String, CniError> {
    let environment = Environment::read(variable)?;
    let input = input.map_err(|error| CniError::new(IO_FAILURE, format!("standard input: {error}")))?;
    if environment.command == Command::Version {
        return versions(&input);
    }
    let config = Config::parse(&input)?;
    let minimum = match environment.command {
        Command::Check => Version::V0_4_0,
        Command::Gc | Command::Status => Version::V1_1_0,
        _ => Version::V0_3_0,
    };
    if config.version < minimum {
        let message = format!(
            "cniVersion {} does not have this command: it needs {}",
            config.version.as_str(),
            minimum.as_str()
        );
        return Err(CniError::new(INCOMPATIBLE_VERSION, message));
    }
    let context = CommandContext { environment, config, started_at };
    match context.environment.command {
        Command::Add => context.add(agent, warnings),
        Command::Del => context.del(agent),
        Command::Check => context.check(agent, warnings),
        Command::Gc => context.gc(agent, warnings),
        Command::Status | Command::Version => context.status(agent, warnings),
    }
}

/// The result of VERSION: the version of the request and all supported versions.
fn versions(input: &[u8]) -> Result<String, CniError> {
    let blank = input.iter().all(u8::is_ascii_whitespace);
    let input: serde_json::Value = if blank {
        json!({})
    } else {
        let invalid = |error| CniError::new(DECODING_FAILURE, format!("standard input: {error}"));
        serde_json::from_slice(input).map_err(invalid)?
    };
    let version = input.get("cniVersion").and_then(serde_json::Value::as_str);
    let version = version.unwrap_or(Version::NEWEST.as_str());
    Ok(json!({ "cniVersion": version, "supportedVersions": Version::ALL.map(Version::as_str) }).to_string())
}

struct CommandContext {
    environment: Environment,
    config: Config,
    started_at: u64,
}

impl CommandContext {
    fn add(self, agent: &mut dyn AgentTransport, warnings: &mut Vec<String>) -> Result<String, CniError> {
        let mut request = request::attach(&self.environment, &self.config, warnings)?;
        request.began = self.started_at;
        let name = request::interface(&self.environment, &self.config);
        if self.config.prev_result.as_ref().is_some_and(|prev_result| prev_result.has(&name)) {
            let message =
                format!("prevResult: interface {name} exists already: set another name in `interface`");
            return Err(CniError::new(ALREADY_ATTACHED, message));
        }
        let response: v1::AttachResponse = self.call(agent, "Attach", &request)?;
        warnings.extend(response.warnings);
        let pod = response.pod.unwrap_or_default();
        let interface = interface_of(&pod, &name).ok_or_else(|| {
            CniError::new(INTERNAL, format!("the response of the agent does not contain interface {name}"))
        })?;
        let dns = result::dns(
            pod.dns.as_ref().unwrap_or(&v1::DnsConfig::default()),
            &self.config.capabilities.domain,
        );
        let netns = &self.environment.netns;
        Ok(result::add_result(interface, netns, dns, self.config.version, self.config.prev_result))
    }

    /// Succeeds also if the interface or the container does not exist.
    fn del(self, agent: &mut dyn AgentTransport) -> Result<String, CniError> {
        let request = request::detach(&self.environment, &self.config, self.started_at);
        let _: v1::DetachResponse = self.call(agent, "Detach", &request)?;
        Ok(String::new())
    }

    /// A dry run of the ADD: its plan must be empty. Unlike `CheckPod` this also compares the network namespace and the
    /// configuration with those of the ADD.
    fn check(self, agent: &mut dyn AgentTransport, warnings: &mut Vec<String>) -> Result<String, CniError> {
        let Some(prev_result) = &self.config.prev_result else {
            return Err(CniError::invalid_config("prevResult", "CHECK requires the result of the ADD"));
        };
        let mut request = request::attach(&self.environment, &self.config, warnings)?;
        (request.fail_if_present, request.dry_run) = (false, true);
        let name = request::interface(&self.environment, &self.config);
        let container = &self.environment.container;
        let response: v1::AttachResponse = self.call(agent, "Attach", &request)?;
        let Some(pod) = response.pod else {
            return Err(CniError::new(UNKNOWN_CONTAINER, format!("unknown container {container}")));
        };
        let Some(interface) = interface_of(&pod, &name) else {
            let message = format!("container {container}: interface {name} is not attached");
            return Err(CniError::new(UNKNOWN_CONTAINER, message));
        };
        let plan = response.plan.unwrap_or_default();
        if plan.steps > 0 {
            let message = format!(
                "container {container}: interface {name} has changed since its ADD; required steps: {}",
                plan.step_texts.join("; ")
            );
            return Err(CniError::new(CHECK_FAILED, message));
        }
        let is_leased = |expected: &&str| {
            let expected =
                expected.split_once('/').and_then(|(address, length)| parse(address, length.parse().ok()?));
            let mut all = interface.addresses.iter();
            expected.is_some() && all.any(|found| parse(&found.address, found.prefix_length) == expected)
        };
        let missing = prev_result.addresses(&name).into_iter().find(|address| !is_leased(address));
        match missing {
            None => Ok(String::new()),
            Some(address) => {
                let message =
                    format!("container {container}: interface {name} has no lease of {address} any more");
                Err(CniError::new(CHECK_FAILED, message))
            }
        }
    }

    fn gc(self, agent: &mut dyn AgentTransport, warnings: &mut Vec<String>) -> Result<String, CniError> {
        let response: v1::CollectGarbageResponse =
            self.call(agent, "CollectGarbage", &request::collect_garbage(&self.config))?;
        for collected in response.collected {
            warnings.push(format!(
                "collected {} of container {}",
                collected.interfaces.join(", "),
                collected.sandbox_id
            ));
        }
        Ok(String::new())
    }

    /// Fails if ADD cannot succeed, also if the agent is unreachable for longer than an upgrade takes.
    fn status(
        mut self,
        agent: &mut dyn AgentTransport,
        warnings: &mut Vec<String>,
    ) -> Result<String, CniError> {
        self.config.timeout = self.config.timeout.min(STATUS_TIMEOUT);
        let (socket, now) = (&self.config.socket, self.started_at);
        let (error, is_temporary) = match self.readiness(agent) {
            Ok(()) => {
                agent.set_last_ready(socket, now);
                return Ok(String::new());
            }
            Err(failed) => failed,
        };
        let since = agent.last_ready(socket).filter(|_| is_temporary);
        let since = since.and_then(|at| now.checked_sub(at)).map(Duration::from_nanos);
        match since.filter(|since| *since < STATUS_GRACE) {
            Some(since) => {
                warnings.push(format!("{}; the node was ready {} s ago", error.message, since.as_secs()));
                Ok(String::new())
            }
            None => Err(error),
        }
    }

    /// Whether the node accepts new pods. Exhausted address ranges are not an error: the runtime would mark the node
    /// NotReady. Otherwise the error, and whether it is that of an agent that is unavailable or starts.
    fn readiness(&self, agent: &mut dyn AgentTransport) -> Result<(), (CniError, bool)> {
        let response = self.call(agent, "GetReadiness", &v1::GetReadinessRequest::default());
        let response: v1::GetReadinessResponse = response.map_err(|error| match error.code {
            TRY_AGAIN_LATER => (CniError { code: PLUGIN_NOT_AVAILABLE, ..error }, true),
            _ => (error, false),
        })?;
        let (node, pods) = (response.node.unwrap_or_default(), response.new_pods.unwrap_or_default());
        let failed = pods.conditions.iter().filter(|condition| {
            !condition.ok && condition.reason != knit_kni::Reason::AddressesExhausted.as_str()
        });
        let failed: Vec<_> = failed.collect();
        if pods.ready || (failed.is_empty() && !pods.conditions.is_empty()) {
            return Ok(());
        }
        let is_starting =
            failed.iter().all(|condition| condition.reason == knit_kni::Reason::NotReady.as_str());
        let reasons: Vec<String> =
            failed.iter().map(|condition| format!("{}: {}", condition.reason, condition.message)).collect();
        let code = if node.ready { PLUGIN_NOT_AVAILABLE } else { LIMITED_CONNECTIVITY };
        let message = format!("the node does not accept new pods: {}", reasons.join("; "));
        Err((CniError::new(code, message), is_starting && !failed.is_empty()))
    }

    fn call<A: Message + Default>(
        &self,
        agent: &mut dyn AgentTransport,
        method: &str,
        request: &impl Message,
    ) -> Result<A, CniError> {
        let timeout = self.config.timeout;
        let deadline = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let reply = agent.call(&self.config.socket, timeout, frame::call(method, request, deadline))?;
        if reply.code != 0 {
            return Err(CniError::from_reply(reply));
        }
        A::decode(reply.response.as_slice()).map_err(|error| {
            CniError::new(INTERNAL, format!("cannot decode the response of the agent: {error}"))
        })
    }
}

/// An address with its prefix length.
fn parse(address: &str, prefix_length: u32) -> Option<(IpAddr, u32)> {
    Some((address.parse().ok()?, prefix_length))
}

fn interface_of<'a>(pod: &'a v1::Pod, name: &str) -> Option<&'a v1::Interface> {
    pod.interfaces.iter().find(|interface| interface.name == name)
}
