//! WireGuard keys, endpoints and references to Secrets.

use std::net::SocketAddr;

use knit_model::{KeyRef, Problems, PublicKey};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ObjectName, text, values};

values! {
    /// A public key in base64.
    PublicKeyText(String) = text(44, &[(
        "self.matches('^[A-Za-z0-9+/]{43}=$')",
        "must be a key of 32 bytes in base64: 44 characters that end with `=`, as printed by `wg pubkey`",
    )]);
    /// An address with a port.
    EndpointText(String) = text(53, &[(
        r"self.matches('^([0-9.]+|\\[[0-9A-Fa-f:.]+\\]):[0-9]{1,5}$')",
        "must be an IP address with a port, such as 192.0.2.1:51820 or [2001:db8::1]:51820",
    )]);
    /// The key of an entry of a Secret.
    EntryName(String) = text(253, &[
        ("self.matches('^[-._a-zA-Z0-9]+$')", "must consist of letters, digits, `-`, `_` and `.`"),
        ("self != '.' && self != '..'", "must not be `.` or `..`"),
    ]);
}

/// SecretEntry references an entry of a Secret in the object's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretEntry {
    /// name is the name of the Secret.
    pub name: ObjectName,
    /// key is the key of the entry.
    pub key: EntryName,
}

impl PublicKeyText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<PublicKey> {
        problems.check(field, self.0.parse::<PublicKey>())
    }
}

impl EndpointText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<SocketAddr> {
        let message = |_| {
            format!(
                "must be an IP address with a port, such as 192.0.2.1:51820 or [2001:db8::1]:51820, got `{}`",
                self.0.escape_debug()
            )
        };
        problems.check(field, self.0.parse::<SocketAddr>().map_err(message))
    }
}

impl SecretEntry {
    pub(crate) fn read(&self, namespace: &str, field: &str, problems: &mut Problems) -> Option<KeyRef> {
        let name = self.name.read(format!("{field}.name"), problems);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let key = &self.key.0;
        if key.is_empty() || !key.bytes().all(allowed) || matches!(key.as_str(), "." | "..") {
            let message =
                format!("must consist of letters, digits, `-`, `_` and `.`, got `{}`", key.escape_debug());
            problems.invalid(format!("{field}.key"), message);
            return None;
        }
        Some(KeyRef::Secret { namespace: namespace.to_owned(), name: name?, key: key.clone() })
    }
}
