//! `knit get`, `describe`: objects and their status.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use knit_crds::{KindInfo, Object};
use knit_kni::v1;
use serde_json::{Value, json};
use serde_json_path::JsonPath;

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
            output::text(&tables(&objects, format == TableFormat::Wide)?)?
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
fn tables(objects: &[ListedObject], wide: bool) -> Result<String> {
    if objects.is_empty() {
        return Ok("no objects\n".to_owned());
    }
    let of_kind =
        |kind: &KindInfo| objects.iter().filter(|listed| listed.name.kind == kind.kind).collect::<Vec<_>>();
    let kinds =
        Object::kinds().iter().map(|kind| (kind, of_kind(kind))).filter(|(_, objects)| !objects.is_empty());
    let tables: Result<Vec<String>> = kinds.map(|(kind, objects)| table(kind, &objects, wide)).collect();
    Ok(tables?.join("\n"))
}

fn table(kind: &KindInfo, objects: &[&ListedObject], wide: bool) -> Result<String> {
    let columns: Vec<_> =
        kind.columns.iter().filter(|column| (wide || !column.wide) && column.type_ != "date").collect();
    let titles: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
    let header: Vec<&str> =
        ["NAMESPACE", "NAME"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    let rows = objects.iter().map(|ListedObject { name, object, .. }| {
        let value = object.to_value();
        let mut row = vec![name.namespace.clone(), format!("{}/{}", kind.singular, name.name)];
        for column in &columns {
            row.push(value_at(&value, column.path)?);
        }
        Ok(row)
    });
    let rows: Vec<Vec<String>> = rows.collect::<Result<_>>()?;
    Ok(output::table(&header, rows))
}

/// The values at the path of a printer column, a JSONPath without its `$`: `.spec.mtu`, `.spec.sockets[0].name` or
/// `.status.conditions[?(@.type=="Ready")].status`.
fn value_at(value: &Value, path: &str) -> Result<String> {
    let parsed = JsonPath::parse(&format!("${path}"));
    let parsed = parsed.with_context(|| format!("invalid path of a column: {path}"))?;
    let found = parsed.query(value).all();
    let values = found.into_iter().flat_map(|value| match value {
        Value::Array(items) => items.iter().collect(),
        one => vec![one],
    });
    let texts = values.filter_map(|value| match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    });
    Ok(texts.collect::<Vec<_>>().join(","))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_every_column_is_valid() {
        for kind in Object::kinds() {
            for column in &kind.columns {
                value_at(&json!({}), column.path).unwrap_or_else(|error| panic!("{}: {error:#}", kind.kind));
            }
        }
    }

    #[test]
    fn columns_have_the_values_that_kubectl_prints() {
        let object = json!({
            "spec": {"mtu": 9000, "master": null, "sockets": [{"name": "a"}, {"name": "b"}],
                "subnets": ["10.0.0.0/24", "fd00::/64"], "ports": [{"from": 1}]},
            "status": {"conditions": [
                {"type": "Stalled", "status": "False"},
                {"type": "Ready", "status": "True", "message": "v1.2: ok (all)"},
            ]},
        });
        let text = |path| value_at(&object, path).unwrap();
        assert_eq!(text(".spec.mtu"), "9000");
        assert_eq!(text(".spec.subnets"), "10.0.0.0/24,fd00::/64");
        assert_eq!(text(".spec.sockets[0].name"), "a");
        assert_eq!(text(".spec.sockets[1].name"), "b");
        assert_eq!(text(".spec.sockets[*].name"), "a,b");
        assert_eq!(text(".spec.ports"), r#"{"from":1}"#);
        assert_eq!(text(r#".status.conditions[?(@.type=="Ready")].status"#), "True");
        assert_eq!(text(r#".status.conditions[?(@.type=="Ready")].message"#), "v1.2: ok (all)");
        for missing in [".spec.master", ".spec.none.below", r#".status.conditions[?(@.type=="No")].status"#] {
            assert_eq!(text(missing), "", "{missing}");
        }
        assert!(value_at(&object, "spec[").is_err());
    }
}
