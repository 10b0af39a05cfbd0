//! Bond: one interface over several others of the pod.

use knit_model::Problems;
use knit_model::link::{self, Kind as LinkKind, LinkKind as _};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Column, ResourceKind};
use crate::fields::{InterfaceName, Rule, number, values};
use crate::interface::{InterfaceFields, NameFields, each, rules_with};
use crate::rules::MASTER_OR_VRF;
use crate::selector::PodSelector;
use crate::status::PodsStatus;
use crate::translate::{InterfaceEntry, Translator};

const POD_LABEL: &str = "podnetwork.opdev.io/bond";

/// The default of `miimon`. The kernel's is 0, with which a bond never leaves a member that fails.
const DEFAULT_MIIMON: u32 = 100;

values! {
    /// A duration in milliseconds.
    Milliseconds(i64) = number(0, 3_600_000, "must be between 0 and 3600000 milliseconds");
    /// A number of members.
    MemberCount(i64) = number(0, 16, "must be between 0 and 16");
}

/// BondSpec selects pods by the label `podnetwork.opdev.io/bond: <object name>` or by `selector`, and describes the
/// bond. Its members are other interfaces of Knit in the same pod.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "podnetwork.opdev.io",
    version = "v1alpha1",
    kind = "Bond",
    namespaced,
    status = "PodsStatus",
    derive = "PartialEq",
    doc = "Bond adds a bond to each selected pod: one interface over several others of the pod, for redundancy or throughput. It is added to running pods and removed with the object, the label or the pod; its members stay.",
    shortname = "kbond"
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct BondSpec {
    /// selector selects pods in this namespace. Defaults to the pods with the label `podnetwork.opdev.io/bond: <object
    /// name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PodSelector>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub name: NameFields,
    /// members are the interfaces of the bond: the interfaceName or namePrefix of other interfaces of Knit in the pod.
    /// They have the bond's MTU and hardware address. An interface that joins or leaves is recreated.
    #[schemars(extend("minItems" = 1, "maxItems" = 16, "x-kubernetes-list-type" = "set"))]
    pub members: Vec<InterfaceName>,
    /// mode distributes packets over the members. `active-backup` uses one member at a time, `broadcast` all of them
    /// for each packet; `balance-rr`, `balance-xor`, `balance-tlb` and `balance-alb` distribute packets, and `802.3ad`
    /// negotiates that with a switch (LACP). Changing it replaces the bond. Defaults to `active-backup`.
    #[serde(default)]
    pub mode: BondMode,
    /// miimon is the interval in milliseconds at which the members' carrier is checked. 0 disables it, except in
    /// `802.3ad`, `balance-tlb` and `balance-alb`, which need it. Defaults to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miimon: Option<Milliseconds>,
    /// updelay is the time in milliseconds after which a member with carrier is used, a multiple of miimon. Defaults
    /// to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updelay: Option<Milliseconds>,
    /// downdelay is the time in milliseconds after which a member without carrier is disabled, a multiple of miimon.
    /// Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downdelay: Option<Milliseconds>,
    /// xmitHashPolicy selects the headers that determine the member of a packet in `balance-xor`, `802.3ad` and
    /// `balance-tlb`. Defaults to `layer2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xmit_hash_policy: Option<XmitHashPolicy>,
    /// lacpRate is, in `802.3ad`, how often the switch is asked to send LACP packets: `slow`, every 30 seconds, or
    /// `fast`, every second. Changing it replaces the bond. Defaults to `slow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacp_rate: Option<LacpRate>,
    /// minLinks is the number of usable members that the bond needs to have carrier. Defaults to 0, which is the same
    /// as 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_links: Option<MemberCount>,
    /// master is the name of a bridge in the pod that the interface is a port of. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master: Option<InterfaceName>,
    #[serde(flatten)]
    #[allow(missing_docs)]
    pub interface: InterfaceFields,
}

/// BondMode distributes packets over members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum BondMode {
    BalanceRr,
    #[default]
    ActiveBackup,
    BalanceXor,
    Broadcast,
    #[serde(rename = "802.3ad")]
    Lacp,
    BalanceTlb,
    BalanceAlb,
}

/// XmitHashPolicy selects the headers that determine the member of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)]
pub enum XmitHashPolicy {
    #[serde(rename = "layer2")]
    Layer2,
    #[serde(rename = "layer2+3")]
    Layer23,
    #[serde(rename = "layer3+4")]
    Layer34,
    #[serde(rename = "encap2+3")]
    Encap23,
    #[serde(rename = "encap3+4")]
    Encap34,
    #[serde(rename = "vlan+srcmac")]
    VlanSrcmac,
}

/// LacpRate is how often the partner sends LACP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum LacpRate {
    Slow,
    Fast,
}

