//! The link types of list entries: the lower link, the fields and the model's link of each. Each kind defines its own.

use std::sync::LazyLock;

use knit_model::link::Kind;

use super::details::{Details, LinkMode};

/// One link type.
#[derive(Clone, Copy)]
pub struct LinkTypeInfo {
    pub(super) name: &'static str,
    pub(super) lower_link: LowerLink,
    /// Required fields.
    pub(super) needs: &'static [&'static str],
    /// Optional fields.
    pub(super) takes: &'static [&'static str],
    /// The values of `mode`; empty if it has no modes.
    pub(super) modes: &'static [LinkMode],
    /// The link; `None` while a required field is missing.
    pub(super) kind: fn(&Details) -> Option<Kind>,
}

/// The meaning of `parent` and `master` of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LowerLink {
    /// No lower link; the host end is a port of `master` on the node.
    HostEnd,
    /// `parent` is the lower link.
    Required,
    /// `parent` is the lower link if it is set; otherwise the pod's routes determine the interface.
    Optional,
    /// No lower link; `master` is a bridge in the pod.
    None,
}

impl LinkTypeInfo {
    pub(crate) const fn new(
        name: &'static str,
        lower_link: LowerLink,
        kind: fn(&Details) -> Option<Kind>,
    ) -> Self {
        Self { name, lower_link, needs: &[], takes: &[], modes: &[], kind }
    }

    pub(crate) const fn needs(self, fields: &'static [&'static str]) -> Self {
        Self { needs: fields, ..self }
    }

    pub(crate) const fn takes(self, fields: &'static [&'static str]) -> Self {
        Self { takes: fields, ..self }
    }

    /// It has the field `mode` with these values.
    pub(crate) const fn modes(self, modes: &'static [LinkMode]) -> Self {
        Self { modes, ..self }
    }

    pub(super) fn has_field(&self, field: &str) -> bool {
        let is_mode = field == "mode" && !self.modes.is_empty();
        is_mode || self.needs.contains(&field) || self.takes.contains(&field)
    }
}

/// All link types.
pub(super) fn link_types() -> &'static [LinkTypeInfo] {
    static ALL: LazyLock<Vec<LinkTypeInfo>> = LazyLock::new(crate::kinds::link_types);
    &ALL
}
