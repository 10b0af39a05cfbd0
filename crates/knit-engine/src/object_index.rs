//! The objects of a node with indexes, so that the cost of a change does not grow with the objects of other namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use knit_model::Kind;
use knit_model::intent::IntentSpec;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::state::{ObjectKey, StoredObject};

/// Something that some objects have, and that is looked for in all namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Feature {
    /// A bridge.
    Bridge,
    /// A network.
    Network,
    /// An uplink.
    Uplink,
    /// Required extensions.
    RequiredExtensions,
    /// An interface with addresses given by value.
    FixedAddresses,
    /// An ipvlan.
    Ipvlan,
    /// An interface with a key in a Secret.
    Secret,
}

/// Objects by key. Dereferences to a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectIndex {
    all: BTreeMap<ObjectKey, StoredObject>,
    by_namespace: BTreeMap<String, BTreeSet<ObjectKey>>,
    by_feature: BTreeMap<Feature, BTreeSet<ObjectKey>>,
    /// Objects with an interface on a network of another namespace, by that namespace.
    by_foreign_network: BTreeMap<String, BTreeSet<ObjectKey>>,
}

impl ObjectIndex {
    /// Adds or replaces an object.
    pub(crate) fn insert(&mut self, key: ObjectKey, object: StoredObject) {
        self.remove(&key);
        self.by_namespace.entry(key.namespace.clone()).or_default().insert(key.clone());
        for feature in features(&object) {
            self.by_feature.entry(feature).or_default().insert(key.clone());
        }
        for namespace in foreign_networks(&key, &object) {
            self.by_foreign_network.entry(namespace).or_default().insert(key.clone());
        }
        self.all.insert(key, object);
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, key: &ObjectKey) {
        let Some(object) = self.all.remove(key) else { return };
        remove_from(&mut self.by_namespace, &key.namespace, key);
        for feature in features(&object) {
            remove_from(&mut self.by_feature, &feature, key);
        }
        for namespace in foreign_networks(key, &object) {
            remove_from(&mut self.by_foreign_network, &namespace, key);
        }
    }

    /// The objects of a namespace: only these can select its pods.
    pub(crate) fn of_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectKey, &StoredObject)> + use<'_> {
        self.get_all(self.by_namespace.get(namespace))
    }

    /// The objects of a namespace, the oldest first.
    pub(crate) fn of_namespace_by_age(&self, namespace: &str) -> Vec<(&ObjectKey, &StoredObject)> {
        by_age(self.of_namespace(namespace))
    }

    /// The objects that may use a bridge or network of a namespace, the oldest first.
    pub(crate) fn on_networks_of(&self, namespace: &str) -> Vec<(&ObjectKey, &StoredObject)> {
        let foreign = self.get_all(self.by_foreign_network.get(namespace));
        by_age(self.of_namespace(namespace).chain(foreign))
    }

    /// The objects of all namespaces with this feature.
    pub(crate) fn with(
        &self,
        feature: Feature,
    ) -> impl Iterator<Item = (&ObjectKey, &StoredObject)> + use<'_> {
        self.get_all(self.by_feature.get(&feature))
    }

    fn get_all<'a>(
        &'a self,
        keys: Option<&'a BTreeSet<ObjectKey>>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a StoredObject)> + use<'a> {
        keys.into_iter().flatten().filter_map(|key| self.all.get_key_value(key))
    }
}

/// Sorts objects by age, the oldest first.
pub(crate) fn by_age<'a>(
    objects: impl Iterator<Item = (&'a ObjectKey, &'a StoredObject)>,
) -> Vec<(&'a ObjectKey, &'a StoredObject)> {
    let mut all: Vec<_> = objects.collect();
    all.sort_by_key(|(_, object)| object.since);
    all
}

fn remove_from<K: Ord>(index: &mut BTreeMap<K, BTreeSet<ObjectKey>>, at: &K, key: &ObjectKey) {
    if let Some(keys) = index.get_mut(at) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(at);
        }
    }
}

fn features(object: &StoredObject) -> BTreeSet<Feature> {
    let mut features = BTreeSet::new();
    for intent in &object.intents {
        match &intent.spec {
            IntentSpec::Bridge(_) => drop(features.insert(Feature::Bridge)),
            IntentSpec::Network(_) => drop(features.insert(Feature::Network)),
            IntentSpec::Uplink(_) => drop(features.insert(Feature::Uplink)),
            IntentSpec::RequiredExtensions(_) => drop(features.insert(Feature::RequiredExtensions)),
            IntentSpec::Interface(spec) => {
                features.extend((!spec.fixed.is_empty()).then_some(Feature::FixedAddresses));
                features.extend(matches!(spec.kind, Kind::Ipvlan(_)).then_some(Feature::Ipvlan));
                features.extend((!spec.kind.clone().secret_keys().is_empty()).then_some(Feature::Secret));
            }
            _ => {}
        }
    }
    features
}

