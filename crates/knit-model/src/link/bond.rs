//! bond: one link over several others, its members, for redundancy or throughput.

use serde::{Deserialize, Serialize};

use super::{Enforcement, LinkKind};
use crate::problem::Problems;

/// Bond-specific fields. Its members are the links whose master it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bond {
    /// How packets are distributed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<BondMode>,
    /// Milliseconds between checks of the members' carrier; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub miimon: Option<u32>,
    /// Milliseconds before a member with carrier is used, a multiple of `miimon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updelay: Option<u32>,
    /// Milliseconds before a member without carrier is disabled, a multiple of `miimon`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downdelay: Option<u32>,
    /// What selects the member of a packet in balance-xor, 802.3ad and balance-tlb.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub xmit_hash_policy: Option<XmitHashPolicy>,
    /// How often the partner sends LACP packets in 802.3ad.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacp_rate: Option<LacpRate>,
    /// Members that must be usable for the bond to have carrier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_links: Option<u32>,
}

/// How packets are distributed over members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BondMode {
    /// Each packet on the next member.
    BalanceRr,
    /// All packets on one member.
    ActiveBackup,
    /// The member of a packet is a hash of its headers.
    BalanceXor,
    /// Every packet on all members.
    Broadcast,
    /// Link aggregation (LACP).
    #[serde(rename = "802.3ad")]
    Lacp,
    /// Adaptive transmit load balancing.
    BalanceTlb,
    /// Adaptive load balancing.
    BalanceAlb,
}

/// The headers that select the member of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XmitHashPolicy {
    /// Hardware addresses.
    #[serde(rename = "layer2")]
    Layer2,
    /// IP addresses and ports.
    #[serde(rename = "layer3+4")]
    Layer34,
    /// Hardware and IP addresses.
    #[serde(rename = "layer2+3")]
    Layer23,
    /// Hardware and IP addresses of the inner packet of a tunnel.
    #[serde(rename = "encap2+3")]
    Encap23,
    /// IP addresses and ports of the inner packet of a tunnel.
    #[serde(rename = "encap3+4")]
    Encap34,
    /// VLAN ID and source hardware address.
    #[serde(rename = "vlan+srcmac")]
    VlanSrcmac,
}

/// How often the partner sends LACP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LacpRate {
    /// Every 30 seconds.
    Slow,
    /// Every second.
    Fast,
}

impl LinkKind for Bond {
    const NAME: &'static str = "bond";
    /// The kernel changes both only on a bond that is down, the mode only without members.
    const IMMUTABLE: &'static [&'static str] = &["mode", "lacp_rate"];
    const ENFORCEMENT: Enforcement = Enforcement::PodEnd;
    const ON_UPLINK: bool = false;
    const CONFIGURES_PORTS: bool = true;

    fn samples() -> Vec<Self> {
        vec![Self {
            mode: Some(BondMode::Lacp),
            miimon: Some(50),
            updelay: Some(100),
            downdelay: Some(150),
            xmit_hash_policy: Some(XmitHashPolicy::Layer34),
            lacp_rate: Some(LacpRate::Fast),
            min_links: Some(1),
        }]
    }

    fn with_defaults(self) -> Self {
        Self {
            mode: self.mode.or(Some(BondMode::BalanceRr)),
            miimon: self.miimon.or(Some(0)),
            updelay: self.updelay.or(Some(0)),
            downdelay: self.downdelay.or(Some(0)),
            xmit_hash_policy: self.xmit_hash_policy.or(Some(XmitHashPolicy::Layer2)),
            lacp_rate: self.lacp_rate.or(Some(LacpRate::Slow)),
            min_links: self.min_links.or(Some(0)),
        }
    }

    fn check(&self, path: &str, problems: &mut Problems) {
        let miimon = self.miimon.unwrap_or(0);
        let needs_miimon =
            matches!(self.mode, Some(BondMode::Lacp | BondMode::BalanceTlb | BondMode::BalanceAlb));
        if miimon == 0 && needs_miimon {
            problems
                .invalid(format!("{path}.miimon"), "must not be 0 in 802.3ad, balance-tlb and balance-alb");
        }
        for (field, delay) in [("updelay", self.updelay), ("downdelay", self.downdelay)] {
            let Some(delay) = delay.filter(|delay| *delay > 0) else { continue };
            if miimon == 0 || delay % miimon != 0 {
                let message = format!("must be a multiple of miimon, got {delay}");
                problems.invalid(format!("{path}.{field}"), message);
            }
        }
        if self.lacp_rate == Some(LacpRate::Fast) && self.mode != Some(BondMode::Lacp) {
            problems.invalid(format!("{path}.lacpRate"), "must be slow or unset unless mode is 802.3ad");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(bond: &Bond) -> String {
        let mut problems = Problems::default();
        bond.check("spec", &mut problems);
        problems.to_string()
    }

    #[test]
    fn delays_are_multiples_of_miimon() {
        let bond = Bond { miimon: Some(100), updelay: Some(200), downdelay: Some(0), ..Bond::default() };
        assert_eq!(problems(&bond), "");
        let odd = Bond { updelay: Some(150), ..bond.clone() };
        assert_eq!(problems(&odd), "spec.updelay: must be a multiple of miimon, got 150");
        let unmonitored = Bond { miimon: Some(0), ..bond };
        assert_eq!(problems(&unmonitored), "spec.updelay: must be a multiple of miimon, got 200");
    }

    #[test]
    fn lacp_needs_miimon_and_only_lacp_has_a_rate() {
        let lacp = Bond {
            mode: Some(BondMode::Lacp),
            miimon: Some(100),
            lacp_rate: Some(LacpRate::Fast),
            ..Bond::default()
        };
        assert_eq!(problems(&lacp), "");
        let unmonitored = Bond { miimon: Some(0), ..lacp.clone() };
        assert!(problems(&unmonitored).starts_with("spec.miimon: "), "{}", problems(&unmonitored));
        let other = Bond { mode: Some(BondMode::ActiveBackup), ..lacp };
        assert!(problems(&other).starts_with("spec.lacpRate: "), "{}", problems(&other));
    }
}
