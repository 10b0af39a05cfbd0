//! Segments: VirtualNetworks that show the cluster network, or a part of it.

use std::fmt::Write as _;

use knit_model::intent::{IntentSpec, SegmentIntent};
use knit_model::provenance::Dialect;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Isolation, Transport, VirtualNetworkSpec};
use crate::fields::is_object_name;
use crate::translate::Translator;

/// The name of the object that shows the whole cluster network.
pub const CLUSTER_SEGMENT: &str = "cluster-network";

pub(super) const EITHER: &str = "exactly one of subnets and segment must be set";
pub(super) const NO_SETTINGS: &str =
    "mtu, transport and vni must be unset in a segment of the cluster network";
pub(super) const ITS_ISOLATION: &str =
    "isolation of a segment must be open for scope cluster, and isolated otherwise";
pub(super) const IMMUTABLE: &str = "segment is immutable: create another VirtualNetwork";
const APP_OF_SCOPE: &str = "app must be set for scope app, and unset otherwise";

/// Segment is the part of the cluster network that a VirtualNetwork shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[(
    "(self.scope == 'app') == has(self.app)",
    APP_OF_SCOPE,
)])))]
pub struct Segment {
    /// scope is the pods of the segment. `cluster`: all pods of the cluster network that are in no other segment.
    /// `namespace`: the pods of this namespace, which is isolated, that are in no app. `app`: the pods of this
    /// namespace with the same value of the label `opencontrail.org/name`.
    pub scope: SegmentScope,
    /// app is the value of the label `opencontrail.org/name`. Only valid if scope is `app`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minLength" = 1, "maxLength" = 63))]
    pub app: Option<String>,
}

/// SegmentScope is the pods of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum SegmentScope {
    Cluster,
    Namespace,
    App,
}

impl Segment {
    /// The whole cluster network.
    pub fn cluster() -> Self {
        Self { scope: SegmentScope::Cluster, app: None }
    }

    /// An isolated namespace.
    pub fn namespace() -> Self {
        Self { scope: SegmentScope::Namespace, app: None }
    }

    /// An app.
    pub fn app(name: impl Into<String>) -> Self {
        Self { scope: SegmentScope::App, app: Some(name.into()) }
    }

    /// The name of its object in a namespace. No two segments of a namespace have the same: a namespace has no `.` in its
    /// name, and hexadecimal digits never end with `-vn`.
    pub fn object_name(&self, namespace: &str) -> String {
        match (self.scope, &self.app) {
            (SegmentScope::Cluster, _) => CLUSTER_SEGMENT.to_owned(),
            (SegmentScope::Namespace, _) => format!("{namespace}-vn"),
            (SegmentScope::App, app) => app_name(app.as_deref().unwrap_or_default()),
        }
    }

    /// The spec of its object.
    pub fn spec(&self) -> VirtualNetworkSpec {
        VirtualNetworkSpec {
            subnets: Vec::new(),
            isolation: self.isolation(),
            mtu: None,
            transport: Transport::Local,
            vni: None,
            segment: Some(self.clone()),
        }
    }

    fn isolation(&self) -> Isolation {
        match self.scope {
            SegmentScope::Cluster => Isolation::Open,
            SegmentScope::Namespace | SegmentScope::App => Isolation::Isolated,
        }
    }

    /// Validates the object of a segment, and adds its intent.
    pub(super) fn declare(&self, spec: &VirtualNetworkSpec, to: &mut Translator) {
        if to.dialect() != Dialect::Kubernetes {
            to.problems.invalid("spec.segment", "must be unset: segments are those of a cluster network");
        }
        if !spec.subnets.is_empty() {
            to.problems.invalid("spec.subnets", EITHER);
        }
        if spec.mtu.is_some() || spec.vni.is_some() || spec.transport != Transport::Local {
            to.problems.invalid("spec.segment", NO_SETTINGS);
        }
        if spec.isolation != self.isolation() {
            to.problems.invalid("spec.isolation", ITS_ISOLATION);
        }
        if (self.scope == SegmentScope::App) != self.app.as_ref().is_some_and(|app| !app.is_empty()) {
            to.problems.invalid("spec.segment.app", APP_OF_SCOPE);
        }
        let name = to.object_name().to_owned();
        to.intent("spec.segment", IntentSpec::Segment(SegmentIntent { name }));
    }
}

/// Label values may contain what object names may not: those are written in hexadecimal digits.
fn app_name(app: &str) -> String {
    let plain = format!("app.{app}");
    if is_object_name(&plain) {
        return plain;
    }
    app.bytes().fold("app-".to_owned(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::VirtualNetwork;
    use super::*;
    use crate::kinds::ResourceKind;

    fn network(spec: VirtualNetworkSpec) -> VirtualNetwork {
        VirtualNetwork::new("shop-vn", spec)
    }

    #[test]
    fn a_segment_has_no_network_of_its_own() {
        for segment in [Segment::cluster(), Segment::namespace(), Segment::app("web")] {
            let translation = network(segment.spec()).intents(Dialect::Kubernetes).unwrap();
            let [intent] = &translation.intents[..] else { panic!("{translation:?}") };
            assert!(matches!(&intent.spec, IntentSpec::Segment(one) if one.name == "shop-vn"), "{intent:?}");
        }
    }

    #[test]
    fn a_segment_has_no_settings_and_exists_in_a_cluster_only() {
        let problems = |change: fn(&mut VirtualNetworkSpec), dialect| {
            let mut spec = Segment::namespace().spec();
            change(&mut spec);
            network(spec).intents(dialect).map(drop).map_err(|problems| problems.to_string())
        };
        assert_eq!(problems(|_| {}, Dialect::Kubernetes), Ok(()));
        for (change, expected) in [
            (
                (|spec| spec.subnets = serde_json::from_str(r#"["10.0.0.0/24"]"#).unwrap())
                    as fn(&mut VirtualNetworkSpec),
                EITHER,
            ),
            (|spec| spec.mtu = serde_json::from_str("1400").unwrap(), NO_SETTINGS),
            (|spec| spec.transport = Transport::Vxlan, NO_SETTINGS),
            (|spec| spec.isolation = Isolation::Open, ITS_ISOLATION),
            (|spec| spec.segment = Some(Segment { app: None, ..Segment::app("web") }), APP_OF_SCOPE),
        ] {
            let found = problems(change, Dialect::Kubernetes).unwrap_err();
            assert!(found.contains(expected), "{expected}: {found}");
        }
        assert!(
            problems(|_| {}, Dialect::File).unwrap_err().contains("segments are those of a cluster network")
        );
    }

    #[test]
    fn names_of_segments_of_a_namespace_are_different_object_names() {
        let apps = [
            "web", "Web", "WEB", "web_1", "web-1", "web.1", "a..b", "a.-b", "0", "vn", "shop-vn", "-", "x_",
            "57656231",
        ];
        for namespace in ["shop", "app", "app-web", "app-5765", "cluster"] {
            let segments =
                apps.map(Segment::app).into_iter().chain([Segment::namespace(), Segment::cluster()]);
            let names: Vec<String> = segments.map(|segment| segment.object_name(namespace)).collect();
            assert!(names.iter().all(|name| is_object_name(name)), "{names:?}");
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        }
        assert_eq!(Segment::app("web").object_name("shop"), "app.web");
        assert_eq!(Segment::app("Web_1").object_name("shop"), "app-5765625f31");
        assert_eq!(Segment::namespace().object_name("shop"), "shop-vn");
        let longest = "a".repeat(62) + "_";
        assert!(is_object_name(&Segment::app(longest).object_name("shop")));
    }
}
