//! Objects from YAML or JSON, and back.

use std::fmt;

use serde_json::Value;

use crate::document::{Content, Node, Place};
use crate::fields::{is_object_name, object_name_sentence};
use crate::kinds::Object;
use crate::structure;

/// Why a document is no object of Knit's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseError {
    /// Where in the text.
    pub place: Place,
    /// The field, such as `spec.links[1].mtu`; empty when it is the whole document.
    pub field: String,
    /// The sentence for people.
    pub message: String,
}

/// Everything that is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseErrors(pub Vec<ParseError>);

impl Object {
    /// The one object that a text holds.
    pub fn parse(text: &str) -> Result<Self, ParseErrors> {
        let mut objects = Self::parse_all(text)?;
        match objects.len() {
            1 => Ok(objects.remove(0)),
            count => Err(ParseErrors(vec![error(
                Place::default(),
                "",
                format!("expected one object, there are {count}"),
            )])),
        }
    }

    /// Every object of a text: documents are separated by `---`, empty ones are skipped, a `List` gives its items.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, ParseErrors> {
        // `n`, `on` and `yes` are texts: an interface may be called so, and only `true` and `false` are booleans.
        let options = serde_saphyr::options! { strict_booleans: true };
        let documents: Vec<Node> = serde_saphyr::from_multiple_with_options(text, options)
            .map_err(|failure| ParseErrors(vec![syntax(&failure)]))?;
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for node in documents.iter().filter(|node| !node.is_null()).flat_map(items) {
            match read(node) {
                Ok(object) => objects.push(object),
                Err(mut wrong) => errors.append(&mut wrong),
            }
        }
        if errors.is_empty() { Ok(objects) } else { Err(ParseErrors(errors)) }
    }

    /// The object as YAML.
    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("an object is plain data")
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
        Some(Err(failure)) => Err(vec![error(document.place, "", failure.to_string())]),
        None => Err(vec![error(document.place, "kind", format!("kind `{kind}` is not known"))]),
    }
}

/// The kind, if it is one of Knit's and of a version that this program knows.
fn kind_of(document: &Node) -> Result<&'static str, ParseError> {
    if !matches!(document.content, Content::Map(_)) {
        let message = format!(
            "expected an object with `apiVersion`, `kind` and `metadata`, this is {}",
            document.type_word()
        );
        return Err(error(document.place, "", message));
    }
    let text = |field: &'static str| {
        let node = document.field(field);
        let text = node.and_then(Node::text);
        text.zip(node).ok_or_else(|| error(document.place, field, format!("`{field}` is missing")))
    };
    let (kind, kind_node) = text("kind")?;
    let Some(info) = Object::kinds().iter().find(|info| info.kind == kind) else {
        let known: Vec<&str> = Object::kinds().iter().map(|info| info.kind.as_str()).collect();
        let message = format!("kind `{}` is not known, there are {}", kind.escape_debug(), known.join(", "));
        return Err(error(kind_node.place, "kind", message));
    };
    let (version, version_node) = text("apiVersion")?;
    if version != info.api_version() {
        let message = format!("a {kind} is of {}, not of `{}`", info.api_version(), version.escape_debug());
        return Err(error(version_node.place, "apiVersion", message));
    }
    Ok(&info.kind)
}

fn check_name(document: &Node, errors: &mut Vec<ParseError>) {
    match document.field("metadata").and_then(|metadata| metadata.field("name")) {
        None => errors.push(error(document.place, "metadata.name", "the object needs a name")),
        Some(node) => {
            let name = node.text().unwrap_or_default();
            if node.text().is_some() && !is_object_name(name) {
                errors.push(error(node.place, "metadata.name", object_name_sentence(name)));
            }
        }
    }
}

fn error(place: Place, field: &str, message: impl Into<String>) -> ParseError {
    ParseError { place, field: field.to_owned(), message: message.into() }
}

/// A text that is no YAML. The parser says the place again behind its words, and draws the text below them.
fn syntax(failure: &serde_saphyr::Error) -> ParseError {
    let place =
        failure.location().map(|at| Place { line: at.line(), column: at.column() }).unwrap_or_default();
    let bare = failure.without_snippet();
    let message = match bare {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => format!("`{key}` is there twice"),
        _ => {
            let words = bare.to_string();
            let first = words.lines().next().unwrap_or_default();
            first.split(" at line ").next().unwrap_or_default().to_owned()
        }
    };
    ParseError { place, field: String::new(), message }
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.line > 0 {
            write!(out, "line {}: ", self.place.line)?;
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
        serde_json::to_value(self).expect("an object is plain data")
    }
}

impl Object {
    /// The object that a stored manifest describes; `None` if it is not one of Knit's.
    pub fn from_manifest(manifest: &Value) -> Option<Self> {
        let kind = manifest.get("kind")?.as_str()?;
        Self::from_value(kind, manifest.clone())?.ok()
    }
}
