//! Interface names that the kernel accepts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use thiserror::Error;

/// Maximum length of an interface name (`IFNAMSIZ` without the terminating NUL).
pub const MAX_NAME_BYTES: usize = 15;

/// A valid interface name.
///
/// Stored inline, because names are short and cloned often. The rest of the array is zero, which no name contains, so
/// that names compare like their texts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct IfName {
    bytes: [u8; MAX_NAME_BYTES],
    length: u8,
}

/// Why a text is not an interface name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// Empty.
    #[error("an interface name must not be empty")]
    Empty,
    /// Longer than the kernel's limit.
    #[error("interface name `{name}` has {bytes} bytes, the maximum is {MAX_NAME_BYTES}")]
    TooLong {
        /// The name.
        name: String,
        /// Its length.
        bytes: usize,
    },
    /// `.` and `..`, which are directories in `/sys/class/net`.
    #[error("interface name `{name}` is not allowed")]
    Reserved {
        /// The name.
        name: String,
    },
    /// A character that the kernel or its tools reject.
    #[error("interface name `{}` must not contain {}", .name.escape_debug(), describe(*.character))]
    Character {
        /// The name.
        name: String,
        /// The first rejected character.
        character: char,
    },
}

impl IfName {
    /// Validates the name.
    pub fn new(name: impl Into<String>) -> Result<Self, NameError> {
        let name = name.into();
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        // `%` is a format for kernel-assigned numbers, `:` an old-style alias; the kernel rejects the others.
        let is_rejected = |character: &char| {
            matches!(character, '/' | ':' | '%') || character.is_whitespace() || character.is_control()
        };
        if let Some(character) = name.chars().find(is_rejected) {
            return Err(NameError::Character { name, character });
        }
        if name == "." || name == ".." {
            return Err(NameError::Reserved { name });
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(NameError::TooLong { bytes: name.len(), name });
        }
        let mut bytes = [0; MAX_NAME_BYTES];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { bytes, length: name.len() as u8 })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("a name is built from a string")
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

fn describe(character: char) -> String {
    match character {
        ' ' => "a space".to_owned(),
        '\0' => "a NUL".to_owned(),
        other => format!("`{}`", other.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted() {
        for name in ["eth0", "pc02841804", "a", "exactly15bytes_", "net.1", "müh"] {
            assert_eq!(IfName::new(name).map(String::from).as_deref(), Ok(name));
        }
    }

    #[test]
    fn names_compare_like_their_texts() {
        let texts = ["a", "a1", "a10", "a2", "b", "exactly15bytes_", "exactly15bytez", "müh"];
        let names: Vec<_> = texts.iter().map(|text| IfName::new(*text).unwrap()).collect();
        assert!(texts.is_sorted() && names.is_sorted());
        assert_eq!(format!("{:?} {:>3}", names[0], names[0]), r#"IfName("a")   a"#);
    }

    #[test]
    fn invalid_names_are_rejected_with_a_reason() {
        let error = |name: &str| IfName::new(name).unwrap_err().to_string();
        assert_eq!(error(""), "an interface name must not be empty");
        assert_eq!(
            error("sixteen_bytes_xx"),
            "interface name `sixteen_bytes_xx` has 16 bytes, the maximum is 15"
        );
        assert_eq!(error(".."), "interface name `..` is not allowed");
        assert_eq!(error("a/b"), "interface name `a/b` must not contain `/`");
        assert_eq!(error("a b"), "interface name `a b` must not contain a space");
        assert_eq!(error("a\0b"), "interface name `a\\0b` must not contain a NUL");
        assert_eq!(error("veth%d"), "interface name `veth%d` must not contain `%`");
    }
}
