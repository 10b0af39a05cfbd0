//! Definitions that no kind of Knit's is like: their plugins are run, as Multus would have them run.

use knit_model::intent::{IntentSpec, PluginChainIntent, Selector};
use knit_model::problem::Reason;
use serde_json::{Map, Value, json};

use super::config::{Config, Plugin};
use super::{Entry, Refusal};

/// Which plugins may be run for definitions. They run as root on the node, with whatever the definition says, so this is the node's
/// administrator's to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plugins {
    /// Their types.
    pub types: Vec<String>,
    /// Where they are looked for.
    pub dirs: Vec<String>,
    /// How long one may take.
    pub timeout_seconds: u64,
}

impl Entry<'_> {
    /// Has the plugins of a definition run, with what the pod asks for where they say that they can do it.
    pub(super) fn chain(&self, config: &Config, plugins: &Plugins) -> Result<IntentSpec, Refusal> {
        for plugin in &config.plugins {
            for kind in [plugin.kind(), plugin.ipam()].into_iter().filter(|kind| !kind.is_empty()) {
                if !plugins.types.iter().any(|open| open == kind) {
                    let message = format!(
                        "its plugin {kind} is none of Knit's kinds, and the agent's networkAttachments.plugins does not name it"
                    );
                    return Err((Reason::NotAllowed, message));
                }
            }
        }
        let list = config.plugins.iter().map(|plugin| self.told(plugin)).collect();
        Ok(IntentSpec::PluginChain(Box::new(PluginChainIntent {
            pods: Selector::pod(self.pod.uid.as_str()),
            name: self.interface.clone(),
            network: self.selection.title(),
            conflist: config.list(list),
            plugin_dirs: plugins.dirs.clone(),
            timeout_seconds: plugins.timeout_seconds,
        })))
    }

    /// A plugin's configuration, with what the pod asks for.
    fn told(&self, plugin: &Plugin) -> Value {
        let selection = self.selection;
        let can = |what: &str| {
            plugin.0.get("capabilities").and_then(|all| all.get(what)) == Some(&Value::Bool(true))
        };
        let mut runtime = Map::new();
        let mut tell = |what: &str, value: Option<Value>| {
            runtime.extend(value.filter(|_| can(what)).map(|value| (what.to_owned(), value)));
        };
        tell("ips", (!selection.ips.is_empty()).then(|| json!(selection.ips)));
        tell("mac", selection.mac.as_ref().map(|mac| json!(mac)));
        tell("portMappings", (!selection.port_mappings.is_empty()).then(|| json!(selection.port_mappings)));
        tell("infinibandGUID", selection.infiniband_guid.as_ref().map(|guid| json!(guid)));
        tell(
            "bandwidth",
            selection.bandwidth.map(|limits| {
                json!({
                    "ingressRate": limits.ingress_rate, "ingressBurst": limits.ingress_burst,
                    "egressRate": limits.egress_rate, "egressBurst": limits.egress_burst,
                })
            }),
        );
        let mut fields = plugin.0.clone();
        if !runtime.is_empty() {
            fields.insert("runtimeConfig".to_owned(), Value::Object(runtime));
        }
        if let Some(args) = &selection.cni_args {
            let mut all = fields.get("args").and_then(Value::as_object).cloned().unwrap_or_default();
            let mut cni = all.get("cni").and_then(Value::as_object).cloned().unwrap_or_default();
            cni.extend(args.clone());
            all.insert("cni".to_owned(), Value::Object(cni));
            fields.insert("args".to_owned(), Value::Object(all));
        }
        Value::Object(fields)
    }

    /// What of an entry no plugin is told.
    pub(super) fn not_for_plugins(&self) -> Vec<String> {
        let mut warnings = self.unknown();
        warnings.extend(self.no_default_route());
        warnings
    }

    /// Fields of an entry that nobody knows.
    pub(super) fn unknown(&self) -> Vec<String> {
        let other = self.selection.other.keys();
        other.map(|key| format!("field `{}` is not known, and does nothing", key.escape_debug())).collect()
    }

    /// The pod's first interface keeps the default routes.
    pub(super) fn no_default_route(&self) -> Option<String> {
        let asked = !self.selection.default_route.is_empty();
        asked.then(|| "default-route: the pod's first interface keeps the default routes".to_owned())
    }
}
