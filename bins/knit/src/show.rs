//! `knit get`, `describe`: looking at objects and at what became of them.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use knit_crds::{KindInfo, Object};
use knit_kni::v1;
use serde_json::{Value, json};

use crate::output;
use crate::place::Place;

/// How `knit get` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// A table
    #[default]
    Table,
    /// A table with more columns
    Wide,
    /// The objects, for programs
    Json,
    /// The objects, for people and for `knit apply`
    Yaml,
}

/// Which objects are meant: a kind, and perhaps a name in a namespace.
pub struct Which<'a> {
    /// The kind, by any of its words; `None` is all.
    pub kind: Option<&'a str>,
    /// The name; `None` is all.
    pub name: Option<&'a str>,
    /// The namespace; `None` is all.
    pub namespace: Option<&'a str>,
}

/// An object as it was answered.
struct Shown {
    name: v1::ObjectName,
    object: Object,
    answered: v1::StandaloneObject,
}

/// Prints objects.
pub fn get(place: &Place, which: &Which<'_>, form: Form) -> Result<ExitCode> {
    let objects = select(place, which)?;
    match form {
        Form::Json => output::json(&list(objects.iter().map(|shown| &shown.object)))?,
        Form::Yaml => {
            let documents: Vec<String> = objects.iter().map(|shown| shown.object.to_yaml()).collect();
            output::text(&documents.join("---\n"))?;
        }
        Form::Table | Form::Wide => output::text(&tables(&objects, form == Form::Wide))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints all there is to say about objects.
pub fn describe(place: &Place, which: &Which<'_>) -> Result<ExitCode> {
    let mut text = String::new();
    for Shown { name, object, answered } in select(place, which)? {
        if !text.is_empty() {
            text += "\n";
        }
        text += &format!("Name:       {}\n", name.name);
        text +=
            &format!("Namespace:  {}\n", if name.namespace.is_empty() { "<none>" } else { &name.namespace });
        text += &format!("Kind:       {}\n", name.kind);
        if !answered.file.is_empty() {
            text += &format!("File:       {}\n", answered.file);
        }
        text += &spec_and_status(&object);
        text += &reasons(&answered);
    }
    output::text(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn select(place: &Place, which: &Which<'_>) -> Result<Vec<Shown>> {
    let kind = match which.kind {
        None | Some("all" | "knit") => None,
        Some(word) => Some(Object::find_kind(word).with_context(|| unknown_kind(word))?),
    };
    let answer = place.desk()?.list_objects(v1::ListObjectsRequest {
        kind: kind.map(|kind| kind.kind.clone()).unwrap_or_default(),
        namespace: which.namespace.unwrap_or_default().to_owned(),
        name: which.name.unwrap_or_default().to_owned(),
    })?;
    if let (Some(name), true) = (which.name, answer.objects.is_empty()) {
        bail!("there is no {} {name}", which.kind.unwrap_or("object"));
    }
    answer.objects.into_iter().map(shown).collect()
}

fn shown(answered: v1::StandaloneObject) -> Result<Shown> {
    let name = answered.object.clone().unwrap_or_default();
    let manifest: Value =
        serde_json::from_str(&answered.manifest).context("the agent's objects are no JSON")?;
    let object = Object::from_manifest(&manifest);
    let object =
        object.with_context(|| format!("{} {}: this knit does not know it", name.kind, name.name))?;
    Ok(Shown { name, object, answered })
}

/// The identity of an object by what a person typed.
pub fn name(kind: &str, name: &str, namespace: &str) -> Result<v1::ObjectName> {
    let kind = Object::find_kind(kind).with_context(|| unknown_kind(kind))?;
    let namespace = if kind.namespaced { namespace.to_owned() } else { String::new() };
    Ok(v1::ObjectName { kind: kind.kind.clone(), namespace, name: name.to_owned() })
}

fn unknown_kind(word: &str) -> String {
    let known: Vec<&str> = Object::kinds().iter().map(|kind| kind.singular.as_str()).collect();
    format!("there is no kind `{word}`; there are {}", known.join(", "))
}

fn list<'a>(objects: impl Iterator<Item = &'a Object>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": objects.map(Object::to_value).collect::<Vec<_>>()})
}

/// One table for each kind, with the columns that kubectl shows.
fn tables(objects: &[Shown], wide: bool) -> String {
    if objects.is_empty() {
        return "no objects\n".to_owned();
    }
    let of_kind =
        |kind: &KindInfo| objects.iter().filter(|shown| shown.name.kind == kind.kind).collect::<Vec<_>>();
    let kinds =
        Object::kinds().iter().map(|kind| (kind, of_kind(kind))).filter(|(_, objects)| !objects.is_empty());
    let tables: Vec<String> = kinds.map(|(kind, objects)| table(kind, &objects, wide)).collect();
    tables.join("\n")
}

fn table(kind: &KindInfo, objects: &[&Shown], wide: bool) -> String {
    let columns: Vec<_> =
        kind.columns.iter().filter(|column| (wide || !column.wide) && column.type_ != "date").collect();
    let titles: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
    let header: Vec<&str> =
        ["NAMESPACE", "NAME"].into_iter().chain(titles.iter().map(String::as_str)).collect();
    let rows = objects.iter().map(|Shown { name, object, .. }| {
        let value = object.to_value();
        let mut row = vec![name.namespace.clone(), format!("{}/{}", kind.singular, name.name)];
        row.extend(columns.iter().map(|column| at(&value, column.path)));
        row
    });
    output::table(&header, rows)
}

/// The value at a path such as `.spec.mtu`, `.spec.sockets[0].name` or `.status.conditions[?(@.type=="Ready")].status`.
fn at(value: &Value, path: &str) -> String {
    let mut here = value;
    for word in path.trim_start_matches('.').split('.').map(|word| word.trim_end_matches(")]")) {
        let (field, condition) =
            word.split_once("[?(@").map_or((word, None), |(field, rest)| (field, Some(rest)));
        here = match condition {
            // The filter's own path was cut off by the split: it is the next word.
            Some(_) => here.get(field).unwrap_or(&Value::Null),
            None => match word.split_once("==") {
                Some((field, wanted)) => {
                    let wanted = wanted.trim_matches('"');
                    let items = here.as_array().map(Vec::as_slice).unwrap_or_default();
                    items
                        .iter()
                        .find(|item| item.get(field).and_then(Value::as_str) == Some(wanted))
                        .unwrap_or(&Value::Null)
                }
                None => match word.strip_suffix("[0]") {
                    Some(list) => here.get(list).and_then(|list| list.get(0)).unwrap_or(&Value::Null),
                    None => here.get(word).unwrap_or(&Value::Null),
                },
            },
        };
    }
    match here {
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

/// The object as YAML, in the order in which its kind lists the fields, without what the lines above it said.
fn spec_and_status(object: &Object) -> String {
    let yaml = object.to_yaml();
    let lines = yaml.lines().skip_while(|line| !line.starts_with("spec:"));
    lines.map(|line| format!("{line}\n")).collect()
}

fn reasons(answered: &v1::StandaloneObject) -> String {
    let problems = answered.problems.iter().map(|problem| format!("  Problem: {problem}\n"));
    let warnings = answered.warnings.iter().map(|warning| format!("  Warning: {warning}\n"));
    let lines: String = problems.chain(warnings).collect();
    if lines.is_empty() { String::new() } else { format!("notes:\n{lines}") }
}
