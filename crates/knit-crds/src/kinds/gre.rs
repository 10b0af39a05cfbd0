//! Gre: a GRE tunnel for IP or Ethernet in each selected pod.

use knit_model::Problems;
use knit_model::link::{self, GreForm, Kind as LinkKind, LinkKind as _, NumberOrNone};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{GreKey, InterfaceName, Remote, RemoteEndpoint, Rule, Ttl, local_over_ipv6, same_family};
use crate::interface::{InterfaceFields, NameFields, rules_with};
use crate::link_type::{Details, LinkTypeInfo, LowerLink};
use crate::rules::MASTER_OR_VRF;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};
use crate::tunnel::TunnelFields;

const POD_LABEL: &str = "podnetwork.opdev.io/gre";

/// GreSpec selects pods by the label `podnetwork.opdev.io/gre: <object name>` or by `selector`, and describes the
/// tunnel.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Gre",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Gre adds a GRE tunnel (gre, gretap, ip6gre or ip6gretap) to each selected pod. It is added to running pods and removed with the object, the label or the pod.",
    shortname = "kgre"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct GreSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/gre: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// carries is the payload of the tunnel: `ip` (gre and ip6gre) or `ethernet` (gretap and ip6gretap). Changing it
    /// replaces the interface. Defaults to `ip`.
    #[serde(default)]
    pub carries: GrePayload,
    /// remote is the remote endpoint: an IP address, or the name of a pod in this namespace, whose address is tracked.
    /// It is updated in place; changing the address family replaces the interface. Defaults to none: routes and
    /// neighbours determine the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// ttl is the TTL of outer packets, 0 to 255. 0 copies it from the inner packet. Defaults to 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// key is the GRE key for both directions, 0 to 4294967295. Mutually exclusive with ikey and okey. Defaults to
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<GreKey>,
    /// ikey is the GRE key of received packets. Defaults to key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ikey: Option<GreKey>,
    /// okey is the GRE key of sent packets. Defaults to key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub okey: Option<GreKey>,
    /// seq enables sequence numbers. Packets out of order are dropped. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<bool>,
    /// csum enables GRE checksums. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csum: Option<bool>,
    /// pmtuDisc enables path MTU discovery, which sets the Don't Fragment bit of outer packets. Only valid over IPv4.
    /// Defaults to true unless ignoreDf is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtu_disc: Option<bool>,
    /// ignoreDf fragments inner packets even if their Don't Fragment bit is set. Only valid over IPv4. Changing it
    /// replaces the interface. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_df: Option<bool>,
    /// master is the name of a VRF in the pod that the interface is a port of, or of a bridge if carries is `ethernet`.
    /// Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub tunnel: TunnelFields,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// GrePayload is what a GRE tunnel carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum GrePayload {
    #[default]
    Ip,
    Ethernet,
}

const ONE_KEY: &str = "key must be unset if ikey or okey is set";

const KEYS: Rule<'_> = ("!has(self.key) || (!has(self.ikey) && !has(self.okey))", ONE_KEY);

const ONLY_ETHERNET: Rule<'_> = (
    "!has(self.hardwareAddr) || (has(self.carries) && self.carries == 'ethernet')",
    "hardwareAddr must be unset unless carries is ethernet",
);

fn rules() -> serde_json::Value {
    rules_with(&[same_family(), local_over_ipv6(), KEYS, MASTER_OR_VRF, ONLY_ETHERNET])
}

impl GreSpec {
    fn link(&self, remote: Option<&RemoteEndpoint>, problems: &mut Problems) -> link::Gre {
        let outer = self.tunnel.read(remote, self.ttl.as_ref(), self.pmtu_disc, problems);
        // The address family of a remote pod is not known yet: fields of one family decide.
        let ipv6 = match outer.remote.or(outer.local) {
            Some(end) => end.is_ipv6(),
            None => self.tunnel.encap_limit.is_some() || self.tunnel.flow_label.is_some(),
        };
        if self.key.is_some() && (self.ikey.is_some() || self.okey.is_some()) {
            problems.invalid("spec.key", ONE_KEY);
        }
        let key = |own: &Option<GreKey>, field: &str, problems: &mut Problems| {
            let (key, field) = if own.is_some() { (own, field) } else { (&self.key, "spec.key") };
            key.as_ref().and_then(|key| key.read(field, problems)).map(|key| NumberOrNone(Some(key)))
        };
        let gre = link::Gre {
            form: GreForm::new(self.carries == GrePayload::Ethernet, ipv6),
            outer,
            ikey: key(&self.ikey, "spec.ikey", problems),
            okey: key(&self.okey, "spec.okey", problems),
            seq: self.seq,
            csum: self.csum,
            ignore_df: self.ignore_df,
        };
        gre.check("spec", problems);
        gre
    }
}

impl ResourceKind for Gre {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const LINK_TYPES: &'static [LinkTypeInfo] = &[
        LinkTypeInfo::new("gre", LowerLink::Optional, |details| listed(details, false))
            .takes(&["remote", "local"]),
        LinkTypeInfo::new("gretap", LowerLink::Optional, |details| listed(details, true))
            .takes(&["remote", "local"]),
    ];
    const COLUMNS: &'static [Column] = &[
        Column { name: "Carries", type_: "string", path: ".spec.carries", wide: false },
        Column { name: "Remote", type_: "string", path: ".spec.remote", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let parent = spec.tunnel.read_parent(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.as_ref().and_then(|remote| remote.read("spec.remote", &mut to.problems));
        let gre = spec.link(remote.as_ref(), &mut to.problems);
        let entry = InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Gre(gre),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(RemoteEndpoint::into_pod));
    }
}

/// The link of a list entry.
fn listed(details: &Details, ethernet: bool) -> Option<LinkKind> {
    let (remote, local) = (details.remote_address(), details.local);
    let ipv6 = remote.or(local).is_some_and(|end| end.is_ipv6());
    let (form, outer) = (GreForm::new(ethernet, ipv6), link::TunnelFields::between(local, remote));
    Some(LinkKind::Gre(link::Gre { form, outer, ..link::Gre::default() }))
}
