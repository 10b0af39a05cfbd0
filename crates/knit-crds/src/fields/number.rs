//! Numbers with bounds.

use knit_model::Problems;
use knit_model::link::{MAX_FLOW_LABEL, MAX_MTU, MIN_MTU};

use super::{number, number_with, text, values};

const U32: i64 = u32::MAX as i64;

values! {
    /// An MTU in bytes.
    Mtu(i64) = number(MIN_MTU.into(), MAX_MTU.into(), "MTU must be between 68 and 65535 bytes");
    /// A transmit queue length in packets.
    QueueLength(i64) = number(0, U32, "queue length must be between 0 and 4294967295 packets");
    /// A link group.
    LinkGroup(i64) = number(0, U32, "link group must be between 0 and 4294967295");
    /// A virtual network identifier (VNI).
    Vni(i64) = number(0, 0xff_ffff, "VNI must be between 0 and 16777215");
    /// A TCP or UDP port.
    Port(i64) = number(1, 65_535, "port must be between 1 and 65535");
    /// A TTL.
    Ttl(i64) = number(0, 255, "TTL must be between 0 and 255");
    /// The DS field of an outer header.
    Tos(i64) = number(0, 255, "DS field must be between 0 and 255; 1 copies it from the inner packet");
    /// The key of a GRE tunnel.
    GreKey(i64) = number(0, U32, "GRE key must be between 0 and 4294967295");
    /// A tunnel encapsulation limit.
    EncapLimit(i64) = number(0, 255, "encapsulation limit must be between 0 and 255");
    /// An IPv6 flow label.
    FlowLabel(i64) = number(0, MAX_FLOW_LABEL.into(), "flow label must be between 0 and 1048575");
    /// A time in seconds.
    Seconds(i64) = number(0, 1_000_000, "must be between 0 and 1000000 seconds");
    /// A spanning tree priority.
    StpPriority(i64) = number(0, 65_535, "bridge priority must be between 0 and 65535");
    /// A routing table.
    TableId(i64) = number(1, U32, "routing table must be between 1 and 4294967295");
    /// A route's metric.
    Metric(i64) = number(0, U32, "metric must be between 0 and 4294967295");
    /// The priority of a policy rule.
    Priority(i64) = number(1, U32, "rule priority must be between 1 and 4294967295: 0 is reserved by the kernel");
    /// A numeric user or group ID.
    UserId(i64) = number(0, U32 - 1, "user or group ID must be between 0 and 4294967294");
    /// A packet mark or its mask.
    Mark(i64) = number(0, U32, "mark must be between 0 and 4294967295");
    /// The weight of a next hop.
    Weight(i64) = number(1, 256, "weight must be between 1 and 256");
    /// A prefix length.
    PrefixLength(i64) = number(0, 128, "prefix length must be between 0 and 128");
    /// A VLAN ID.
    VlanId(i64) = number(1, 4094, "VLAN ID must be between 1 and 4094: 0 and 4095 are reserved");
    /// The default VLAN of bridge ports.
    DefaultVlan(i64) = number(0, 4094, "VLAN ID must be between 0 and 4094; 0 is none");
    /// The routing table of a VRF.
    VrfTable(i64) = number_with(1, U32, "routing table must be between 1 and 4294967295", &[(
        "self < 253 || self > 255",
        "routing table must not be 253, 254 or 255, which are the pod's own",
    )]);
    /// A priority in a VLAN tag.
    TagPriority(i64) = number(0, 7, "tag priority must be between 0 and 7");
    /// A packet priority (skb priority).
    SkbPriority(i64) = number(0, U32, "priority must be between 0 and 4294967295");
    /// A VLAN or a range of VLANs, such as `100` or `100-199`.
    VlanRange(String) = text(16, &[(
        "self.matches('^[0-9]+(-[0-9]+)?$') && self.split('-').all(v, int(v) >= 1 && int(v) <= 4094) \
         && int(self.split('-')[0]) <= int(self.split('-')[self.split('-').size() - 1])",
        "must be a VLAN ID between 1 and 4094, or a range such as `100-199`",
    )]);
}

/// `read` for numbers: the model's value if it is within bounds, otherwise a problem.
macro_rules! bounded {
    ($($name:ident => $model:ty, $bounds:expr, $message:expr;)*) => {$(
        impl $name {
            pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<$model> {
                let within = $bounds.contains(&self.0);
                let value = <$model>::try_from(self.0).ok().filter(|_| within);
                if value.is_none() {
                    problems.invalid(field, format!($message, self.0));
                }
                value
            }
        }
    )*};
}

