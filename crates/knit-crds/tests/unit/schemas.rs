//! The definitions are valid for an API server: structural, documented, with a message for each rule.

use knit_crds::{Object, crds, manifests};
use serde_json::Value;

/// Every schema of every kind with its path.
fn schemas() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for definition in crds() {
        let kind = definition.spec.names.kind.clone();
        let version = &definition.spec.versions[0];
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).unwrap();
        walk(&kind, &serde_json::to_value(schema).unwrap(), &mut all);
    }
    all
}

fn walk(path: &str, schema: &Value, all: &mut Vec<(String, Value)>) {
    all.push((path.to_owned(), schema.clone()));
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), inner, all);
    }
    for key in ["items", "additionalProperties"] {
        if schema[key].is_object() {
            walk(&format!("{path}[]"), &schema[key], all);
        }
    }
}

#[test]
fn every_schema_is_structural() {
    for (path, schema) in schemas() {
        let map = schema.as_object().unwrap();
        assert!(schema["type"].is_string(), "{path} has no type: {schema}");
        for forbidden in
            ["$ref", "definitions", "anyOf", "oneOf", "allOf", "not", "nullable", "$schema", "const"]
        {
            assert!(!map.contains_key(forbidden), "{path} has {forbidden}");
        }
        let both = map.contains_key("properties") && map.contains_key("additionalProperties");
        assert!(!both, "{path} has properties and additionalProperties");
        if schema["type"] == "array" {
            assert!(schema["items"].is_object(), "{path} has no items");
            assert!(schema["x-kubernetes-list-type"].is_string(), "{path} has no list type");
        }
        if let Some(format) = schema["format"].as_str() {
            assert!(["int32", "int64", "date-time"].contains(&format), "{path} has format {format}");
        }
        if let Some(default) = map.get("default") {
            assert!(!default.is_null(), "{path} has a default of null");
        }
    }
}

#[test]
fn keys_of_list_maps_are_required() {
    for (path, schema) in schemas() {
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let required = schema["items"]["required"].as_array().unwrap();
            assert!(required.contains(key), "{path}: {key} is a key and not required");
        }
    }
}

#[test]
fn every_field_is_documented() {
    for (path, schema) in schemas() {
        let is_builtin =
            path.ends_with(".metadata") || path.ends_with(".apiVersion") || path.ends_with(".kind");
        // Entries of lists and maps of scalars are documented by the list.
        let is_scalar_entry = path.ends_with("[]") && schema["type"] != "object";
        if is_builtin || is_scalar_entry {
            continue;
        }
        let text = schema["description"].as_str().unwrap_or_default();
        assert!(text.len() > 5, "{path} has no description for kubectl explain");
        assert!(!text.contains("Auto-generated"), "{path}: {text}");
    }
}

#[test]
fn every_rule_has_a_message_and_every_string_with_rules_a_limit() {
    let mut rules = 0;
    for (path, schema) in schemas() {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            rules += 1;
            assert!(rule["message"].as_str().is_some_and(|message| !message.is_empty()), "{path}: {rule}");
            // Without a limit the API server estimates the worst case, and rejects the rule as too expensive.
            if schema["type"] == "string" {
                assert!(schema["maxLength"].is_u64(), "{path} has a rule and no maxLength");
            }
        }
    }
    assert!(rules > 50, "only {rules} rules");
}

#[test]
fn every_kind_has_names_and_columns_for_kubectl() {
    for definition in crds() {
        let names = &definition.spec.names;
        let info = Object::find_kind(&names.kind).unwrap();
        assert_eq!(definition.spec.scope == "Namespaced", info.namespaced, "{}", names.kind);
        assert_eq!(names.plural, info.plural);
        assert_eq!(names.categories.as_deref(), Some(&["knit".to_owned()][..]));
        assert!(names.short_names.as_ref().is_some_and(|names| !names.is_empty()), "{}", names.kind);
        let version = &definition.spec.versions[0];
        assert!(version.subresources.as_ref().is_some_and(|sub| sub.status.is_some()), "{}", names.kind);
        let columns: Vec<&str> =
            version.additional_printer_columns.iter().flatten().map(|column| column.name.as_str()).collect();
        for column in ["Phase", "Ready", "Age"] {
            assert!(columns.contains(&column), "{} has no column {column}", names.kind);
        }
    }
}

#[test]
fn manifests_survive_a_yaml_round_trip() {
    let manifests = manifests();
    // The kinds that users write, and the three that agents write.
    assert_eq!(manifests.len(), Object::kinds().len() + 3);
    for ((name, yaml), definition) in manifests.iter().zip(crds()) {
        assert!(name.ends_with(".yaml"), "{name}");
        let again: Value = serde_saphyr::from_str(yaml).unwrap();
        assert_eq!(again, serde_json::to_value(&definition).unwrap(), "{name}");
    }
}

#[test]
fn the_definition_of_uplink() {
    let (_, yaml) = manifests().into_iter().find(|(name, _)| name.ends_with("uplinks.yaml")).unwrap();
    insta::assert_snapshot!(yaml);
}