/// The other namespaces whose networks the object's interfaces are on.
fn foreign_networks(key: &ObjectKey, object: &StoredObject) -> BTreeSet<String> {
    let specs = object.intents.iter().filter_map(|intent| intent.spec.interface());
    let tenants = specs.map(|spec| spec.tenant(&key.namespace));
    tenants.filter(|tenant| **tenant != key.namespace).map(str::to_owned).collect()
}

impl Deref for ObjectIndex {
    type Target = BTreeMap<ObjectKey, StoredObject>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<'a> IntoIterator for &'a ObjectIndex {
    type Item = (&'a ObjectKey, &'a StoredObject);
    type IntoIter = std::collections::btree_map::Iter<'a, ObjectKey, StoredObject>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

impl FromIterator<(ObjectKey, StoredObject)> for ObjectIndex {
    fn from_iter<I: IntoIterator<Item = (ObjectKey, StoredObject)>>(all: I) -> Self {
        let mut index = Self::default();
        all.into_iter().for_each(|(key, object)| index.insert(key, object));
        index
    }
}

/// Serialised as a list of pairs; the indexes are derived.
impl Serialize for ObjectIndex {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(&self.all)
    }
}

impl<'de> Deserialize<'de> for ObjectIndex {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Vec::<(ObjectKey, StoredObject)>::deserialize(from)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use knit_model::Provenance;
    use knit_model::intent::{BridgeIntent, Intent, NetworkIntent};
    use knit_model::link::{Attrs, Bridge};
    use knit_model::provenance::{Dialect, ObjectRef};
    use serde_json::Value;

    use super::*;

    fn object(namespace: &str, name: &str, since: u64, specs: Vec<IntentSpec>) -> StoredObject {
        let object = ObjectRef {
            kind: "Any".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
            generation: 1,
        };
        let origin = Provenance {
            dialect: Dialect::Kubernetes,
            object: Some(object.clone()),
            field: String::new(),
            call: None,
        };
        let intents = specs.into_iter().map(|spec| Intent { origin: origin.clone(), spec });
        StoredObject {
            object,
            intents: intents.collect(),
            warnings: Vec::new(),
            manifest: Value::Null,
            since,
            file: None,
        }
    }

    fn names<'a>(objects: impl IntoIterator<Item = (&'a ObjectKey, &'a StoredObject)>) -> Vec<String> {
        objects.into_iter().map(|(key, _)| format!("{}/{}", key.namespace, key.name)).collect()
    }

    #[test]
    fn indexes_follow_objects_that_are_replaced_and_removed() {
        let network = || {
            IntentSpec::Network(NetworkIntent {
                name: "n".to_owned(),
                ranges: Vec::new(),
                isolated: false,
                mtu: None,
                overlay: None,
            })
        };
        let bridge = || {
            IntentSpec::Bridge(BridgeIntent {
                name: "br0".parse().unwrap(),
                ranges: Vec::new(),
                attrs: Attrs::default(),
                bridge: Bridge::default(),
                port: None,
            })
        };
        let mut index = ObjectIndex::default();
        let all = [
            object("a", "younger", 5, vec![network()]),
            object("a", "older", 2, vec![bridge()]),
            object("b", "other", 1, vec![network()]),
        ];
        for one in all {
            index.insert(one.key(), one);
        }
        assert_eq!(names(index.of_namespace("a")), ["a/older", "a/younger"]);
        assert_eq!(names(index.of_namespace_by_age("a")), ["a/older", "a/younger"]);
        assert_eq!(names(index.with(Feature::Network)), ["a/younger", "b/other"]);
        let changed = object("a", "younger", 1, vec![bridge()]);
        index.insert(changed.key(), changed.clone());
        assert_eq!(names(index.of_namespace_by_age("a")), ["a/younger", "a/older"]);
        assert_eq!(names(index.with(Feature::Network)), ["b/other"]);
        assert_eq!(names(index.with(Feature::Bridge)), ["a/older", "a/younger"]);
        let text = serde_json::to_string(&index).unwrap();
        assert_eq!(serde_json::from_str::<ObjectIndex>(&text).unwrap(), index);
        for key in index.keys().cloned().collect::<Vec<_>>() {
            index.remove(&key);
        }
        assert_eq!(index, ObjectIndex::default(), "nothing is left in an index");
        assert!(changed.is_kept_by_api_server());
    }
}
