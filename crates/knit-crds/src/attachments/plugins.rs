//! CNI plugins without an equivalent kind, which run as a plugin chain like with Multus.

use knit_model::intent::{IntentSpec, PluginChainIntent, Selector};
use knit_model::problem::Reason;
use serde_json::{Map, Value, json};

use super::config::{Config, Plugin};
use super::{Entry, EntryError, bounds};

/// CNI plugins that may run for definitions. They run as root on the node with the configuration of a tenant, so the
/// node's administrator must allow them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedPlugins {
    /// Their types.
    pub types: Vec<String>,
    /// The directories of their executables.
    pub dirs: Vec<String>,
    /// The timeout of one invocation.
    pub timeout_seconds: u64,
}

impl Entry<'_> {
    /// The plugin chain of a definition, with the runtime configuration of the pod for the capabilities of each plugin.
    pub(super) fn plugin_chain(
        &self,
        config: &Config,
        plugins: &AllowedPlugins,
    ) -> Result<IntentSpec, EntryError> {
        for plugin in &config.plugins {
            for kind in [plugin.kind(), plugin.ipam()].into_iter().filter(|kind| !kind.is_empty()) {
                if !plugins.types.iter().any(|allowed| allowed == kind) {
                    let message = format!(
                        "plugin {kind} is not allowed: add it to networkAttachments.plugins of the agent configuration"
                    );
                    return Err((Reason::NotAllowed, message));
                }
            }
        }
        let list = config.plugins.iter().map(|plugin| self.runtime_config(plugin));
        let list = list.collect::<Result<_, _>>()?;
        // Plugins use it as the name of a folder with the addresses of the network.
        let name = format!("{}.{}", self.selection.namespace, self.selection.name);
        Ok(IntentSpec::PluginChain(Box::new(PluginChainIntent {
            pods: Selector::pod(self.pod.uid.as_str()),
            name: self.interface.clone(),
            network: self.selection.title(),
            conflist: config.list(&name, list),
            plugin_dirs: plugins.dirs.clone(),
            timeout_seconds: plugins.timeout_seconds,
        })))
    }

    /// A plugin's configuration with the runtime configuration of the pod.
    fn runtime_config(&self, plugin: &Plugin) -> Result<Value, EntryError> {
        let selection = self.selection;
        let supports = |capability: &str| {
            plugin.0.get("capabilities").and_then(|all| all.get(capability)) == Some(&Value::Bool(true))
        };
        let mut runtime = Map::new();
        let mut add = |capability: &str, value: Option<Value>| {
            runtime
                .extend(value.filter(|_| supports(capability)).map(|value| (capability.to_owned(), value)));
        };
        add("ips", (!selection.ips.is_empty()).then(|| json!(selection.ips)));
        add("mac", selection.mac.as_ref().map(|mac| json!(mac)));
        add("portMappings", (!selection.port_mappings.is_empty()).then(|| json!(selection.port_mappings)));
        add("infinibandGUID", selection.infiniband_guid.as_ref().map(|guid| json!(guid)));
        add(
            "bandwidth",
            selection.bandwidth.map(|limits| {
                json!({
                    "ingressRate": limits.ingress_rate, "ingressBurst": limits.ingress_burst,
                    "egressRate": limits.egress_rate, "egressBurst": limits.egress_burst,
                })
            }),
        );
        let mut fields = bounds::bounded(plugin, &selection.namespace)?;
        fields.remove("runtimeConfig");
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
        Ok(Value::Object(fields))
    }

    /// Warnings about fields that plugins do not support.
    pub(super) fn plugin_chain_warnings(&self) -> Vec<String> {
        let mut warnings = self.unknown_fields();
        warnings.extend(self.default_route_warning());
        warnings
    }

    /// Warnings about unknown fields of an entry.
    pub(super) fn unknown_fields(&self) -> Vec<String> {
        let other = self.selection.other.keys();
        other.map(|key| format!("unknown field `{}`, ignored", key.escape_debug())).collect()
    }

    /// A warning, because the primary interface keeps the default routes.
    pub(super) fn default_route_warning(&self) -> Option<String> {
        let is_set = !self.selection.default_route.is_empty();
        is_set.then(|| "default-route: ignored: the primary interface keeps the default routes".to_owned())
    }
}
