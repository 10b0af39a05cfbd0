//! Keys of tunnels. What is secret is never part of a plan, a journal, a status or a log: those name a key by where it
//! comes from and by the public key that belongs to it.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

/// How many bytes a key has.
pub const KEY_BYTES: usize = 32;

/// A public key (Curve25519), written in base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_BYTES]);

/// A secret key. It can be neither printed nor stored by accident: it has no text and no serde.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey([u8; KEY_BYTES]);

/// Where a secret key comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyRef {
    /// Knit makes it on the node, for the attachment with this id. An object does not know the id: it is empty there.
    Made {
        /// The attachment's id.
        id: String,
    },
    /// Someone put it into a Secret.
    Secret {
        /// The Secret's namespace.
        namespace: String,
        /// The Secret's name.
        name: String,
        /// Which of its entries.
        key: String,
    },
}

/// A secret key as the model holds it. Desired says where it comes from; observed says which it is. A part that is not
/// stated is never compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretKey {
    /// Where it comes from.
    pub from: Option<KeyRef>,
    /// The public key that belongs to it, which tells nothing about it. [`PublicKey::NONE`]: there is no key.
    pub public: Option<PublicKey>,
}

impl PublicKey {
    /// All zeros: what the kernel shows where there is no key.
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
    /// From its bytes: those of a private key, of a preshared key, or random ones.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// From its text, as `wg genkey` prints it. The text is never repeated in the error.
    pub fn parse(text: &str) -> Result<Self, NotAKey> {
        decode(text.trim()).map(Self).map_err(|why| NotAKey { text: None, why })
    }

    /// Its text, to be stored where only root reads.
    pub fn reveal(&self) -> String {
        STANDARD.encode(self.0)
    }

    /// Its bytes, to be given to the kernel.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// The public key that belongs to it.
    pub fn public(&self) -> PublicKey {
        if self.0 == [0; KEY_BYTES] {
            return PublicKey::NONE;
        }
        PublicKey(x25519(self.0, X25519_BASEPOINT_BYTES))
    }
}

impl SecretKey {
    /// A key that comes from somewhere.
    pub fn from(key: KeyRef) -> Self {
        Self { from: Some(key), public: None }
    }

    /// The key with this public key.
    pub fn of(public: PublicKey) -> Self {
        Self { from: None, public: Some(public) }
    }

    /// That there is no key.
    pub fn none() -> Self {
        Self::of(PublicKey::NONE)
    }
}

/// A text that is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}a key is 32 bytes in base64 (44 characters that end with `=`): {why}", text.as_ref().map(|text| format!("`{}`: ", text.escape_debug())).unwrap_or_default())]
pub struct NotAKey {
    /// The text, unless it could be a secret.
    text: Option<String>,
    why: String,
}

fn decode(text: &str) -> Result<[u8; KEY_BYTES], String> {
    let bytes = STANDARD.decode(text).map_err(|_| "this is not base64".to_owned())?;
    let length = bytes.len();
    bytes.try_into().map_err(|_| format!("this has {length} bytes"))
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        decode(text).map(Self).map_err(|why| NotAKey { text: Some(text.to_owned()), why })
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
        out.write_str("PrivateKey(not shown)")
    }
}

impl fmt::Display for KeyRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Made { .. } => out.write_str("the key that is made on the node"),
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
    fn a_public_key_follows_from_its_secret() {
        let key = PrivateKey::parse(&format!("{PRIVATE}\n")).unwrap();
        assert_eq!(key.public().to_string(), PUBLIC);
        assert_eq!(key.reveal(), PRIVATE);
        assert_eq!(PrivateKey::from_bytes([0; 32]).public(), PublicKey::NONE);
    }

    #[test]
    fn a_secret_never_shows() {
        let key = PrivateKey::parse(PRIVATE).unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey(not shown)");
        let wrong = PrivateKey::parse("dwdtCnMYpX08FsFyUbJm").unwrap_err().to_string();
        assert_eq!(wrong, "a key is 32 bytes in base64 (44 characters that end with `=`): this has 15 bytes");
        assert!(!PrivateKey::parse("dwdtCn!").unwrap_err().to_string().contains("dwdtCn"));
    }

    #[test]
    fn a_public_key_that_is_none_is_named() {
        let wrong = "abc".parse::<PublicKey>().unwrap_err().to_string();
        assert_eq!(
            wrong,
            "`abc`: a key is 32 bytes in base64 (44 characters that end with `=`): this is not base64"
        );
        let key: PublicKey = PUBLIC.parse().unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), format!("\"{PUBLIC}\""));
        assert_eq!(serde_json::from_str::<PublicKey>(&format!("\"{PUBLIC}\"")).unwrap(), key);
    }
}
