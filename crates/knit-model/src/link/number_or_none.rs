//! A number or an explicit "none".

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number, or an explicit "none" (serialized as `"none"`), which is distinct from an unset field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberOrNone(pub Option<u32>);

impl Serialize for NumberOrNone {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(number) => to.serialize_u32(number),
            None => to.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for NumberOrNone {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Serialized {
            Number(u32),
            Text(String),
        }
        match Serialized::deserialize(from)? {
            Serialized::Number(number) => Ok(Self(Some(number))),
            Serialized::Text(text) if text == "none" => Ok(Self(None)),
            Serialized::Text(_) => Err(D::Error::custom("expected a number or `none`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_a_value_and_round_trips() {
        for (value, text) in [(NumberOrNone(Some(7)), "7"), (NumberOrNone(None), "\"none\"")] {
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
            assert_eq!(serde_json::from_str::<NumberOrNone>(text).unwrap(), value);
        }
        assert!(serde_json::from_str::<NumberOrNone>("\"some\"").is_err());
    }
}
