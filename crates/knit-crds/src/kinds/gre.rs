//! Gre: IP or Ethernet behind a small header.

use knit_model::Problems;
use knit_model::link::{self, GreForm, Kind as LinkKind, LinkKind as _, OrNone};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, Kind};
use crate::fields::{
    DeviceName, EncapLimit, FarEnd, FlowLabel, GreKey, InterfaceName, IpText, Mark, NamePrefix, Remote, Rule,
    Tos, Ttl, local_over_ipv6, same_family,
};
use crate::interface::{InterfaceFields, read_name, rules_with};
use crate::rules::PORT_OF_ONE;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{Entry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/gre";

/// A GRE tunnel for each of the pods that are labelled `podnetwork.opdev.io/gre: <name of this object>`, or that
/// `selector` matches.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Gre",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "A tunnel for each pod that carries IP or Ethernet behind a GRE header, over IPv4 or IPv6 as its ends are. It is added to running pods, and taken away with the object, the label or the pod.",
    shortname = "kgre"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct GreSpec {
    /// Which pods of this namespace. Default: those with the label `podnetwork.opdev.io/gre: <name of this object>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    /// The interface's name in the pod, 1 to 15 bytes. A new name is a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_name: Option<InterfaceName>,
    /// In place of `interfaceName`: the beginning of the name, at most 7 bytes; the number of the pod's sandbox follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_prefix: Option<NamePrefix>,
    /// What it carries: `ip` (the kernel's gre and ip6gre) or `ethernet` (gretap and ip6gretap). Another value makes
    /// the interface again. Default: `ip`.
    #[serde(default)]
    pub carries: Carries,
    /// The far end: an address, or the name of another pod of this namespace, which is followed when its address
    /// changes. It changes on the living interface; an address of the other family makes it again. Default: none,
    /// packets go where routes and neighbours say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// The near end's address. It changes on the living interface. Default: with a pod as far end this pod's address on
    /// the same network, else the kernel chooses; over IPv6 it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpText>,
    /// The interface of the pod that carries it. A new parent makes the interface again. Default: the pod's routes decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<DeviceName>,
    /// Hops that a packet may take, 0 to 255; 0 copies those of the packet inside. Default: 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Ttl>,
    /// The DS field of the outer packet, 0 to 255; 1 copies it from the packet inside. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tos: Option<Tos>,
    /// The key of packets in both directions, 0 to 4294967295. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<GreKey>,
    /// The key that packets come with, in place of `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ikey: Option<GreKey>,
    /// The key that packets go with, in place of `key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub okey: Option<GreKey>,
    /// Whether packets are numbered; those that come late are dropped. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<bool>,
    /// Whether packets have a checksum. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csum: Option<bool>,
    /// Over IPv4: whether outer packets must not be fragmented. Default: true, without `ignoreDf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pmtu_disc: Option<bool>,
    /// Over IPv4: whether packets inside are fragmented although they forbid it. Another value makes the interface
    /// again. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_df: Option<bool>,
    /// Over IPv6: how often packets may be put into further tunnels on the way, 0 to 255. Default: no limit is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encap_limit: Option<EncapLimit>,
    /// Over IPv6: the flow label, 0 to 1048575. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_label: Option<FlowLabel>,
    /// A mark by which the pod's rules route the outer packets. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
    /// A VRF in the pod that it is a port of; with `carries: ethernet` also a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// What a GRE tunnel carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Carries {
    #[default]
    Ip,
    Ethernet,
}

/// The sentence of [`KEYS`].
const ONE_KEY: &str = "`key` is for both directions: state it, or `ikey` and `okey`";

const KEYS: Rule<'_> = ("!has(self.key) || (!has(self.ikey) && !has(self.okey))", ONE_KEY);

const ONLY_ETHERNET: Rule<'_> = (
    "!has(self.hardwareAddr) || (has(self.carries) && self.carries == 'ethernet')",
    "a gre that carries no Ethernet has no hardware address of its own",
);

fn rules() -> serde_json::Value {
    rules_with(&[same_family(), local_over_ipv6(), KEYS, PORT_OF_ONE, ONLY_ETHERNET])
}

impl GreSpec {
    fn link(&self, remote: Option<&FarEnd>, problems: &mut Problems) -> link::Gre {
        let address = remote.and_then(FarEnd::address);
        let local = self.local.as_ref().and_then(|local| local.read("spec.local", problems));
        // Of a pod's address the family is not known yet: what only one family has says which one is meant.
        let ipv6 = match address.or(local) {
            Some(end) => end.is_ipv6(),
            None => self.encap_limit.is_some() || self.flow_label.is_some(),
        };
        if self.key.is_some() && (self.ikey.is_some() || self.okey.is_some()) {
            problems.invalid("spec.key", ONE_KEY);
        }
        let key = |own: &Option<GreKey>, field: &str, problems: &mut Problems| {
            let (key, field) = if own.is_some() { (own, field) } else { (&self.key, "spec.key") };
            key.as_ref().and_then(|key| key.read(field, problems)).map(|key| OrNone(Some(key)))
        };
        let gre = link::Gre {
            form: GreForm::new(self.carries == Carries::Ethernet, ipv6),
            remote: address,
            local,
            parent: None,
            ttl: self.ttl.as_ref().and_then(|ttl| ttl.read("spec.ttl", problems)),
            tos: self.tos.as_ref().and_then(|tos| tos.read("spec.tos", problems)),
            ikey: key(&self.ikey, "spec.ikey", problems),
            okey: key(&self.okey, "spec.okey", problems),
            seq: self.seq,
            csum: self.csum,
            pmtudisc: self.pmtu_disc,
            ignore_df: self.ignore_df,
            encap_limit: self
                .encap_limit
                .as_ref()
                .and_then(|limit| limit.read("spec.encapLimit", problems))
                .map(|limit| OrNone(Some(limit))),
            flow_label: self.flow_label.as_ref().and_then(|label| label.read("spec.flowLabel", problems)),
            fwmark: self.fwmark.as_ref().and_then(|mark| mark.read("spec.fwmark", problems)),
        };
        gre.check("spec", problems);
        gre
    }
}

impl Kind for Gre {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Carries", type_: "string", path: ".spec.carries", wide: false },
        Column { name: "Remote", type_: "string", path: ".spec.remote", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = read_name(spec.interface_name.as_ref(), spec.name_prefix.as_ref(), &mut to.problems);
        let parent = spec.parent.as_ref().and_then(|parent| parent.read("spec.parent", &mut to.problems));
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        let remote = spec.remote.as_ref().and_then(|remote| remote.read("spec.remote", &mut to.problems));
        let gre = spec.link(remote.as_ref(), &mut to.problems);
        let entry = Entry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Gre(gre),
            parent,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.tunnel(entry, remote.and_then(FarEnd::into_pod));
    }
}
