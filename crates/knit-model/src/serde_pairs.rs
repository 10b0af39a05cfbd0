//! Serializes maps with non-string keys as lists of pairs: `#[serde(with = "knit_model::serde_pairs")]`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serializes a map as a list of pairs.
pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_seq(map)
}

/// Deserializes a map from a list of pairs.
pub fn deserialize<'de, K, V, D>(from: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Vec::<(K, V)>::deserialize(from)?.into_iter().collect())
}

/// The same for maps of such maps: `#[serde(with = "knit_model::serde_pairs::nested")]`.
pub mod nested {
    use super::{BTreeMap, Deserialize, Deserializer, Serialize, Serializer};

    struct Pairs<'a, K, V>(&'a BTreeMap<K, V>);

    impl<K: Serialize, V: Serialize> Serialize for Pairs<'_, K, V> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            super::serialize(self.0, to)
        }
    }

    /// Serializes a map of maps as a list of pairs.
    pub fn serialize<O: Serialize, K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<O, BTreeMap<K, V>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map.iter().map(|(outer, inner)| (outer, Pairs(inner))))
    }

    /// Deserializes a map of maps from a list of pairs.
    pub fn deserialize<'de, O, K, V, D>(from: D) -> Result<BTreeMap<O, BTreeMap<K, V>>, D::Error>
    where
        O: Deserialize<'de> + Ord,
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(O, Vec<(K, V)>)>::deserialize(from)?;
        Ok(pairs.into_iter().map(|(outer, inner)| (outer, inner.into_iter().collect())).collect())
    }
}
