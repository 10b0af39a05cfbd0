//! Macvtap: a macvlan whose frames a program in the pod exchanges through a character device.

use knit_model::link::{self, Kind as LinkKind, LinkKind as _};
use knit_model::{IfName, Mac};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{DeviceName, HardwareAddr, InterfaceName, Rule};
use crate::interface::{InterfaceFields, NameFields, each, rules_with};
use crate::link_type::{Details, LinkMode, LinkTypeInfo, LowerLink};
use crate::rules::MASTER_OR_VRF;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/macvtap";

/// MacvtapSpec selects pods by the label `podnetwork.opdev.io/macvtap: <object name>` or by `selector`, and describes
/// the interface.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Macvtap",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Macvtap adds a macvtap link to each selected pod, on an Uplink or on another interface of the pod: a program such as a virtual machine monitor exchanges its frames through a character device. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kmvt"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct MacvtapSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/macvtap:
    /// <object name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// parent is the lower link: another interface of the pod, or an Uplink that allows this namespace. Changing it
    /// replaces the interface.
    pub parent: DeviceName,
    /// mode controls traffic between macvtaps and macvlans on one parent: `bridge` forwards it directly, `vepa` through
    /// an external switch, `private` drops it; `passthru` uses the parent exclusively; `source` receives only frames
    /// from `sources`. Changing it to or from `passthru` replaces the interface. Defaults to `bridge`.
    #[serde(default)]
    pub mode: MacvtapMode,
    /// sources are, in mode `source`, the hardware addresses whose frames are received. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 64, "x-kubernetes-list-type" = "set"))]
    pub sources: Vec<HardwareAddr>,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// MacvtapMode controls traffic between macvtaps and macvlans on one parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum MacvtapMode {
    #[default]
    Bridge,
    Private,
    Vepa,
    Passthru,
    Source,
}

const SOURCES: Rule<'_> = (
    "(has(self.sources) && size(self.sources) > 0) == (has(self.mode) && self.mode == 'source')",
    "sources must be set if and only if mode is source",
);

fn rules() -> serde_json::Value {
    rules_with(&[MASTER_OR_VRF, SOURCES])
}

impl ResourceKind for Macvtap {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[LinkTypeInfo::new("macvtap", LowerLink::Required, listed)
        .modes(&[LinkMode::Bridge, LinkMode::Private, LinkMode::Vepa, LinkMode::Passthru])];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Parent", type_: "string", path: ".spec.parent", wide: false },
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let parent = spec.parent.read("spec.parent", &mut to.problems);
        let mode = match spec.mode {
            MacvtapMode::Bridge => link::MacvtapMode::Bridge,
            MacvtapMode::Private => link::MacvtapMode::Private,
            MacvtapMode::Vepa => link::MacvtapMode::Vepa,
            MacvtapMode::Passthru => link::MacvtapMode::Passthru,
            MacvtapMode::Source => link::MacvtapMode::Source,
        };
        let mut sources: Vec<Mac> =
            each(&spec.sources, "spec.sources", |source, field| source.read(field, &mut to.problems));
        sources.sort_unstable();
        sources.dedup();
        let macvtap = link::Macvtap { parent: None, mode: Some(mode), sources: Some(sources) };
        // The model checks that a parent is set, which may be an Uplink whose name is no interface name.
        link::Macvtap { parent: IfName::new("parent").ok(), ..macvtap.clone() }
            .check("spec", &mut to.problems);
        to.interface(InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Macvtap(macvtap),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        });
    }
}

/// The link of a list entry.
fn listed(details: &Details) -> Option<LinkKind> {
    let mode = match details.mode.unwrap_or(LinkMode::Bridge) {
        LinkMode::Bridge => link::MacvtapMode::Bridge,
        LinkMode::Private => link::MacvtapMode::Private,
        LinkMode::Vepa => link::MacvtapMode::Vepa,
        LinkMode::Passthru => link::MacvtapMode::Passthru,
        _ => return None,
    };
    Some(LinkKind::Macvtap(link::Macvtap { mode: Some(mode), ..link::Macvtap::default() }))
}
