//! Metadata of each kind: names, scope and printer columns.

use std::sync::LazyLock;

use crate::kinds::{Object, ResourceKind};

/// Metadata of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindInfo {
    /// The kind.
    pub kind: String,
    /// Its API group.
    pub group: String,
    /// Its API version.
    pub version: String,
    /// The singular name, in lower case.
    pub singular: String,
    /// The plural name, in lower case.
    pub plural: String,
    /// Short names.
    pub short_names: Vec<String>,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
    /// Whether only administrators may write it.
    pub admin_only: bool,
    /// The label that selects pods for an object without `spec.selector`.
    pub pod_label: Option<&'static str>,
    /// Whether an object creates one link in each selected pod.
    pub creates_link: bool,
    /// The printer columns.
    pub columns: Vec<Column>,
}

/// A printer column, as shown by `kubectl get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The type of its values: `string`, `integer`, `boolean` or `date`.
    pub type_: &'static str,
    /// The JSONPath of the value, such as `.spec.mtu`.
    pub path: &'static str,
    /// Whether it is shown only with `-o wide`.
    pub wide: bool,
}

static KINDS: LazyLock<Vec<KindInfo>> = LazyLock::new(crate::kinds::kind_infos);

impl KindInfo {
    pub(crate) fn of<K: ResourceKind>() -> Self {
        let resource = K::api_resource();
        Self {
            creates_link: crate::kinds::LINKS.contains(&resource.kind.as_str()) && K::POD_LABEL.is_some(),
            singular: resource.kind.to_lowercase(),
            kind: resource.kind,
            group: resource.group,
            version: resource.version,
            plural: resource.plural,
            short_names: K::shortnames().iter().map(ToString::to_string).collect(),
            namespaced: K::NAMESPACED,
            admin_only: K::ADMIN_ONLY,
            pod_label: K::POD_LABEL,
            columns: crate::schema::columns::<K>(),
        }
    }

    /// `group/version`, the `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }

    /// Whether a name refers to this kind: its singular, plural or a short name, in any case, with or without the
    /// group.
    pub fn matches_name(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let name = name.strip_suffix(&format!(".{}", self.group)).unwrap_or(&name);
        name == self.singular || name == self.plural || self.short_names.iter().any(|short| short == name)
    }
}

impl Object {
    /// All kinds.
    pub fn kinds() -> &'static [KindInfo] {
        &KINDS
    }

    /// The kind with this singular, plural or short name.
    pub fn find_kind(name: &str) -> Option<&'static KindInfo> {
        KINDS.iter().find(|kind| kind.matches_name(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_any_of_its_names() {
        for name in ["PodConfig", "podconfig", "podconfigs", "pcfg", "podconfigs.podconfig.opdev.io"] {
            assert_eq!(Object::find_kind(name).map(|kind| kind.kind.as_str()), Some("PodConfig"), "{name}");
        }
        assert_eq!(Object::find_kind("pod"), None);
    }

    #[test]
    fn the_names_of_kinds_are_unique() {
        let mut names: Vec<&str> = Vec::new();
        for kind in Object::kinds() {
            names.extend([kind.singular.as_str(), kind.plural.as_str()]);
            names.extend(kind.short_names.iter().map(String::as_str));
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{names:?}");
    }
}
