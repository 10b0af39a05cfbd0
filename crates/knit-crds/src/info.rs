//! What programs need to know of each kind: how it is spelled, and where it lives.

use std::sync::LazyLock;

use crate::kinds::{Kind, Object};

/// A kind as a command line knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindInfo {
    /// The kind.
    pub kind: String,
    /// Its API group.
    pub group: String,
    /// Its version.
    pub version: String,
    /// One of them, in lower case.
    pub singular: String,
    /// Many of them, in lower case.
    pub plural: String,
    /// Short words for it.
    pub short_names: Vec<String>,
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
    /// Whether it is the admin's to write.
    pub for_admins: bool,
    /// The label of the pods that an object without `spec.selector` is for.
    pub pod_label: Option<&'static str>,
    /// The columns of a list of its objects.
    pub columns: Vec<Column>,
}

/// A column in a list of objects, as `kubectl get` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its head.
    pub name: &'static str,
    /// What it holds: `string`, `integer`, `boolean` or `date`.
    pub type_: &'static str,
    /// Where the value is, such as `.spec.mtu`.
    pub path: &'static str,
    /// Whether it is shown only when more is asked for.
    pub wide: bool,
}

static KINDS: LazyLock<Vec<KindInfo>> = LazyLock::new(crate::kinds::facts);

impl KindInfo {
    pub(crate) fn of<K: Kind>() -> Self {
        let resource = K::api_resource();
        Self {
            singular: resource.kind.to_lowercase(),
            kind: resource.kind,
            group: resource.group,
            version: resource.version,
            plural: resource.plural,
            short_names: K::shortnames().iter().map(ToString::to_string).collect(),
            namespaced: K::NAMESPACED,
            for_admins: K::FOR_ADMINS,
            pod_label: K::POD_LABEL,
            columns: crate::schema::columns::<K>(),
        }
    }

    /// `group/version`, as objects say it.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Whether a person means this kind: its name, plural or a short name, in any case, with or without the group.
    pub fn is_meant_by(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        let name = word.strip_suffix(&format!(".{}", self.group)).unwrap_or(&word);
        name == self.singular || name == self.plural || self.short_names.iter().any(|short| short == name)
    }
}

impl Object {
    /// All kinds.
    pub fn kinds() -> &'static [KindInfo] {
        &KINDS
    }

    /// The kind that a person means.
    pub fn find_kind(word: &str) -> Option<&'static KindInfo> {
        KINDS.iter().find(|kind| kind.is_meant_by(word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_any_of_its_words() {
        for word in ["PodConfig", "podconfig", "podconfigs", "pcfg", "podconfigs.podconfig.opdev.io"] {
            assert_eq!(Object::find_kind(word).map(|kind| kind.kind.as_str()), Some("PodConfig"), "{word}");
        }
        assert_eq!(Object::find_kind("pod"), None);
    }

    #[test]
    fn no_two_kinds_share_a_word() {
        let mut words: Vec<&str> = Vec::new();
        for kind in Object::kinds() {
            words.extend([kind.singular.as_str(), kind.plural.as_str()]);
            words.extend(kind.short_names.iter().map(String::as_str));
        }
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), all, "{words:?}");
    }
}
