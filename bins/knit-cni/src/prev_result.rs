//! `prevResult`: the result of the previous plugins in the chain. It is passed on unchanged.

use serde_json::{Map, Value};

use crate::error::{CniError, DECODING_FAILURE};

/// The lists in a result.
const LISTS: [&str; 3] = ["interfaces", "ips", "routes"];

/// The result of the previous plugins.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PrevResult(Map<String, Value>);

impl PrevResult {
    /// Parses a result of any version.
    pub fn read(value: &Value) -> Result<Self, CniError> {
        let invalid = |reason: String| CniError::new(DECODING_FAILURE, format!("prevResult: {reason}"));
        let Some(fields) = value.as_object() else {
            return Err(invalid("expected a JSON object".to_owned()));
        };
        for list in LISTS {
            let value = fields.get(list).unwrap_or(&Value::Null);
            let items = match value {
                Value::Null => continue,
                Value::Array(items) => items,
                other => return Err(invalid(format!("{list}: expected a list, not {other}"))),
            };
            if let Some(item) = items.iter().find(|item| !item.is_object()) {
                return Err(invalid(format!("{list}: expected an object, not {item}")));
            }
        }
        Ok(Self(fields.clone()))
    }

    /// The items of a list.
    pub fn list(&self, name: &str) -> &[Value] {
        self.0.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a previous plugin created an interface of this name in the container.
    pub fn has(&self, interface: &str) -> bool {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        self.list("interfaces").iter().any(|item| {
            text(item, "name").as_deref() == Some(interface)
                && text(item, "sandbox").is_some_and(|sandbox| !sandbox.is_empty())
        })
    }

    /// The addresses of an interface in the container, with their prefix lengths.
    pub fn addresses(&self, interface: &str) -> Vec<&str> {
        let interfaces = self.list("interfaces");
        let is_on_interface = |address: &&Value| {
            let index = address.get("interface").and_then(Value::as_u64);
            let item = index.and_then(|index| interfaces.get(usize::try_from(index).ok()?));
            item.and_then(|item| item.get("name")?.as_str()) == Some(interface)
        };
        let addresses = self.list("ips").iter().filter(is_on_interface);
        addresses.filter_map(|address| address.get("address")?.as_str()).collect()
    }

    /// All fields.
    pub fn into_fields(self) -> Map<String, Value> {
        self.0
    }
}
