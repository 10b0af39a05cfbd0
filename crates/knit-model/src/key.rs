//! Keys of tunnels. A secret key is never part of a plan, a journal, a status or a log: those refer to a key by its source
//! and its public key.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// Length of a key.
pub const KEY_BYTES: usize = 32;

/// A Curve25519 public key, written in base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

/// A secret key. It implements neither `Display` nor serde, so that it cannot be printed or stored by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey([u8; KEY_BYTES]);

/// The source of a secret key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRef {
    /// Generated on the node for the attachment with this id. The id is empty in an intent, which does not know it.
    Generated {
        /// The attachment's id.
        id: String,
    },
    /// An entry of a Kubernetes Secret.
    Secret {
        /// Namespace of the Secret.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// Key of the entry.
        key: String,
    },
}

/// A reference to a secret key. Desired state has its source, observed state its public key. An unset field is not
/// compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKey {
    /// The source.
    pub source: Option<KeyRef>,
    /// The public key, which reveals nothing about the secret. [`PublicKey::NONE`]: no key is set.
    pub public: Option<PublicKey>,
}

impl PublicKey {
    /// All zeros: what the kernel reports if no key is set.
    pub const NONE: Self = Self([0; KEY_BYTES]);

    /// From its bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl PrivateKey {
    /// From its bytes: a private key, a preshared key, or random bytes.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Parses the output of `wg genkey`. The error never contains the text.
    pub fn parse(text: &str) -> Result<Self, ParseKeyError> {
        decode(text.trim()).map(Self).map_err(|reason| ParseKeyError { text: None, reason })
    }

    /// Its text form, to be stored where only root can read it.
    pub fn reveal(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// Its bytes, for the kernel.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The public key of this secret key.
    pub fn public(&self) -> PublicKey {
        if self.0 == [0; KEY_BYTES] {
            return PublicKey::NONE;
        }
        PublicKey(x25519(self.0, X25519_BASEPOINT_BYTES))
    }
}

impl SecretKey {
    /// A key with this source.
    pub fn from_source(key: KeyRef) -> Self {
        Self { source: Some(key), public: None }
    }

    /// The key with this public key.
    pub fn with_public_key(public: PublicKey) -> Self {
        Self { source: None, public: Some(public) }
    }

    /// No key is set.
    pub fn none() -> Self {
        Self::with_public_key(PublicKey::NONE)
    }
}

/// A text that is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}a key is 32 bytes in base64 (44 characters that end with `=`): {reason}", text.as_ref().map(|text| format!("`{}`: ", text.escape_debug())).unwrap_or_default())]
pub struct ParseKeyError {
    /// The text, unless it could be a secret.
    text: Option<String>,
    reason: String,
}

fn decode(text: &str) -> Result<[u8; KEY_BYTES], String> {
    let bytes = STANDARD.decode(text).map_err(|_| "not valid base64".to_owned())?;
    let length = bytes.len();
    bytes.try_into().map_err(|_| format!("this text has {length} bytes"))
}

impl FromStr for PublicKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, ParseKeyError> {
        decode(text).map(Self).map_err(|reason| ParseKeyError { text: Some(text.to_owned()), reason })
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PublicKey({self})")
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PrivateKey(redacted)")
    }
}

impl fmt::Display for KeyRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generated { .. } => out.write_str("the key generated on the node"),
            Self::Secret { namespace, name, key } => {
                write!(out, "key {key} of Secret {name} in namespace {namespace}")
            }
        }
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7748, section 6.1.
    const PRIVATE: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
    const PUBLIC: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

    #[test]
    fn a_public_key_is_derived_from_its_secret() {
        let key = PrivateKey::parse(&format!("{PRIVATE}\n")).unwrap();
        assert_eq!(key.public().to_string(), PUBLIC);
        assert_eq!(key.reveal(), PRIVATE);
        assert_eq!(PrivateKey::from_bytes([0; 32]).public(), PublicKey::NONE);
    }

    #[test]
    fn a_secret_is_never_printed() {
        let key = PrivateKey::parse(PRIVATE).unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey(redacted)");
        let wrong = PrivateKey::parse("dwdtCnMYpX08FsFyUbJm").unwrap_err().to_string();
        assert_eq!(
            wrong,
            "a key is 32 bytes in base64 (44 characters that end with `=`): this text has 15 bytes"
        );
        assert!(!PrivateKey::parse("dwdtCn!").unwrap_err().to_string().contains("dwdtCn"));
    }

    #[test]
    fn an_invalid_public_key_is_named_in_the_error() {
        let wrong = "abc".parse::<PublicKey>().unwrap_err().to_string();
        assert_eq!(
            wrong,
            "`abc`: a key is 32 bytes in base64 (44 characters that end with `=`): not valid base64"
        );
        let key: PublicKey = PUBLIC.parse().unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("\"{PUBLIC}\""));
        assert_eq!(serde_json::from_str::<PublicKey>(&format!("\"{PUBLIC}\"")).unwrap(), key);
    }
}
