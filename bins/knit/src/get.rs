//! `knit get`, `describe`: objects and their status.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use knit_crds::{KindInfo, Object};
use knit_kni::v1;
use serde_json::{Value, json};

use crate::node_args::NodeArgs;
use crate::output::{self, TableFormat};

/// Selects objects.
pub struct Selector<'a> {
    /// The kind, plural or short name; `None` is all.
    pub kind: Option<&'a str>,
    /// The name; `None` is all.
    pub name: Option<&'a str>,
    /// The namespace; `None` is all.
    pub namespace: Option<&'a str>,
}

/// An object from a response.
struct ListedObject {
    name: v1::ObjectName,
    object: Object,
    response: v1::StandaloneObject,
}

/// Prints objects.
pub fn get(node: &NodeArgs, selector: &Selector<'_>, format: TableFormat) -> Result<ExitCode> {
    let objects = select(node, selector)?;
    match format {
        TableFormat::Json => output::json(&list(objects.iter().map(|listed| &listed.object)))?,
        TableFormat::Yaml => {
            let documents: Vec<String> = objects.iter().map(|listed| listed.object.to_yaml()).collect();
            output::text(&documents.join("---\n"))?;
        }
        TableFormat::Table | TableFormat::Wide => {
            output::text(&tables(&objects, format == TableFormat::Wide))?
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the details of objects.
pub fn describe(node: &NodeArgs, selector: &Selector<'_>) -> Result<ExitCode> {
    let mut text = String::new();
    for ListedObject { name, object, response } in select(node, selector)? {
        if !text.is_empty() {
            text += "\n";
        }
        text += &format!("Name:       {}\n", name.name);
        text +=
            &format!("Namespace:  {}\n", if name.namespace.is_empty() { "<none>" } else { &name.namespace });
        text += &format!("Kind:       {}\n", name.kind);
        if !response.file.is_empty() {
            text += &format!("File:       {}\n", response.file);
        }
        text += &spec_and_status(&object);
        text += &notes(&response);
    }
    output::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn select(node: &NodeArgs, selector: &Selector<'_>) -> Result<Vec<ListedObject>> {
    let kind = match selector.kind {
        None | Some("all" | "knit") => None,
        Some(kind) => Some(Object::find_kind(kind).with_context(|| unknown_kind(kind))?),
    };
    let list = node.local_api()?.list_objects(v1::ListObjectsRequest {
        kind: kind.map(|kind| kind.kind.clone()).unwrap_or_default(),
        namespace: selector.namespace.unwrap_or_default().to_owned(),
        name: selector.name.unwrap_or_default().to_owned(),
    })?;
    if let (Some(name), true) = (selector.name, list.objects.is_empty()) {
        bail!("{} {name} not found", selector.kind.unwrap_or("object"));
    }
    list.objects.into_iter().map(decode).collect()
}

fn decode(response: v1::StandaloneObject) -> Result<ListedObject> {
    let name = response.object.clone().unwrap_or_default();
    let manifest: Value =
        serde_json::from_str(&response.manifest).context("the agent returned an invalid object")?;
    let object = Object::from_manifest(&manifest);
    let object = object.with_context(|| {
        format!("{} {}: unknown kind or field: the agent has another version", name.kind, name.name)
    })?;
    Ok(ListedObject { name, object, response })
}

/// The name of the object from command line arguments.
pub fn object_name(kind: &str, name: &str, namespace: &str) -> Result<v1::ObjectName> {
    let kind = Object::find_kind(kind).with_context(|| unknown_kind(kind))?;
    let namespace = if kind.namespaced { namespace.to_owned() } else { String::new() };
    Ok(v1::ObjectName { kind: kind.kind.clone(), namespace, name: name.to_owned() })
}

fn unknown_kind(kind: &str) -> String {
    let known: Vec<&str> = Object::kinds().iter().map(|kind| kind.singular.as_str()).collect();
    format!("unknown kind `{kind}`; the kinds are {}", known.join(", "))
}

fn list<'a>(objects: impl Iterator<Item = &'a Object>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": objects.map(Object::to_value).collect::<Vec<_>>()})
}

/// One table for each kind, with the columns that kubectl prints.
fn tables(objects: &[ListedObject], wide: bool) -> String {
    if objects.is_empty() {
        return "no objects\n".to_owned();
    }
    let of_kind =
        |kind: &KindInfo| objects.iter().filter(|listed| listed.name.kind == kind.kind).collect::<Vec<_>>();
    let kinds =
        Object::kinds().iter().map(|kind| (kind, of_kind(kind))).filter(|(_, objects)| !objects.is_empty());
    let tables: Vec<String> = kinds.map(|(kind, objects)| table(kind, &objects, wide)).collect();
    tables.join("\n")
}

fn table(kind: &KindInfo, objects: &[&ListedObject], wide: bool) -> String {
    let columns: Vec<_> =
        kind.columns.iter().filter(|column| (wide || !column.wide) && column.type_ != "date").collect();
    let titles: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
    let header: Vec<&str> =
        ["NAMESPACE", "NAME"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    let rows = objects.iter().map(|ListedObject { name, object, .. }| {
        let value = object.to_value();
        let mut row = vec![name.namespace.clone(), format!("{}/{}", kind.singular, name.name)];
        row.extend(columns.iter().map(|column| value_at(&value, column.path)));
        row
    });
    output::table(&header, rows)
}

/// The value at a path such as `.spec.mtu`, `.spec.sockets[0].name` or `.status.conditions[?(@.type=="Ready")].status`.
fn value_at(value: &Value, path: &str) -> String {
    let mut current = value;
    for part in path.trim_start_matches('.').split('.').map(|part| part.trim_end_matches(")]")) {
        let (field, condition) =
            part.split_once("[?(@").map_or((part, None), |(field, rest)| (field, Some(rest)));
        current = match condition {
            // The split at `.` cuts the filter: its field and value are the next part.
            Some(_) => current.get(field).unwrap_or(&Value::Null),
            None => match part.split_once("==") {
                Some((field, expected)) => {
                    let expected = expected.trim_matches('"');
                    let items = current.as_array().map(Vec::as_slice).unwrap_or_default();
                    items
                        .iter()
                        .find(|item| item.get(field).and_then(Value::as_str) == Some(expected))
                        .unwrap_or(&Value::Null)
                }
                None => match part.strip_suffix("[0]") {
                    Some(list) => current.get(list).and_then(|list| list.get(0)).unwrap_or(&Value::Null),
                    None => current.get(part).unwrap_or(&Value::Null),
                },
            },
        };
    }
    match current {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(","),
        other => other.to_string(),
    }
}

/// The YAML of the object from its spec on.
fn spec_and_status(object: &Object) -> String {
    let yaml = object.to_yaml();
    let lines = yaml.lines().skip_while(|line| !line.starts_with("spec:"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn notes(response: &v1::StandaloneObject) -> String {
    let problems = response.problems.iter().map(|problem| format!("  Problem: {problem}\n"));
    let warnings = response.warnings.iter().map(|warning| format!("  Warning: {warning}\n"));
    let lines: String = problems.chain(warnings).collect();
    if lines.is_empty() { String::new() } else { format!("notes:\n{lines}") }
}
