//! Runs chains of existing CNI plugins, as a container runtime would. Blocks the calling thread.

mod config;
mod plugin;
mod writable_sysctls;

use std::path::PathBuf;
use std::time::Duration;

use knit_engine::call::RangeRequest;
use knit_engine::plugin_chain::{ChainedInterface, CniCommand};
use knit_model::intent::RateIntent;
use knit_model::problem::{Problem, Reason};
use serde_json::{Value, json};

pub use config::CniNetwork;
use plugin::{Failure, Plugin};

/// The version of a configuration list without `cniVersion`.
const VERSION: &str = "0.4.0";

/// Runs the plugins: forward for an ADD, in reverse for a DEL. Returns the last result.
pub(crate) fn run(verb: CniCommand, chained: &ChainedInterface) -> Result<String, Problem> {
    let failed = |why: String| {
        let message = format!(
            "network {}: {} of interface {} of sandbox {}: {why}",
            chained.network,
            command(verb),
            chained.interface,
            chained.sandbox
        );
        Problem::new("interfaces[0].network", Reason::KernelError, message)
    };
    let list: Value = serde_json::from_str(&chained.chain.conflist)
        .map_err(|why| failed(format!("invalid configuration list: {why}")))?;
    let plugins = list.get("plugins").and_then(Value::as_array).cloned().unwrap_or_default();
    let version = list.get("cniVersion").and_then(Value::as_str).unwrap_or(VERSION).to_owned();
    let name = list.get("name").and_then(Value::as_str).unwrap_or(&chained.network).to_owned();
    let timeout = Duration::from_secs(chained.chain.timeout_seconds);
    let plugin = |config: &Value, before: Option<&Value>| -> Result<Option<Value>, Failure> {
        let kind = config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut config = config.clone();
        config["cniVersion"] = json!(version);
        config["name"] = json!(name);
        if let Some(requested) = runtime_config(&config, chained) {
            config["runtimeConfig"] = requested;
        }
        if let Some(before) = before {
            config["prevResult"] = before.clone();
        }
        Plugin { kind, dirs: &chained.chain.plugin_dirs, environment: environment(verb, chained), timeout }
            .run(&config)
    };
    match verb {
        CniCommand::Add => {
            let mut result: Option<Value> = None;
            for config in &plugins {
                result = plugin(config, result.as_ref()).map_err(|why| failed(why.to_string()))?.or(result);
            }
            Ok(result.unwrap_or_else(|| json!({ "cniVersion": version })).to_string())
        }
        CniCommand::Del => {
            let before = chained.result.as_deref().and_then(|text| serde_json::from_str(text).ok());
            // A failing plugin does not keep the others from cleaning up.
            let outcomes: Vec<_> =
                plugins.iter().rev().map(|config| plugin(config, before.as_ref())).collect();
            let errors: Vec<String> =
                outcomes.into_iter().filter_map(Result::err).map(|why| why.to_string()).collect();
            if errors.is_empty() { Ok(String::new()) } else { Err(failed(errors.join("; "))) }
        }
    }
}

/// A dry run executes no plugins, so their result is unknown.
pub(crate) fn unknown_in_dry_run() -> Problem {
    let message = "a dry run cannot predict the result of CNI plugins".to_owned();
    Problem::new("dry_run", Reason::InvalidValue, message)
}

fn command(verb: CniCommand) -> &'static str {
    match verb {
        CniCommand::Add => "ADD",
        CniCommand::Del => "DEL",
    }
}

fn environment(verb: CniCommand, chained: &ChainedInterface) -> Vec<(&'static str, String)> {
    let (namespace, pod, uid) = &chained.pod;
    let id = &chained.sandbox.0;
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={uid}"
    );
    // For a namespace that is gone, CNI_NETNS is empty: plugins still clean up what they hold outside of it.
    let netns_exists = verb == CniCommand::Add || PathBuf::from(&chained.netns).exists();
    vec![
        ("CNI_COMMAND", command(verb).to_owned()),
        ("CNI_CONTAINERID", id.clone()),
        ("CNI_NETNS", if netns_exists { chained.netns.clone() } else { String::new() }),
        ("CNI_IFNAME", chained.interface.to_string()),
        ("CNI_ARGS", args),
        ("CNI_PATH", chained.chain.plugin_dirs.join(":")),
    ]
}

/// The runtimeConfig for the capabilities that the plugin declares.
fn runtime_config(config: &Value, chained: &ChainedInterface) -> Option<Value> {
    let can =
        |what: &str| config.get("capabilities").and_then(|all| all.get(what)) == Some(&Value::Bool(true));
    let requested = &chained.request;
    let mut all = serde_json::Map::new();
    if can("portMappings") && !requested.ports.is_empty() {
        let ports: Vec<Value> = requested
            .ports
            .iter()
            .map(|port| {
                json!({
                    "hostPort": port.host_port, "containerPort": port.container_port, "protocol": port.protocol,
                    "hostIP": port.host_ip.map(|address| address.to_string()).unwrap_or_default(),
                })
            })
            .collect();
        all.insert("portMappings".to_owned(), json!(ports));
    }
    if can("bandwidth") && (requested.limits.ingress.is_some() || requested.limits.egress.is_some()) {
        let rate = |limit: Option<RateIntent>| limit.map_or(0, |limit| limit.bits);
        // The reference plugin's burst is in bits and must not be 0 with a rate.
        let burst = |limit| rate(limit).min(u64::from(u32::MAX));
        let (ingress, egress) = (requested.limits.ingress, requested.limits.egress);
        let limits = json!({
            "ingressRate": rate(ingress), "ingressBurst": burst(ingress),
            "egressRate": rate(egress), "egressBurst": burst(egress),
        });
        all.insert("bandwidth".to_owned(), limits);
    }
    if can("ips") && !requested.addresses.is_empty() {
        all.insert("ips".to_owned(), json!(requested.addresses));
    }
    if can("ipRanges") && !requested.sets.is_empty() {
        let sets = requested.sets.iter().map(|set| set.iter().map(range).collect::<Value>());
        all.insert("ipRanges".to_owned(), sets.collect());
    }
    if let Some(device) = requested.device.as_ref().filter(|_| can("deviceID")) {
        all.insert("deviceID".to_owned(), json!(device.id));
    }
    if let Some(mac) = requested.attrs.mac.filter(|_| can("mac")) {
        all.insert("mac".to_owned(), json!(mac.to_string()));
    }
    (!all.is_empty()).then_some(Value::Object(all))
}

/// A range in the syntax of host-local.
fn range(range_request: &RangeRequest) -> Value {
    let mut range = json!({ "subnet": range_request.subnet });
    for (key, address) in [
        ("rangeStart", range_request.first),
        ("rangeEnd", range_request.last),
        ("gateway", range_request.gateway),
    ] {
        if let Some(address) = address {
            range[key] = json!(address);
        }
    }
    range
}
