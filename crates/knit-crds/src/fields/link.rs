//! Names, hardware addresses and aliases of links.

use knit_model::intent::MAX_PREFIX_BYTES;
use knit_model::{IfName, Mac, Problems};

use super::{Rule, rule_list, text, values};

/// Characters that interface names and prefixes must not contain.
const CHARACTERS: Rule<'_> = (r"!self.matches('[/:%\\s]')", "must not contain `/`, `:`, `%` or whitespace");
const DOTS: Rule<'_> = ("self != '.' && self != '..'", "must not be `.` or `..`");
const NAME_LENGTH: Rule<'_> =
    ("bytes(self).size() >= 1 && bytes(self).size() <= 15", "must have 1 to 15 bytes");
const PREFIX_LENGTH: Rule<'_> = (
    "bytes(self).size() >= 1 && bytes(self).size() <= 7",
    "must have 1 to 7 bytes: `h`, the prefix and the sandbox number must fit into 15 bytes",
);

values! {
    /// The name of an interface in a pod, or of a bridge on the node.
    InterfaceName(String) = text(63, &[NAME_LENGTH, CHARACTERS, DOTS]);
    /// The prefix of an interface name. The sandbox number is appended.
    NamePrefix(String) = text(63, &[PREFIX_LENGTH, CHARACTERS, DOTS]);
    /// The name of an interface of the same pod, or of an Uplink.
    DeviceName(String) = text(253, &[("self != ''", "must not be empty"), CHARACTERS]);
    /// The name of another object.
    ObjectName(String) = text(253, &[(
        "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        "must consist of lower case letters, digits, `-` and `.`",
    )]);
    /// A hardware address.
    HardwareAddr(String) = text(17, &[
        (
            "self.matches('^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$')",
            "must be a hardware address such as 02:00:00:00:00:01",
        ),
        (
            "self.matches('^.[02468aceACE]') || !self.matches('^[0-9A-Fa-f]{2}')",
            "must be a unicast hardware address, not multicast: the first byte must be even",
        ),
        ("!self.matches('^00([:-]00){5}$')", "must not be all zero"),
    ]);
    /// An interface alias.
    AliasText(String) = text(255, &[("bytes(self).size() <= 255", "must have at most 255 bytes")]);
}

impl InterfaceName {
    /// The rules of an interface name and additional ones.
    pub(crate) fn rules_with(more: &[Rule<'_>]) -> serde_json::Value {
        rule_list(&[&[NAME_LENGTH, CHARACTERS, DOTS], more].concat())
    }

    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IfName> {
        problems.check(field, IfName::new(self.0.as_str()))
    }
}

impl NamePrefix {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        let (prefix, field) = (&self.0, field.into());
        if prefix.len() > MAX_PREFIX_BYTES {
            let message = format!(
                "must have at most {MAX_PREFIX_BYTES} bytes, `{}` has {}: `h`, the prefix and the sandbox number must fit into 15 bytes",
                prefix.escape_debug(),
                prefix.len()
            );
            problems.invalid(field, message);
            return None;
        }
        problems.check(field, IfName::new(prefix.as_str())).map(String::from)
    }
}

impl DeviceName {
    /// The name, if it is valid. It may be longer than an interface name, because it may name an Uplink.
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        let name = &self.0;
        let forbidden =
            |letter: char| matches!(letter, '/' | ':' | '%') || letter.is_whitespace() || letter.is_control();
        if name.is_empty() || name.contains(forbidden) {
            let message = format!(
                "must be the name of an interface of the pod or of an Uplink, got `{}`",
                name.escape_debug()
            );
            problems.invalid(field, message);
            return None;
        }
        Some(name.clone())
    }
}

impl ObjectName {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        if is_object_name(&self.0) {
            return Some(self.0.clone());
        }
        problems.invalid(field, invalid_object_name(&self.0));
        None
    }
}

/// Whether this is a valid object name (RFC 1123 subdomain).
pub(crate) fn is_object_name(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// The message for an invalid object name.
pub(crate) fn invalid_object_name(name: &str) -> String {
    format!(
        "must consist of at most 253 lower case letters, digits, `-` and `.`, and begin and end with a letter or digit, got `{}`",
        name.escape_debug()
    )
}

impl HardwareAddr {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<Mac> {
        problems.check(field, self.0.parse::<Mac>())
    }
}
