//! Encodes bonds.

use knit_model::IfName;
use knit_model::link::{Bond, BondMode, LacpRate, XmitHashPolicy};

use super::{FieldSelection, RelatedLinks, WireKind};
use crate::features::Probe;
use crate::netlink::{Attributes, Message};

// if_link.h, IFLA_BOND_*
const MODE: u16 = 1;
const MIIMON: u16 = 3;
const UPDELAY: u16 = 4;
const DOWNDELAY: u16 = 5;
const XMIT_HASH_POLICY: u16 = 14;
const MIN_LINKS: u16 = 18;
const AD_LACP_RATE: u16 = 21;

/// The kernel's numbers for the modes (if_bonding.h, BOND_MODE_*).
const MODES: [(BondMode, u8); 7] = [
    (BondMode::BalanceRr, 0),
    (BondMode::ActiveBackup, 1),
    (BondMode::BalanceXor, 2),
    (BondMode::Broadcast, 3),
    (BondMode::Lacp, 4),
    (BondMode::BalanceTlb, 5),
    (BondMode::BalanceAlb, 6),
];

/// The kernel's numbers for the policies (if_bonding.h, BOND_XMIT_POLICY_*).
const POLICIES: [(XmitHashPolicy, u8); 6] = [
    (XmitHashPolicy::Layer2, 0),
    (XmitHashPolicy::Layer34, 1),
    (XmitHashPolicy::Layer23, 2),
    (XmitHashPolicy::Encap23, 3),
    (XmitHashPolicy::Encap34, 4),
    (XmitHashPolicy::VlanSrcmac, 5),
];

/// The kernel's numbers for the rates.
const RATES: [(LacpRate, u8); 2] = [(LacpRate::Slow, 0), (LacpRate::Fast, 1)];

impl WireKind for Bond {
    const CONFIG: &'static str = "CONFIG_BONDING";
    const PROBES: &'static [Probe] =
        &[Probe::link("bond", "bonds", Self::CONFIG, |scratch| scratch.link("bond", |_| ()))
            .module("bonding")
            .makes_devices()
            .needed_for("several interfaces of a pod as one")];
    /// Its members would remain enslaved.
    const ALLOWS_DEFERRED_DELETE: bool = false;
    /// The kernel keeps delays as multiples of `miimon`, so a change of it is sent with the delays.
    const RESETS_OMITTED_FIELDS: bool = true;

    fn encode(&self, selection: FieldSelection<'_>, _related: &RelatedLinks<'_>, data: &mut Message) {
        if let Some(mode) = selection.select("mode", self.mode).and_then(|mode| number(&MODES, mode)) {
            data.put_u8(MODE, mode);
        }
        let miimon = selection.select("miimon", self.miimon);
        if let Some(miimon) = miimon {
            data.put_u32(MIIMON, miimon);
        }
        // The kernel rejects delays without monitoring, also 0.
        if self.miimon != Some(0) {
            for (field, delay, attribute) in
                [("updelay", self.updelay, UPDELAY), ("downdelay", self.downdelay, DOWNDELAY)]
            {
                if let Some(delay) =
                    delay.filter(|_| miimon.is_some() || selection.select(field, delay).is_some())
                {
                    data.put_u32(attribute, delay);
                }
            }
        }
        let policy = selection.select("xmit_hash_policy", self.xmit_hash_policy);
        if let Some(policy) = policy.and_then(|policy| number(&POLICIES, policy)) {
            data.put_u8(XMIT_HASH_POLICY, policy);
        }
        if let Some(links) = selection.select("min_links", self.min_links) {
            data.put_u32(MIN_LINKS, links);
        }
        // The kernel rejects the rate in other modes.
        let rate =
            selection.select("lacp_rate", self.lacp_rate).filter(|_| self.mode == Some(BondMode::Lacp));
        if let Some(rate) = rate.and_then(|rate| number(&RATES, rate)) {
            data.put_u8(AD_LACP_RATE, rate);
        }
    }

    fn decode(data: Attributes<'_>, _parent: Option<IfName>) -> Self {
        let byte = |kind| data.first(kind).and_then(|value| value.u8());
        let word = |kind| data.first(kind).and_then(|value| value.u32());
        Self {
            mode: byte(MODE).and_then(|mode| value(&MODES, mode)),
            miimon: word(MIIMON),
            updelay: word(UPDELAY),
            downdelay: word(DOWNDELAY),
            xmit_hash_policy: byte(XMIT_HASH_POLICY).and_then(|policy| value(&POLICIES, policy)),
            lacp_rate: byte(AD_LACP_RATE).and_then(|rate| value(&RATES, rate)),
            min_links: word(MIN_LINKS),
        }
    }

    /// It has no parent.
    fn parent_index(_data: Attributes<'_>, _link: Option<u32>) -> Option<u32> {
        None
    }
}

fn number<T: PartialEq>(numbers: &[(T, u8)], value: T) -> Option<u8> {
    numbers.iter().find(|(other, _)| *other == value).map(|(_, number)| *number)
}

fn value<T: Copy>(numbers: &[(T, u8)], number: u8) -> Option<T> {
    numbers.iter().find(|(_, other)| *other == number).map(|(value, _)| *value)
}
