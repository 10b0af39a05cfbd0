//! Interface names, as the kernel accepts them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

/// An interface name holds at most this many bytes (`IFNAMSIZ` less the closing zero).
pub const MAX_BYTES: usize = 15;

/// A valid interface name. Holding one means that the kernel will take it.
///
/// It is held in place: names are cloned everywhere, and are short. What follows the text is zero, which no name
/// contains, so that names compare as their texts do.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct IfName {
    bytes: [u8; MAX_BYTES],
    length: u8,
}

/// Why a name is not an interface name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Nothing at all.
    #[error("an interface name must not be empty")]
    Empty,
    /// More than the kernel's limit.
    #[error("interface name `{name}` has {bytes} bytes, the kernel takes at most {MAX_BYTES}")]
    TooLong {
        /// The name.
        name: String,
        /// Its length.
        bytes: usize,
    },
    /// `.` and `..` would be folders in `/sys/class/net`.
    #[error("interface name `{name}` is not allowed")]
    Dots {
        /// The name.
        name: String,
    },
    /// A character that the kernel or its tools refuse.
    #[error("interface name `{}` must not contain {}", .name.escape_debug(), describe(*.letter))]
    Letter {
        /// The name.
        name: String,
        /// The first character that is refused.
        letter: char,
    },
}

impl IfName {
    /// Checks the name.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        // `%` would make the kernel choose a number; `:` is an old alias; the rest it refuses itself.
        let refused = |letter: &char| {
            matches!(letter, '/' | ':' | '%') || letter.is_whitespace() || letter.is_control()
        };
        if let Some(letter) = name.chars().find(refused) {
            return Err(NameError::Letter { name, letter });
        }
        if name == "." || name == ".." {
            return Err(NameError::Dots { name });
        }
        if name.len() > MAX_BYTES {
            return Err(NameError::TooLong { bytes: name.len(), name });
        }
        let mut bytes = [0; MAX_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { bytes, length: name.len() as u8 })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("a name is made of text")
    }
}

impl Serialize for IfName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl fmt::Debug for IfName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("IfName").field(&self.as_str()).finish()
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

impl FromStr for IfName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl TryFrom<String> for IfName {
    type Error = NameError;

    fn try_from(name: String) -> Result<Self, NameError> {
        Self::new(name)
    }
}

impl From<IfName> for String {
    fn from(name: IfName) -> Self {
        name.as_str().to_owned()
    }
}

fn describe(letter: char) -> String {
    match letter {
        ' ' => "a space".to_owned(),
        '\0' => "a NUL".to_owned(),
        other => format!("`{}`", other.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_takes_is_a_name() {
        for name in ["eth0", "pc02841804", "a", "exactly15bytes_", "net.1", "müh"] {
            assert_eq!(IfName::new(name).map(String::from).as_deref(), Ok(name));
        }
    }

    #[test]
    fn names_compare_as_their_texts_do() {
        let texts = ["a", "a1", "a10", "a2", "b", "exactly15bytes_", "exactly15bytez", "müh"];
        let names: Vec<_> = texts.iter().map(|text| IfName::new(*text).unwrap()).collect();
        assert!(texts.is_sorted() && names.is_sorted());
        assert_eq!(format!("{:?} {:>3}", names[0], names[0]), r#"IfName("a")   a"#);
    }

    #[test]
    fn what_the_kernel_refuses_is_named_in_words() {
        let words = |name: &str| IfName::new(name).unwrap_err().to_string();
        assert_eq!(words(""), "an interface name must not be empty");
        assert_eq!(
            words("sixteen_bytes_xx"),
            "interface name `sixteen_bytes_xx` has 16 bytes, the kernel takes at most 15"
        );
        assert_eq!(words(".."), "interface name `..` is not allowed");
        assert_eq!(words("a/b"), "interface name `a/b` must not contain `/`");
        assert_eq!(words("a b"), "interface name `a b` must not contain a space");
        assert_eq!(words("a\0b"), "interface name `a\\0b` must not contain a NUL");
        assert_eq!(words("veth%d"), "interface name `veth%d` must not contain `%`");
    }
}
