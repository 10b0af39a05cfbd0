//! Checks a document against a kind's schema as an API server would: unknown fields, wrong types, missing fields.
//!
//! Values are not judged here: a bad value is reported by the translation, in its own words, from whatever language the
//! object came in.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::document::{Content, Node, Place};
use crate::kinds::definitions;
use crate::object::ParseError;

/// The schema of each kind, with the fields of `metadata`, which an API server knows by itself.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let metadata = schemars::generate::SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<ObjectMeta>();
    let schema = |definition: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
        let version = definition.spec.versions.into_iter().next().and_then(|version| version.schema);
        let mut schema = serde_json::to_value(version.and_then(|schema| schema.open_api_v3_schema))
            .expect("a schema is plain data");
        schema["properties"]["metadata"] = metadata.as_value().clone();
        for field in ["apiVersion", "kind"] {
            schema["properties"][field] = serde_json::json!({ "type": "string" });
        }
        (definition.spec.names.kind, schema)
    };
    definitions().into_iter().map(schema).collect()
});

/// Everything about the document that does not fit the kind's schema.
pub(crate) fn check(kind: &str, document: &Node) -> Vec<ParseError> {
    let mut check = Check { errors: Vec::new() };
    if let Some(schema) = SCHEMAS.get(kind) {
        check.node(document, schema, "");
    }
    check.errors
}

struct Check {
    errors: Vec<ParseError>,
}

impl Check {
    fn say(&mut self, place: Place, field: &str, message: impl Into<String>) {
        self.errors.push(ParseError { place, field: field.to_owned(), message: message.into() });
    }

    fn node(&mut self, node: &Node, schema: &Value, path: &str) {
        let expected = match schema["type"].as_str() {
            Some("object") => "a map",
            Some("array") => "a list",
            Some("string") => "a text",
            Some("integer") => "a whole number",
            Some("boolean") => "a boolean",
            _ => return,
        };
        match (&node.content, expected) {
            (Content::Map(_), "a map") => self.map(node, schema, path),
            (Content::List(list), "a list") => {
                for (index, entry) in list.iter().enumerate() {
                    self.node(entry, &schema["items"], &format!("{path}[{index}]"));
                }
            }
            (Content::Scalar(value), _) if node.type_word() == expected => {
                self.choice(node.place, value, schema, path);
            }
            (Content::Scalar(value), "a text") if !value.is_null() => {
                let message =
                    format!("expected a text, this is {}: write it as \"{value}\"", node.type_word());
                self.say(node.place, path, message);
            }
            (Content::Scalar(Value::String(_)), "a boolean") => {
                self.say(node.place, path, "expected a boolean, this is a text: write true or false");
            }
            _ => self.say(node.place, path, format!("expected {expected}, this is {}", node.type_word())),
        }
    }

    fn map(&mut self, node: &Node, schema: &Value, path: &str) {
        let Content::Map(fields) = &node.content else { return };
        for field in fields.iter().filter(|field| !field.value.is_null()) {
            let inner = if path.is_empty() { field.key.clone() } else { format!("{path}.{}", field.key) };
            let known = schema["properties"].get(&field.key).or_else(|| schema.get("additionalProperties"));
            match known {
                Some(known) => self.node(&field.value, known, &inner),
                None => self.say(field.place, &inner, unknown(&field.key, schema)),
            }
        }
        for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if node.field(required).is_none_or(Node::is_null) {
                self.say(node.place, path, format!("`{required}` is missing"));
            }
        }
    }

    fn choice(&mut self, place: Place, value: &Value, schema: &Value, path: &str) {
        let Some(choices) = schema["enum"].as_array() else { return };
        if !choices.contains(value) {
            let words: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            let given = value.as_str().unwrap_or_default();
            self.say(place, path, format!("`{}` is not one of {}", given.escape_debug(), words.join(", ")));
        }
    }
}

/// The sentence for an unknown field: with the field that was probably meant, or with those that there are.
fn unknown(key: &str, schema: &Value) -> String {
    let known: Vec<&String> =
        schema["properties"].as_object().map(|map| map.keys().collect()).unwrap_or_default();
    let near = known.iter().filter(|name| distance(key, name) <= 2).min_by_key(|name| distance(key, name));
    match near {
        Some(name) => format!("unknown field, is `{name}` meant?"),
        None => {
            let names: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
            format!("unknown field, there are {}", names.join(", "))
        }
    }
}

/// How many letters one has to change to get from one word to another; a change of case is none.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.to_lowercase().chars().collect(), b.to_lowercase().chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_words() {
        assert_eq!(distance("linkType", "linktype"), 0);
        assert_eq!(distance("lnkType", "linkType"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("cidr", "crid"), 2);
    }
}
