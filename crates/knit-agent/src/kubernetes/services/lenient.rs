//! Fields that tenants write. The API server accepts numbers that make no sense, and a page of a list is parsed as a whole: one
//! object that cannot be parsed would end the watch for all.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// A field, or its default if it cannot be parsed.
#[derive(Clone, Debug, Default)]
pub(super) struct Lenient<T> {
    value: T,
    error: Option<String>,
}

impl<T> Lenient<T> {
    /// The field of an object. What cannot be parsed is logged.
    pub(super) fn of(self, namespace: &str, name: &str) -> T {
        if let Some(error) = self.error {
            tracing::warn!(namespace, name, error, "a part of a Service or EndpointSlice is ignored");
        }
        self.value
    }
}

impl<'de, T: Default + DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(match serde_json::from_value(value) {
            Ok(value) => Self { value, error: None },
            Err(why) => Self { value: T::default(), error: Some(why.to_string()) },
        })
    }
}

/// The number of a port; `None` if it is none, as 0.
pub(super) fn number(port: i64) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}