bounded! {
    Mtu => u32, (i64::from(MIN_MTU)..=i64::from(MAX_MTU)), "MTU must be between 68 and 65535, got {}";
    QueueLength => u32, (0..=U32), "queue length must be between 0 and 4294967295, got {}";
    LinkGroup => u32, (0..=U32), "link group must be between 0 and 4294967295, got {}";
    Vni => u32, (0..=0xff_ffff), "VNI must be between 0 and 16777215, got {}";
    Port => u16, (1..=65_535), "port must be between 1 and 65535, got {}";
    Ttl => u8, (0..=255), "TTL must be between 0 and 255, got {}";
    Tos => u8, (0..=255), "DS field must be between 0 and 255, got {}";
    GreKey => u32, (0..=U32), "GRE key must be between 0 and 4294967295, got {}";
    EncapLimit => u32, (0..=255), "encapsulation limit must be between 0 and 255, got {}";
    FlowLabel => u32, (0..=i64::from(MAX_FLOW_LABEL)), "flow label must be between 0 and 1048575, got {}";
    Seconds => u32, (0..=1_000_000), "must be between 0 and 1000000 seconds, got {}";
    StpPriority => u16, (0..=65_535), "bridge priority must be between 0 and 65535, got {}";
    TableId => u32, (1..=U32), "routing table must be between 1 and 4294967295, got {}";
    Metric => u32, (0..=U32), "metric must be between 0 and 4294967295, got {}";
    Priority => u32, (1..=U32), "rule priority must be between 1 and 4294967295, got {}";
    Mark => u32, (0..=U32), "mark must be between 0 and 4294967295, got {}";
    UserId => u32, (0..=U32 - 1), "user or group ID must be between 0 and 4294967294, got {}";
    PrefixLength => u8, (0..=128), "prefix length must be between 0 and 128, got {}";
    VlanId => u16, (1..=4094), "VLAN ID must be between 1 and 4094, got {}";
    DefaultVlan => u16, (0..=4094), "VLAN ID must be between 0 and 4094, got {}";
    VrfTable => u32, (1..=U32), "routing table must be between 1 and 4294967295, got {}";
    TagPriority => u32, (0..=7), "tag priority must be between 0 and 7, got {}";
    SkbPriority => u32, (0..=U32), "priority must be between 0 and 4294967295, got {}";
    Weight => u16, (1..=256), "weight must be between 1 and 256, got {}";
}

impl VlanRange {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<(u16, u16)> {
        let text = self.0.as_str();
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = match (first.parse::<u64>(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if digits(text.replacen('-', "", 1).as_str()) => Some((first, last)),
            _ => None,
        };
        let message = match parsed {
            None => format!("must be a VLAN ID such as `100` or a range such as `100-199`, got `{text}`"),
            Some((first, last)) if first > last => {
                format!("the first VLAN of a range must not be larger than the last, got `{text}`")
            }
            Some((first, last)) => match [first, last].into_iter().find(|vlan| !(1..=4094).contains(vlan)) {
                Some(vlan) => format!("VLAN ID must be between 1 and 4094, got {vlan}"),
                None => return u16::try_from(first).ok().zip(u16::try_from(last).ok()),
            },
        };
        problems.invalid(field, message);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_ranges_are_parsed_or_rejected() {
        let read = |text: &str| {
            let mut problems = Problems::default();
            let value = VlanRange(text.to_owned()).read("", &mut problems);
            value.ok_or_else(|| problems.to_string())
        };
        assert_eq!(read("100"), Ok((100, 100)));
        assert_eq!(read("100-199"), Ok((100, 199)));
        assert_eq!(read("0").unwrap_err(), "VLAN ID must be between 1 and 4094, got 0");
        assert_eq!(read("4000-4095").unwrap_err(), "VLAN ID must be between 1 and 4094, got 4095");
        assert_eq!(
            read("9-3").unwrap_err(),
            "the first VLAN of a range must not be larger than the last, got `9-3`"
        );
        for text in ["", "a", "1-2-3", "+1", "1-", "99999999999999999999"] {
            assert!(read(text).unwrap_err().contains("must be a VLAN ID such as"), "{text}");
        }
    }
}
