//! Parsing objects from YAML or JSON, and serializing them.

use std::fmt;

use serde_json::Value;

use crate::document::{Content, Node, SourceLocation};
use crate::fields::{invalid_object_name, is_object_name};
use crate::kinds::Object;
use crate::structure;

/// An error in a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// The location in the text.
    pub location: SourceLocation,
    /// The field, such as `spec.links[1].mtu`; empty for the whole document.
    pub field: String,
    /// The error message.
    pub message: String,
}

/// All errors of a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseErrors(pub Vec<ParseError>);

impl Object {
    /// Parses a text that contains exactly one object.
    pub fn parse(text: &str) -> Result<Self, ParseErrors> {
        let mut objects = Self::parse_all(text)?;
        match objects.len() {
            1 => Ok(objects.remove(0)),
            count => Err(ParseErrors(vec![error(
                SourceLocation::default(),
                "",
                format!("must contain exactly one object, got {count}"),
            )])),
        }
    }

    /// Parses all objects of a text: documents are separated by `---`, empty ones are skipped, and a `List` yields its
    /// items.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, ParseErrors> {
        // YAML 1.2 booleans only: `n`, `on` and `yes` are valid interface names.
        let options = serde_saphyr::options! { strict_booleans: true };
        let documents: Vec<Node> = serde_saphyr::from_multiple_with_options(text, options)
            .map_err(|failure| ParseErrors(vec![syntax(&failure)]))?;
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for node in documents.iter().filter(|node| !node.is_null()).flat_map(items) {
            match read(node) {
                Ok(object) => objects.push(object),
                Err(mut found) => errors.append(&mut found),
            }
        }
        if errors.is_empty() { Ok(objects) } else { Err(ParseErrors(errors)) }
    }

    /// The object as YAML.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("an object is serializable")
    }
}

/// The items of a list, or the document itself.
fn items(document: &Node) -> Vec<&Node> {
    match document.field("items").map(|items| &items.content) {
        Some(Content::List(items)) if document.field("kind").and_then(Node::text) == Some("List") => {
            items.iter().collect()
        }
        _ => vec![document],
    }
}

fn read(document: &Node) -> Result<Object, Vec<ParseError>> {
    let kind = kind_of(document).map_err(|error| vec![error])?;
    let mut errors = structure::check(kind, document);
    check_name(document, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    match Object::from_value(kind, document.value()) {
        Some(Ok(object)) => Ok(object),
        Some(Err(failure)) => Err(vec![error(document.location, "", failure.to_string())]),
        None => Err(vec![error(document.location, "kind", format!("unknown kind `{kind}`"))]),
    }
}

/// The kind, if it is a known kind of a supported version.
fn kind_of(document: &Node) -> Result<&'static str, ParseError> {
    if !matches!(document.content, Content::Map(_)) {
        let message = format!(
            "must be an object with `apiVersion`, `kind` and `metadata`, got {}",
            document.type_name()
        );
        return Err(error(document.location, "", message));
    }
    let text = |field: &'static str| {
        let node = document.field(field);
        let text = node.and_then(Node::text);
        text.zip(node).ok_or_else(|| error(document.location, field, format!("{field} must be set")))
    };
    let (kind, kind_node) = text("kind")?;
    let Some(info) = Object::kinds().iter().find(|info| info.kind == kind) else {
        let known: Vec<&str> = Object::kinds().iter().map(|info| info.kind.as_str()).collect();
        let message = format!("unknown kind `{}`, must be one of {}", kind.escape_debug(), known.join(", "));
        return Err(error(kind_node.location, "kind", message));
    };
    let (version, version_node) = text("apiVersion")?;
    if version != info.api_version() {
        let message =
            format!("must be {} for a {kind}, got `{}`", info.api_version(), version.escape_debug());
        return Err(error(version_node.location, "apiVersion", message));
    }
    Ok(&info.kind)
}

fn check_name(document: &Node, errors: &mut Vec<ParseError>) {
    // A null field is the same as an absent field.
    let name = document.field("metadata").and_then(|metadata| metadata.field("name"));
    match name.filter(|name| !name.is_null()) {
        None => errors.push(error(document.location, "metadata.name", "must be set")),
        Some(node) => {
            let name = node.text().unwrap_or_default();
            if node.text().is_some() && !is_object_name(name) {
                errors.push(error(node.location, "metadata.name", invalid_object_name(name)));
            }
        }
    }
}

fn error(location: SourceLocation, field: &str, message: impl Into<String>) -> ParseError {
    ParseError { location, field: field.to_owned(), message: message.into() }
}

/// A YAML syntax error. The parser repeats the location after its message and quotes the text below it.
fn syntax(failure: &serde_saphyr::Error) -> ParseError {
    let location = failure
        .location()
        .map(|at| SourceLocation { line: at.line(), column: at.column() })
        .unwrap_or_default();
    let bare = failure.without_snippet();
    let message = match bare {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key `{key}`"),
        _ => {
            let text = bare.to_string();
            let first = text.lines().next().unwrap_or_default();
            first.split(" at line ").next().unwrap_or_default().to_owned()
        }
    };
    ParseError { location, field: String::new(), message }
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.location.line > 0 {
            write!(out, "line {}: ", self.location.line)?;
        }
        if !self.field.is_empty() {
            write!(out, "{}: ", self.field)?;
        }
        out.write_str(&self.message)
    }
}

impl fmt::Display for ParseErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(out, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl Object {
    /// The object as JSON.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("an object is serializable")
    }
}

impl Object {
    /// Parses a stored manifest; `None` if it is not an object of Knit.
    pub fn from_manifest(manifest: &Value) -> Option<Self> {
        let kind = manifest.get("kind")?.as_str()?;
        Self::from_value(kind, manifest.clone())?.ok()
    }
}
