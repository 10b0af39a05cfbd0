//! The configuration of a definition: one plugin, or a list of them.

use serde_json::{Map, Value, json};

/// The version of a configuration that names none.
const DEFAULT_VERSION: &str = "0.4.0";

/// A configuration, as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    version: String,
    name: String,
    /// At least one.
    pub(super) plugins: Vec<Plugin>,
}

/// The configuration of one plugin.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plugin(pub(super) Map<String, Value>);

impl Config {
    /// Reads it; a configuration without a name has the definition's.
    pub(super) fn parse(text: &str, name: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("it has no spec.config, and files of the node are not read for it".to_owned());
        }
        let value: Value =
            serde_json::from_str(text).map_err(|why| format!("spec.config: this is no JSON: {why}"))?;
        let Value::Object(mut fields) = value else {
            return Err("spec.config: this is no object".to_owned());
        };
        let word = |fields: &Map<String, Value>, key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!("spec.config.{key}: {other} is no text")),
        };
        let version = word(&fields, "cniVersion")?.unwrap_or_else(|| DEFAULT_VERSION.to_owned());
        let name = word(&fields, "name")?.unwrap_or_else(|| name.to_owned());
        let plugins = match fields.remove("plugins") {
            None => vec![Plugin::read(Value::Object(fields), "spec.config")?],
            Some(Value::Array(plugins)) if !plugins.is_empty() => {
                let read = |(at, plugin)| Plugin::read(plugin, &format!("spec.config.plugins[{at}]"));
                plugins.into_iter().enumerate().map(read).collect::<Result<_, _>>()?
            }
            Some(_) => return Err("spec.config.plugins: this is no list with a plugin in it".to_owned()),
        };
        Ok(Self { version, name, plugins })
    }

    /// The plugin, if there is only one.
    pub(super) fn single(&self) -> Option<&Plugin> {
        match &self.plugins[..] {
            [plugin] => Some(plugin),
            _ => None,
        }
    }

    /// The list that plugins are run by.
    pub(super) fn list(&self, plugins: Vec<Value>) -> String {
        json!({ "cniVersion": self.version, "name": self.name, "plugins": plugins }).to_string()
    }
}

impl Plugin {
    fn read(value: Value, field: &str) -> Result<Self, String> {
        let Value::Object(fields) = value else { return Err(format!("{field}: this is no object")) };
        let plugin = Self(fields);
        if plugin.kind().is_empty() || plugin.kind().contains('/') {
            return Err(format!("{field}.type: `{}` is no type of a plugin", plugin.kind().escape_debug()));
        }
        Ok(plugin)
    }

    /// The plugin's type.
    pub(super) fn kind(&self) -> &str {
        self.0.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The type of the plugin that gives addresses; empty if it has none.
    pub(super) fn ipam(&self) -> &str {
        self.0.get("ipam").and_then(|ipam| ipam.get("type")?.as_str()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_plugin_and_a_list_of_one_are_the_same() {
        let one = Config::parse(r#"{"cniVersion": "1.0.0", "name": "n", "type": "bridge"}"#, "blue").unwrap();
        assert_eq!((one.single().unwrap().kind(), one.name.as_str()), ("bridge", "n"));
        let list =
            Config::parse(r#"{"cniVersion": "1.0.0", "plugins": [{"type": "bridge"}]}"#, "blue").unwrap();
        assert_eq!((list.single().unwrap().kind(), list.name.as_str()), ("bridge", "blue"));
        let two = Config::parse(r#"{"plugins": [{"type": "bridge"}, {"type": "tuning"}]}"#, "blue").unwrap();
        assert!(two.single().is_none());
    }

    #[test]
    fn what_is_no_configuration_is_said_in_words() {
        for (text, why) in [
            ("", "no spec.config"),
            ("{", "this is no JSON"),
            ("[]", "this is no object"),
            ("{}", "`` is no type of a plugin"),
            (r#"{"type": "../evil"}"#, "spec.config.type: `../evil` is no type of a plugin"),
            (r#"{"plugins": []}"#, "no list with a plugin in it"),
            (r#"{"plugins": [{"type": "a"}, {}]}"#, "spec.config.plugins[1].type"),
            (r#"{"cniVersion": 1, "type": "a"}"#, "spec.config.cniVersion: 1 is no text"),
        ] {
            let said = Config::parse(text, "blue").unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
