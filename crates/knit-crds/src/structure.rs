//! Validates a document against a kind's schema like the API server: unknown fields, wrong types, missing fields.
//!
//! Values are validated by the translation, which is shared by all input dialects.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use crate::document::{Content, Node, SourceLocation};
use crate::kinds::definitions;
use crate::object::ParseError;

/// The schema of each kind, with the fields of `metadata`, which are built into the API server.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let metadata = schemars::generate::SchemaSettings::openapi3()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<ObjectMeta>();
    let schema = |definition: k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition| {
        let version = definition.spec.versions.into_iter().next().and_then(|version| version.schema);
        let mut schema = serde_json::to_value(version.and_then(|schema| schema.open_api_v3_schema))
            .expect("a schema is serializable");
        schema["properties"]["metadata"] = metadata.as_value().clone();
        for field in ["apiVersion", "kind"] {
            schema["properties"][field] = serde_json::json!({ "type": "string" });
        }
        (definition.spec.names.kind, schema)
    };
    definitions().into_iter().map(schema).collect()
});

/// All violations of the kind's schema.
pub(crate) fn check(kind: &str, document: &Node) -> Vec<ParseError> {
    let mut check = SchemaCheck { errors: Vec::new() };
    if let Some(schema) = SCHEMAS.get(kind) {
        check.node(document, schema, "");
    }
    check.errors
}

struct SchemaCheck {
    errors: Vec<ParseError>,
}

impl SchemaCheck {
    fn error(&mut self, location: SourceLocation, field: &str, message: impl Into<String>) {
        self.errors.push(ParseError { location, field: field.to_owned(), message: message.into() });
    }

    fn node(&mut self, node: &Node, schema: &Value, path: &str) {
        let expected = match schema["type"].as_str() {
            Some("object") => "a map",
            Some("array") => "a list",
            Some("string") => "a string",
            Some("integer") => "an integer",
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
            (Content::Scalar(value), _) if node.type_name() == expected => {
                self.choice(node.location, value, schema, path);
            }
            (Content::Scalar(value), "a string") if !value.is_null() => {
                let message = format!("must be a string, got {}: quote it as \"{value}\"", node.type_name());
                self.error(node.location, path, message);
            }
            (Content::Scalar(Value::String(_)), "a boolean") => {
                self.error(node.location, path, "must be true or false, got a string");
            }
            _ => self.error(node.location, path, format!("must be {expected}, got {}", node.type_name())),
        }
    }

    fn map(&mut self, node: &Node, schema: &Value, path: &str) {
        let Content::Map(fields) = &node.content else { return };
        for field in fields.iter().filter(|field| !field.value.is_null()) {
            let inner = if path.is_empty() { field.key.clone() } else { format!("{path}.{}", field.key) };
            let known = schema["properties"].get(&field.key).or_else(|| schema.get("additionalProperties"));
            match known {
                Some(known) => self.node(&field.value, known, &inner),
                None => self.error(field.location, &inner, unknown(&field.key, schema)),
            }
        }
        for required in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if node.field(required).is_none_or(Node::is_null) {
                self.error(node.location, path, format!("{required} must be set"));
            }
        }
    }

    fn choice(&mut self, location: SourceLocation, value: &Value, schema: &Value, path: &str) {
        let Some(choices) = schema["enum"].as_array() else { return };
        if !choices.contains(value) {
            let allowed: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
            let given = value.as_str().unwrap_or_default();
            self.error(
                location,
                path,
                format!("must be one of {}, got `{}`", allowed.join(", "), given.escape_debug()),
            );
        }
    }
}

/// The message for an unknown field: with the closest known field, or with all of them.
fn unknown(key: &str, schema: &Value) -> String {
    let known: Vec<&String> =
        schema["properties"].as_object().map(|map| map.keys().collect()).unwrap_or_default();
    let near = known.iter().filter(|name| distance(key, name) <= 2).min_by_key(|name| distance(key, name));
    match near {
        Some(name) => format!("unknown field, did you mean `{name}`?"),
        None => {
            let names: Vec<&str> = known.iter().map(|name| name.as_str()).collect();
            format!("unknown field, must be one of {}", names.join(", "))
        }
    }
}

/// The Levenshtein distance of two names, ignoring case.
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
    fn distance_ignores_case() {
        assert_eq!(distance("linkType", "linktype"), 0);
        assert_eq!(distance("lnkType", "linkType"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("cidr", "crid"), 2);
    }
}
