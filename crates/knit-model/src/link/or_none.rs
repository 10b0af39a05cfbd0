//! A number that may be missing, where that it is missing is a statement of its own.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number, or that there is none: written `"none"`. A field that is not stated says neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrNone(pub Option<u32>);

impl Serialize for OrNone {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(number) => to.serialize_u32(number),
            None => to.serialize_str("none"),
        }
    }
}

impl<'de> Deserialize<'de> for OrNone {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Number(number) => Ok(Self(Some(number))),
            Written::Text(text) if text == "none" => Ok(Self(None)),
            Written::Text(_) => Err(D::Error::custom("neither a number nor `none`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_a_statement_and_survives_storing() {
        for (value, text) in [(OrNone(Some(7)), "7"), (OrNone(None), "\"none\"")] {
            assert_eq!(serde_json::to_string(&value).unwrap(), text);
            assert_eq!(serde_json::from_str::<OrNone>(text).unwrap(), value);
        }
        assert!(serde_json::from_str::<OrNone>("\"some\"").is_err());
    }
}
