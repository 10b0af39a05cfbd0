//! Runs chains of existing CNI plugins, as a container runtime would. Called on a thread that may wait.

mod config;
mod plugin;

use std::path::PathBuf;
use std::time::Duration;

use knit_engine::call::RangeWish;
use knit_engine::chain::{Chained, Verb};
use knit_model::intent::RateIntent;
use knit_model::problem::{Problem, Reason};
use serde_json::{Value, json};

pub use config::CniNetwork;
use plugin::{Failure, Plugin};

/// The version of a configuration list that names none.
const VERSION: &str = "0.4.0";

/// Runs the plugins: the first one first for an ADD, the last one first for a DEL. Answers with the last result.
pub(crate) fn run(verb: Verb, chained: &Chained) -> Result<String, Problem> {
    let failed = |why: String| {
        let message = format!(
            "network {}: {} of interface {} of sandbox {}: {why}",
            chained.network,
            word(verb),
            chained.interface,
            chained.sandbox
        );
        Problem { field: "interfaces[0].network".to_owned(), reason: Reason::KernelRefused, message }
    };
    let list: Value = serde_json::from_str(&chained.chain.conflist)
        .map_err(|why| failed(format!("its configuration list cannot be read: {why}")))?;
    let plugins = list.get("plugins").and_then(Value::as_array).cloned().unwrap_or_default();
    let version = list.get("cniVersion").and_then(Value::as_str).unwrap_or(VERSION).to_owned();
    let name = list.get("name").and_then(Value::as_str).unwrap_or(&chained.network).to_owned();
    let timeout = Duration::from_secs(chained.chain.timeout_seconds);
    let plugin = |config: &Value, before: Option<&Value>| -> Result<Option<Value>, Failure> {
        let kind = config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut config = config.clone();
        config["cniVersion"] = json!(version);
        config["name"] = json!(name);
        if let Some(asked) = runtime_config(&config, chained) {
            config["runtimeConfig"] = asked;
        }
        if let Some(before) = before {
            config["prevResult"] = before.clone();
        }
        Plugin { kind, dirs: &chained.chain.plugin_dirs, environment: environment(verb, chained), timeout }
            .run(&config)
    };
    match verb {
        Verb::Add => {
            let mut result: Option<Value> = None;
            for config in &plugins {
                result = plugin(config, result.as_ref()).map_err(|why| failed(why.to_string()))?.or(result);
            }
            Ok(result.unwrap_or_else(|| json!({ "cniVersion": version })).to_string())
        }
        Verb::Del => {
            let before = chained.result.as_deref().and_then(|text| serde_json::from_str(text).ok());
            // One that fails does not keep the others from cleaning up.
            let outcomes: Vec<_> =
                plugins.iter().rev().map(|config| plugin(config, before.as_ref())).collect();
            let wrong: Vec<String> =
                outcomes.into_iter().filter_map(Result::err).map(|why| why.to_string()).collect();
            if wrong.is_empty() { Ok(String::new()) } else { Err(failed(wrong.join("; "))) }
        }
    }
}

/// A rehearsal runs no plugins, so it does not know what they would do.
pub(crate) fn not_rehearsed() -> Problem {
    let message = "what CNI plugins would do is known only when they do it".to_owned();
    Problem { field: "dry_run".to_owned(), reason: Reason::InvalidValue, message }
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Add => "ADD",
        Verb::Del => "DEL",
    }
}

fn environment(verb: Verb, chained: &Chained) -> Vec<(&'static str, String)> {
    let (namespace, pod, uid) = &chained.pod;
    let id = &chained.sandbox.0;
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={uid}"
    );
    // A namespace that is gone is told by none: plugins clean up what they have outside of it.
    let there = verb == Verb::Add || PathBuf::from(&chained.netns).exists();
    vec![
        ("CNI_COMMAND", word(verb).to_owned()),
        ("CNI_CONTAINERID", id.clone()),
        ("CNI_NETNS", if there { chained.netns.clone() } else { String::new() }),
        ("CNI_IFNAME", chained.interface.to_string()),
        ("CNI_ARGS", args),
        ("CNI_PATH", chained.chain.plugin_dirs.join(":")),
    ]
}

/// What was asked for, as far as the plugin says that it can do it.
fn runtime_config(config: &Value, chained: &Chained) -> Option<Value> {
    let can =
        |what: &str| config.get("capabilities").and_then(|all| all.get(what)) == Some(&Value::Bool(true));
    let asked = &chained.asked;
    let mut all = serde_json::Map::new();
    if can("portMappings") && !asked.ports.is_empty() {
        let ports: Vec<Value> = asked
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
    if can("bandwidth") && (asked.limits.ingress.is_some() || asked.limits.egress.is_some()) {
        let rate = |limit: Option<RateIntent>| limit.map_or(0, |limit| limit.bits);
        // The burst of the reference plugin is in bits, and must not be 0 beside a rate.
        let burst = |limit| rate(limit).min(u64::from(u32::MAX));
        let (ingress, egress) = (asked.limits.ingress, asked.limits.egress);
        let limits = json!({
            "ingressRate": rate(ingress), "ingressBurst": burst(ingress),
            "egressRate": rate(egress), "egressBurst": burst(egress),
        });
        all.insert("bandwidth".to_owned(), limits);
    }
    if can("ips") && !asked.addresses.is_empty() {
        all.insert("ips".to_owned(), json!(asked.addresses));
    }
    if can("ipRanges") && !asked.sets.is_empty() {
        let sets = asked.sets.iter().map(|set| set.iter().map(range).collect::<Value>());
        all.insert("ipRanges".to_owned(), sets.collect());
    }
    if let Some(device) = asked.device.as_ref().filter(|_| can("deviceID")) {
        all.insert("deviceID".to_owned(), json!(device.id));
    }
    if let Some(mac) = asked.attrs.mac.filter(|_| can("mac")) {
        all.insert("mac".to_owned(), json!(mac.to_string()));
    }
    (!all.is_empty()).then_some(Value::Object(all))
}

/// A range as plugins read it.
fn range(wish: &RangeWish) -> Value {
    let mut range = json!({ "subnet": wish.subnet });
    for (key, address) in [("rangeStart", wish.first), ("rangeEnd", wish.last), ("gateway", wish.gateway)] {
        if let Some(address) = address {
            range[key] = json!(address);
        }
    }
    range
}
