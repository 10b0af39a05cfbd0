//! What plugins before this one made: `prevResult`. It is handed on as it came, whatever is in it.

use serde_json::{Map, Value};

use crate::failure::{DECODING, Failure};

/// The lists of a result.
const LISTS: [&str; 3] = ["interfaces", "ips", "routes"];

/// A result of others.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Prior(Map<String, Value>);

impl Prior {
    /// Reads a result of any version: they differ only in what is left alone here.
    pub fn read(value: &Value) -> Result<Self, Failure> {
        let wrong = |what: String| Failure::new(DECODING, format!("prevResult: {what}"));
        let Some(fields) = value.as_object() else {
            return Err(wrong("it is no JSON object".to_owned()));
        };
        for list in LISTS {
            let value = fields.get(list).unwrap_or(&Value::Null);
            let items = match value {
                Value::Null => continue,
                Value::Array(items) => items,
                other => return Err(wrong(format!("{list}: {other} is no list"))),
            };
            if let Some(item) = items.iter().find(|item| !item.is_object()) {
                return Err(wrong(format!("{list}: {item} is no JSON object")));
            }
        }
        Ok(Self(fields.clone()))
    }

    /// The entries of a list.
    pub fn list(&self, name: &str) -> &[Value] {
        self.0.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether others made an interface of this name in the container.
    pub fn has(&self, interface: &str) -> bool {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        self.list("interfaces").iter().any(|one| {
            text(one, "name").as_deref() == Some(interface)
                && text(one, "sandbox").is_some_and(|sandbox| !sandbox.is_empty())
        })
    }

    /// The addresses of an interface in the container, with their prefix lengths.
    pub fn addresses(&self, interface: &str) -> Vec<&str> {
        let interfaces = self.list("interfaces");
        let is_of = |address: &&Value| {
            let index = address.get("interface").and_then(Value::as_u64);
            let of = index.and_then(|index| interfaces.get(usize::try_from(index).ok()?));
            of.and_then(|of| of.get("name")?.as_str()) == Some(interface)
        };
        let mine = self.list("ips").iter().filter(is_of);
        mine.filter_map(|address| address.get("address")?.as_str()).collect()
    }

    /// The whole of it, to be added to.
    pub fn into_fields(self) -> Map<String, Value> {
        self.0
    }
}
