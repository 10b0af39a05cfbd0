//! The objects of a fake API server: resource versions, generations, and the history that watches read.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The objects of one resource, such as `/api/v1/pods`.
pub type Resource = String;

/// A change of an object.
#[derive(Clone, Debug)]
pub struct Change {
    pub version: u64,
    pub resource: Resource,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub kind: &'static str,
    pub object: Value,
}

/// Objects by resource, namespace and name.
#[derive(Default)]
pub struct Objects {
    by_resource: BTreeMap<Resource, BTreeMap<(String, String), Value>>,
    version: u64,
    history: Vec<Change>,
    /// Changes up to this version are not in the history any more.
    compacted: u64,
}

impl Objects {
    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The resources of an API group and version that have had objects.
    pub fn resources(&self, group_version: &str) -> Vec<String> {
        let prefix = format!("{group_version}/");
        let all = self.by_resource.keys().filter_map(|resource| resource.strip_prefix(&prefix));
        all.map(str::to_owned).collect()
    }

    pub fn list(&self, resource: &str) -> Vec<Value> {
        self.by_resource.get(resource).map_or_else(Vec::new, |objects| objects.values().cloned().collect())
    }

    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.by_resource.get(resource)?.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Creates or updates an object. Fields of objects are merged; the generation grows with the spec.
    pub fn put(&mut self, resource: &str, mut object: Value) -> Value {
        let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = (name("namespace"), name("name"));
        self.version += 1;
        let objects = self.by_resource.entry(resource.to_owned()).or_default();
        let existing = objects.get(&key).cloned();
        let kind = if existing.is_some() { "MODIFIED" } else { "ADDED" };
        if let Some(existing) = existing {
            let spec = existing["spec"].clone();
            let mut merged = existing;
            merge(&mut merged, object);
            object = merged;
            if object["spec"] != spec {
                object["metadata"]["generation"] =
                    (object["metadata"]["generation"].as_i64().unwrap() + 1).into();
            }
        } else {
            let metadata = &mut object["metadata"];
            let created = format!("2026-01-01T00:{:02}:{:02}Z", self.version / 60 % 60, self.version % 60);
            let defaults = [
                ("uid", json!(format!("uid-{}", self.version))),
                ("generation", json!(1)),
                ("creationTimestamp", json!(created)),
            ];
            for (field, value) in defaults {
                if metadata[field].is_null() {
                    metadata[field] = value;
                }
            }
        }
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        objects.insert(key, object.clone());
        self.record(resource, kind, object.clone());
        object
    }

    /// Deletes an object. Returns it.
    pub fn delete(&mut self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (namespace.to_owned(), name.to_owned());
        let mut object = self.by_resource.get_mut(resource)?.remove(&key)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.record(resource, "DELETED", object.clone());
        Some(object)
    }

    fn record(&mut self, resource: &str, kind: &'static str, object: Value) {
        let change = Change { version: self.version, resource: resource.to_owned(), kind, object };
        self.history.push(change);
    }

    /// The changes of a resource after a version; `None` if the history does not reach back that far.
    pub fn changes(&self, resource: &str, after: u64) -> Option<Vec<Change>> {
        let is_later = |change: &&Change| change.version > after && change.resource == resource;
        (after >= self.compacted).then(|| self.history.iter().filter(is_later).cloned().collect())
    }

    /// Forgets the history.
    pub fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
    }
}

/// Merges the fields of an object into another one.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (field, value) in from {
                merge(into.entry(field).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}