const MIIMON_NEEDED: Rule<'_> = (
    "!has(self.miimon) || self.miimon > 0 || !has(self.mode) \
     || !(self.mode in ['802.3ad', 'balance-tlb', 'balance-alb'])",
    "miimon must not be 0 in 802.3ad, balance-tlb and balance-alb",
);
const UPDELAY: Rule<'_> = (
    "!has(self.updelay) || self.updelay == 0 || (has(self.miimon) \
     ? (self.miimon > 0 && self.updelay % self.miimon == 0) : self.updelay % 100 == 0)",
    "updelay must be a multiple of miimon",
);
const DOWNDELAY: Rule<'_> = (
    "!has(self.downdelay) || self.downdelay == 0 || (has(self.miimon) \
     ? (self.miimon > 0 && self.downdelay % self.miimon == 0) : self.downdelay % 100 == 0)",
    "downdelay must be a multiple of miimon",
);
const RATE: Rule<'_> = (
    "!has(self.lacpRate) || self.lacpRate == 'slow' || (has(self.mode) && self.mode == '802.3ad')",
    "lacpRate must be slow or unset unless mode is 802.3ad",
);

fn rules() -> serde_json::Value {
    rules_with(&[MASTER_OR_VRF, MIIMON_NEEDED, UPDELAY, DOWNDELAY, RATE])
}

fn read(value: i64, max: i64, field: &str, problems: &mut Problems) -> Option<u32> {
    let read = u32::try_from(value).ok().filter(|_| value <= max);
    if read.is_none() {
        problems.invalid(field, format!("must be between 0 and {max}, got {value}"));
    }
    read
}

impl BondSpec {
    fn link(&self, problems: &mut Problems) -> link::Bond {
        let mut time = |value: Option<&Milliseconds>, field| {
            value.and_then(|value| read(value.0, 3_600_000, field, problems))
        };
        let miimon = time(self.miimon.as_ref(), "spec.miimon").or(Some(DEFAULT_MIIMON));
        let updelay = time(self.updelay.as_ref(), "spec.updelay");
        let downdelay = time(self.downdelay.as_ref(), "spec.downdelay");
        let bond = link::Bond {
            mode: Some(match self.mode {
                BondMode::BalanceRr => link::BondMode::BalanceRr,
                BondMode::ActiveBackup => link::BondMode::ActiveBackup,
                BondMode::BalanceXor => link::BondMode::BalanceXor,
                BondMode::Broadcast => link::BondMode::Broadcast,
                BondMode::Lacp => link::BondMode::Lacp,
                BondMode::BalanceTlb => link::BondMode::BalanceTlb,
                BondMode::BalanceAlb => link::BondMode::BalanceAlb,
            }),
            miimon,
            updelay,
            downdelay,
            xmit_hash_policy: self.xmit_hash_policy.map(|policy| match policy {
                XmitHashPolicy::Layer2 => link::XmitHashPolicy::Layer2,
                XmitHashPolicy::Layer23 => link::XmitHashPolicy::Layer23,
                XmitHashPolicy::Layer34 => link::XmitHashPolicy::Layer34,
                XmitHashPolicy::Encap23 => link::XmitHashPolicy::Encap23,
                XmitHashPolicy::Encap34 => link::XmitHashPolicy::Encap34,
                XmitHashPolicy::VlanSrcmac => link::XmitHashPolicy::VlanSrcmac,
            }),
            lacp_rate: self.lacp_rate.map(|rate| match rate {
                LacpRate::Slow => link::LacpRate::Slow,
                LacpRate::Fast => link::LacpRate::Fast,
            }),
            min_links: self.min_links.as_ref().and_then(|count| read(count.0, 16, "spec.minLinks", problems)),
        };
        bond.check("spec", problems);
        bond
    }
}

impl ResourceKind for Bond {
    const POD_LABEL: Option<&'static str> = Some(POD_LABEL);
    const COLUMNS: &'static [Column] = &[
        Column { name: "Mode", type_: "string", path: ".spec.mode", wide: false },
        Column { name: "Members", type_: "string", path: ".spec.members", wide: false },
        Column { name: "CIDR", type_: "string", path: ".spec.cidr", wide: false },
    ];

    fn declare(&self, to: &mut Translator) {
        let spec = &self.spec;
        let pods = to.pods(POD_LABEL, spec.selector.as_ref());
        let name = spec.name.read(&mut to.problems);
        let master = spec.master.as_ref().and_then(|master| master.read("spec.master", &mut to.problems));
        if spec.members.is_empty() {
            to.problems.invalid("spec.members", "must have at least one member");
        }
        let members =
            each(&spec.members, "spec.members", |member, field| member.read(field, &mut to.problems));
        let bond = spec.link(&mut to.problems);
        let entry = InterfaceEntry {
            path: "spec",
            name,
            pods,
            kind: LinkKind::Bond(bond),
            parent: None,
            master: master.map(String::from),
            fields: &spec.interface,
        };
        to.master(entry, members.into_iter().map(String::from).collect());
    }
}
