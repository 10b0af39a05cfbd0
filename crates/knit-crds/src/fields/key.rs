//! Keys of tunnels, and where secret ones are.

use std::net::SocketAddr;

use knit_model::{KeyRef, Problems, PublicKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ObjectName, text, values};

values! {
    /// A public key in base64.
    PublicKeyText(String) = text(44, &[(
        "self.matches('^[A-Za-z0-9+/]{43}=$')",
        "a key is 32 bytes in base64: 44 characters that end with `=`, as `wg pubkey` prints it",
    )]);
    /// An address with a port.
    EndpointText(String) = text(53, &[(
        r"self.matches('^([0-9.]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$')",
        "expected an address with a port, such as 192.0.2.1:51820 or [2001:db8::1]:51820",
    )]);
    /// The name of an entry of a Secret.
    EntryName(String) = text(253, &[
        ("self.matches('^[-._a-zA-Z0-9]+$')", "an entry's name has letters, digits, `-`, `_` and `.`"),
        ("self != '.' && self != '..'", "`.` and `..` are no entries' names"),
    ]);
}

/// An entry of a Secret in the object's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretEntry {
    /// The Secret.
    pub name: ObjectName,
    /// Which of its entries.
    pub key: EntryName,
}

impl PublicKeyText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<PublicKey> {
        problems.check(field, self.0.parse::<PublicKey>())
    }
}

impl EndpointText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<SocketAddr> {
        let sentence = |_| {
            format!(
                "`{}` is no address with a port, such as 192.0.2.1:51820 or [2001:db8::1]:51820",
                self.0.escape_debug()
            )
        };
        problems.check(field, self.0.parse::<SocketAddr>().map_err(sentence))
    }
}

impl SecretEntry {
    pub(crate) fn read(&self, namespace: &str, field: &str, problems: &mut Problems) -> Option<KeyRef> {
        let name = self.name.read(format!("{field}.name"), problems);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let key = &self.key.0;
        if key.is_empty() || !key.bytes().all(allowed) || matches!(key.as_str(), "." | "..") {
            let message = format!(
                "`{}` is no entry of a Secret: its name has letters, digits, `-`, `_` and `.`",
                key.escape_debug()
            );
            problems.invalid(format!("{field}.key"), message);
            return None;
        }
        Some(KeyRef::Secret { namespace: namespace.to_owned(), name: name?, key: key.clone() })
    }
}
