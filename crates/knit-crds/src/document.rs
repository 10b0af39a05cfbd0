//! A YAML tree with source locations, so that errors are reported with their line.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A location in the source text; line 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceLocation {
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
}

/// A value with its location.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) location: SourceLocation,
    pub(crate) content: Content,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Field>),
}

/// A field of a map.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) key: String,
    /// The location of the key.
    pub(crate) location: SourceLocation,
    pub(crate) value: Node,
}

impl Node {
    /// The field of this name.
    pub(crate) fn field(&self, key: &str) -> Option<&Node> {
        match &self.content {
            Content::Map(fields) => fields.iter().find(|field| field.key == key).map(|field| &field.value),
            _ => None,
        }
    }

    /// Its text, if it is a string.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Whether it is null: `null`, `~`, or an empty document.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Value::Null))
    }

    /// Its type, for messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match &self.content {
            Content::Map(_) => "a map",
            Content::List(_) => "a list",
            Content::Scalar(Value::Null) => "null",
            Content::Scalar(Value::Bool(_)) => "a boolean",
            Content::Scalar(Value::Number(number)) if number.is_f64() => "a float",
            Content::Scalar(Value::Number(_)) => "an integer",
            Content::Scalar(_) => "a string",
        }
    }

    /// The value without locations. A null field is the same as an absent field.
    pub(crate) fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(list) => list.iter().map(Self::value).collect(),
            Content::Map(fields) => {
                let present = fields.iter().filter(|field| !field.value.is_null());
                Value::Object(
                    present.map(|field| (field.key.clone(), field.value.value())).collect::<Map<_, _>>(),
                )
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Content>::deserialize(from)?;
        Ok(Self { location: SourceLocation::of(&spanned), content: spanned.value })
    }
}

impl SourceLocation {
    fn of<T>(spanned: &Spanned<T>) -> Self {
        let location = spanned.referenced;
        Self { line: location.line(), column: location.column() }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Content, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("must be a finite number"))?;
        Ok(Content::Scalar(number.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Content, D::Error> {
        Content::deserialize(from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = from.next_element()? {
            list.push(node);
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Content, A::Error> {
        let mut fields = Vec::new();
        while let Some(key) = from.next_key::<Spanned<String>>()? {
            let value = from.next_value()?;
            fields.push(Field { location: SourceLocation::of(&key), key: key.value, value });
        }
        Ok(Content::Map(fields))
    }
}
