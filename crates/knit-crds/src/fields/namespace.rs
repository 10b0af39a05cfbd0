//! Names of namespaces.

use knit_model::Problems;

use super::{is_object_name, text, values};

const NAME: &str = "must be the name of a namespace: 1 to 63 lower case letters, digits and `-`";
const NAME_OR_ALL: &str = "must be the name of a namespace (1 to 63 lower case letters, digits and `-`), or `*` for every namespace";

values! {
    /// The name of a namespace.
    NamespaceName(String) = text(63, &[("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')", NAME)]);
    /// The name of a namespace, or `*` for every namespace.
    NamespaceOrAll(String) = text(63, &[(
        "self == '*' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        NAME_OR_ALL,
    )]);
}

impl NamespaceName {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        check(&self.0, is_namespace_name(&self.0), NAME, field, problems)
    }
}

impl NamespaceOrAll {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<String> {
        check(&self.0, self.0 == "*" || is_namespace_name(&self.0), NAME_OR_ALL, field, problems)
    }
}

/// Whether this is a valid name of a namespace (RFC 1123 label).
fn is_namespace_name(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && is_object_name(name)
}

fn check(
    name: &str,
    is_valid: bool,
    rule: &str,
    field: impl Into<String>,
    problems: &mut Problems,
) -> Option<String> {
    if !is_valid {
        problems.invalid(field, format!("{rule}, got `{}`", name.escape_debug()));
    }
    is_valid.then(|| name.to_owned())
}
