//! Names, hardware addresses and aliases of links.

use knit_model::intent::MAX_PREFIX_BYTES;
use knit_model::{IfName, Mac, Problems};

use super::{Rule, rule_list, text, values};

/// What neither a name nor the beginning of one may contain.
const LETTERS: Rule<'_> =
    (r"!self.matches('[/:%\\s]')", "an interface name must not contain `/`, `:`, `%` or spaces");
const DOTS: Rule<'_> = ("self != '.' && self != '..'", "`.` and `..` are no interface names");
const NAME_LENGTH: Rule<'_> =
    ("bytes(self).size() >= 1 && bytes(self).size() <= 15", "an interface name has 1 to 15 bytes");
const PREFIX_LENGTH: Rule<'_> = (
    "bytes(self).size() >= 1 && bytes(self).size() <= 7",
    "the beginning of a name has 1 to 7 bytes: with `h` in front and the pod's number behind it must fit into 15",
);

values! {
    /// The name of an interface in a pod, or of a bridge on the node.
    InterfaceName(String) = text(63, &[NAME_LENGTH, LETTERS, DOTS]);
    /// The beginning of a name, which the sandbox's number follows.
    NamePrefix(String) = text(63, &[PREFIX_LENGTH, LETTERS, DOTS]);
    /// An interface of the same pod, or an Uplink.
    DeviceName(String) = text(253, &[("self != ''", "the name must not be empty"), LETTERS]);
    /// The name of another object.
    ObjectName(String) = text(253, &[(
        "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
        "an object's name has lower case letters, digits, `-` and `.`",
    )]);
    /// A hardware address.
    HardwareAddr(String) = text(17, &[
        (
            "self.matches('^[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}$')",
            "a hardware address has six pairs of hexadecimal digits, such as 02:00:00:00:00:01",
        ),
        (
            "self.matches('^.[02468aceACE]') || !self.matches('^[0-9A-Fa-f]{2}')",
            "this is a multicast address: an interface needs a unicast one, whose first byte is even",
        ),
        ("!self.matches('^00([:-]00){5}$')", "the hardware address of an interface must not be all zero"),
    ]);
    /// A text for people.
    AliasText(String) = text(255, &[("bytes(self).size() <= 255", "an alias has at most 255 bytes")]);
}

impl InterfaceName {
    /// The rules of a field with more of its own.
    pub(crate) fn rules_with(more: &[Rule<'_>]) -> serde_json::Value {
        rule_list(&[&[NAME_LENGTH, LETTERS, DOTS], more].concat())
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
                "`{}` has {} bytes, at most {MAX_PREFIX_BYTES} are allowed: with `h` in front and the pod's number behind it must fit into 15",
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
    /// The name, if it can be one. It may be longer than an interface's name, because an Uplink's may be.
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        let name = &self.0;
        let refused =
            |letter: char| matches!(letter, '/' | ':' | '%') || letter.is_whitespace() || letter.is_control();
        if name.is_empty() || name.contains(refused) {
            let message =
                format!("`{}` is neither an interface of the pod nor an Uplink", name.escape_debug());
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
        problems.invalid(field, object_name_sentence(&self.0));
        None
    }
}

/// Whether an API server takes this as an object's name.
pub(crate) fn is_object_name(name: &str) -> bool {
    let word = |word: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !word.is_empty() && word.bytes().all(inner) && !word.starts_with('-') && !word.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(word)
}

/// Why it does not.
pub(crate) fn object_name_sentence(name: &str) -> String {
    format!(
        "`{}` is no object's name: it has at most 253 lower case letters, digits, `-` and `.`, and begins and ends with a letter or digit",
        name.escape_debug()
    )
}

impl HardwareAddr {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<Mac> {
        problems.check(field, self.0.parse::<Mac>())
    }
}
