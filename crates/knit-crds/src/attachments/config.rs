//! The CNI configuration of a definition: one plugin, or a list.

use serde_json::{Map, Value, json};

/// The `cniVersion` of a configuration without one.
const DEFAULT_VERSION: &str = "0.4.0";

/// A CNI configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    version: String,
    /// At least one.
    pub(super) plugins: Vec<Plugin>,
}

/// The configuration of one plugin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plugin(pub(super) Map<String, Value>);

impl Config {
    /// Parses a configuration. Its name is not used: networks are named by their definition.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("spec.config must be set: configuration files of the node are not used".to_owned());
        }
        let value: Value =
            serde_json::from_str(text).map_err(|why| format!("spec.config must be JSON: {why}"))?;
        let Value::Object(mut fields) = value else {
            return Err("spec.config must be an object".to_owned());
        };
        let string = |fields: &Map<String, Value>, key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!("spec.config.{key} must be a string, got {other}")),
        };
        let version = string(&fields, "cniVersion")?.unwrap_or_else(|| DEFAULT_VERSION.to_owned());
        let plugins = match fields.remove("plugins") {
            None => vec![Plugin::read(Value::Object(fields), "spec.config")?],
            Some(Value::Array(plugins)) if !plugins.is_empty() => {
                let read = |(at, plugin)| Plugin::read(plugin, &format!("spec.config.plugins[{at}]"));
                plugins.into_iter().enumerate().map(read).collect::<Result<_, _>>()?
            }
            Some(_) => return Err("spec.config.plugins must be a non-empty list".to_owned()),
        };
        Ok(Self { version, plugins })
    }

    /// The plugin, if there is only one.
    pub(super) fn single(&self) -> Option<&Plugin> {
        match &self.plugins[..] {
            [plugin] => Some(plugin),
            _ => None,
        }
    }

    /// A CNI configuration list of these plugins, with the name of the network.
    pub(super) fn list(&self, name: &str, plugins: Vec<Value>) -> String {
        json!({ "cniVersion": self.version, "name": name, "plugins": plugins }).to_string()
    }
}

impl Plugin {
    fn read(value: Value, field: &str) -> Result<Self, String> {
        let Value::Object(fields) = value else { return Err(format!("{field} must be an object")) };
        let plugin = Self(fields);
        if plugin.kind().is_empty() || plugin.kind().contains('/') {
            return Err(format!(
                "{field}.type must be a plugin type, got `{}`",
                plugin.kind().escape_debug()
            ));
        }
        Ok(plugin)
    }

    /// The plugin type.
    pub(super) fn kind(&self) -> &str {
        self.0.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The type of the IPAM plugin; empty if there is none.
    pub(super) fn ipam(&self) -> &str {
        self.0.get("ipam").and_then(|ipam| ipam.get("type")?.as_str()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_plugin_equals_a_list_of_one() {
        let one = Config::parse(r#"{"cniVersion": "1.0.0", "name": "n", "type": "bridge"}"#).unwrap();
        assert_eq!(one.single().unwrap().kind(), "bridge");
        let list = Config::parse(r#"{"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}"#).unwrap();
        assert_eq!(list.single().unwrap().kind(), "bridge");
        let two = Config::parse(r#"{"plugins": [{"type": "bridge"}, {"type": "tuning"}]}"#).unwrap();
        assert!(two.single().is_none());
    }

    #[test]
    fn invalid_configurations_are_rejected() {
        for (text, why) in [
            ("", "spec.config must be set"),
            ("{", "must be JSON"),
            ("[]", "must be an object"),
            ("{}", "must be a plugin type, got ``"),
            (r#"{"type": "../evil"}"#, "spec.config.type must be a plugin type, got `../evil`"),
            (r#"{"plugins": []}"#, "must be a non-empty list"),
            (r#"{"plugins": [{"type": "a"}, {}]}"#, "spec.config.plugins[1].type"),
            (r#"{"cniVersion": 1, "type": "a"}"#, "spec.config.cniVersion must be a string, got 1"),
        ] {
            let message = Config::parse(text).unwrap_err();
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
