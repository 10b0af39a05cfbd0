//! Writes records as JSON, byte for byte as `serde_json` does.
//!
//! Every change of a unit waits for two records of thousands of bytes, mostly names. `serde_json` looks at each byte of each text by
//! itself, which took more time than everything else about a record.

mod compound;
#[cfg(test)]
mod tests;

use std::io::Write;

use serde::ser::{Serialize, Serializer};
use serde_json::Error;

use compound::Compound;

/// Appends the JSON of a value.
pub(crate) fn append(to: &mut Vec<u8>, value: &impl Serialize) -> Result<(), Error> {
    value.serialize(&mut Json { bytes: to })
}

/// The JSON so far.
struct Json<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Json<'_> {
    fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.bytes.extend_from_slice(&digits[start..]);
    }

    fn text(&mut self, text: &str) {
        self.bytes.push(b'"');
        // Without a branch per byte.
        if text.bytes().fold(false, |found, byte| found | is_escaped(byte)) {
            text.bytes().for_each(|byte| self.escape(byte));
        } else {
            self.raw(text);
        }
        self.bytes.push(b'"');
    }

    fn escape(&mut self, byte: u8) {
        match byte {
            b'"' => self.raw("\\\""),
            b'\\' => self.raw("\\\\"),
            b'\n' => self.raw("\\n"),
            b'\r' => self.raw("\\r"),
            b'\t' => self.raw("\\t"),
            0x08 => self.raw("\\b"),
            0x0c => self.raw("\\f"),
            byte if is_escaped(byte) => {
                write!(self.bytes, "\\u{byte:04x}").expect("writing to memory does not fail");
            }
            byte => self.bytes.push(byte),
        }
    }

    /// Begins the object around the content of an enum's variant.
    fn variant(&mut self, name: &str) {
        self.bytes.push(b'{');
        self.text(name);
        self.bytes.push(b':');
    }
}

/// Whether JSON escapes a byte of a text.
fn is_escaped(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// Types that `serde_json` writes, because they are rare.
macro_rules! rare {
    ($($method:ident $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<(), Error> {
            serde_json::to_writer(&mut *self.bytes, &value)
        })*
    };
}

macro_rules! numbers {
    ($($method:ident $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<(), Error> {
            self.number(u64::from(value));
            Ok(())
        })*
    };
}

impl<'j, 'a> Serializer for &'j mut Json<'a> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Compound<'j, 'a>;
    type SerializeTuple = Compound<'j, 'a>;
    type SerializeTupleStruct = Compound<'j, 'a>;
    type SerializeTupleVariant = Compound<'j, 'a>;
    type SerializeMap = Compound<'j, 'a>;
    type SerializeStruct = Compound<'j, 'a>;
    type SerializeStructVariant = Compound<'j, 'a>;

    numbers!(serialize_u8 u8, serialize_u16 u16, serialize_u32 u32, serialize_u64 u64);
    rare!(
        serialize_i8 i8, serialize_i16 i16, serialize_i32 i32, serialize_i64 i64, serialize_i128 i128,
        serialize_u128 u128, serialize_f32 f32, serialize_f64 f64, serialize_bytes &[u8]
    );

    fn serialize_bool(self, value: bool) -> Result<(), Error> {
        self.raw(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Error> {
        self.text(value.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    fn serialize_str(self, text: &str) -> Result<(), Error> {
        self.text(text);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.raw("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Error> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.variant(variant);
        value.serialize(&mut *self)?;
        self.bytes.push(b'}');
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'j, 'a>, Error> {
        Ok(Compound::new(self, '[', "]"))
    }

    fn serialize_tuple(self, _: usize) -> Result<Compound<'j, 'a>, Error> {
        Ok(Compound::new(self, '[', "]"))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Compound<'j, 'a>, Error> {
        Ok(Compound::new(self, '[', "]"))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'j, 'a>, Error> {
        self.variant(variant);
        Ok(Compound::new(self, '[', "]}"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Compound<'j, 'a>, Error> {
        Ok(Compound::new(self, '{', "}"))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Compound<'j, 'a>, Error> {
        Ok(Compound::new(self, '{', "}"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'j, 'a>, Error> {
        self.variant(variant);
        Ok(Compound::new(self, '{', "}}"))
    }
}
