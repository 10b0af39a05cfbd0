//! Arrays and objects.

use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant,
};
use serde_json::Error;

use super::Json;

/// An array or object that is being written.
pub(super) struct Compound<'j, 'a> {
    json: &'j mut Json<'a>,
    is_empty: bool,
    end: &'static str,
}

impl<'j, 'a> Compound<'j, 'a> {
    pub(super) fn new(json: &'j mut Json<'a>, start: char, end: &'static str) -> Self {
        json.bytes.push(start as u8);
        Self { json, is_empty: true, end }
    }

    fn separate(&mut self) {
        if !self.is_empty {
            self.json.bytes.push(b',');
        }
        self.is_empty = false;
    }

    fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.separate();
        value.serialize(&mut *self.json)
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), Error> {
        self.separate();
        self.json.text(name);
        self.json.bytes.push(b':');
        value.serialize(&mut *self.json)
    }

    fn finish(self) -> Result<(), Error> {
        self.json.raw(self.end);
        Ok(())
    }
}

impl SerializeMap for Compound<'_, '_> {
    type Ok = ();
    type Error = Error;

    /// Numbers and booleans are quoted, as `serde_json` does.
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.separate();
        let start = self.json.bytes.len();
        key.serialize(&mut *self.json)?;
        match self.json.bytes.get(start) {
            Some(b'"') => {}
            Some(b'-' | b'0'..=b'9' | b't' | b'f') => {
                self.json.bytes.insert(start, b'"');
                self.json.bytes.push(b'"');
            }
            _ => return Err(Error::custom("key must be a string")),
        }
        self.json.bytes.push(b':');
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut *self.json)
    }

    fn end(self) -> Result<(), Error> {
        self.finish()
    }
}

macro_rules! arrays {
    ($($of:ident $method:ident),*) => {
        $(impl $of for Compound<'_, '_> {
            type Ok = ();
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                self.element(value)
            }

            fn end(self) -> Result<(), Error> {
                self.finish()
            }
        })*
    };
}

arrays!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);

macro_rules! objects {
    ($($of:ident),*) => {
        $(impl $of for Compound<'_, '_> {
            type Ok = ();
            type Error = Error;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Error> {
                self.field(name, value)
            }

            fn end(self) -> Result<(), Error> {
                self.finish()
            }
        })*
    };
}

objects!(SerializeStruct, SerializeStructVariant);
