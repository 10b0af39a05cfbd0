//! Numbers with bounds.

use knit_model::Problems;
use knit_model::link::{MAX_FLOW_LABEL, MAX_MTU, MIN_MTU};

use super::{number, number_with, text, values};

const U32: i64 = u32::MAX as i64;

values! {
    /// The largest packet, in bytes.
    Mtu(i64) = number(MIN_MTU.into(), MAX_MTU.into(), "an MTU is from 68 to 65535 bytes");
    /// How many packets may wait.
    QueueLength(i64) = number(0, U32, "a queue length is from 0 to 4294967295 packets");
    /// A link group.
    LinkGroup(i64) = number(0, U32, "a link group is from 0 to 4294967295");
    /// The number of a VXLAN network.
    Vni(i64) = number(0, 0xff_ffff, "a VNI has 24 bits: it is from 0 to 16777215");
    /// A UDP port.
    Port(i64) = number(1, 65_535, "a port is from 1 to 65535");
    /// How many hops.
    Ttl(i64) = number(0, 255, "a TTL is from 0 to 255");
    /// The DS field of an outer header.
    Tos(i64) = number(0, 255, "a DS field is from 0 to 255; 1 copies it from the packet inside");
    /// The key of a GRE tunnel.
    GreKey(i64) = number(0, U32, "a key is from 0 to 4294967295");
    /// How often a packet may be put into tunnels on its way.
    EncapLimit(i64) = number(0, 255, "an encapsulation limit is from 0 to 255");
    /// A flow label of IPv6.
    FlowLabel(i64) = number(0, MAX_FLOW_LABEL.into(), "a flow label has 20 bits: it is from 0 to 1048575");
    /// A time in seconds.
    Seconds(i64) = number(0, 1_000_000, "a time is from 0 to 1000000 seconds");
    /// A spanning tree priority.
    StpPriority(i64) = number(0, 65_535, "a spanning tree priority is from 0 to 65535");
    /// A routing table.
    TableId(i64) = number(1, U32, "a routing table is from 1 to 4294967295");
    /// A route's metric.
    Metric(i64) = number(0, U32, "a metric is from 0 to 4294967295");
    /// A rule's place in the order.
    Priority(i64) = number(1, U32, "a rule's priority is from 1 to 4294967295: 0 is the kernel's own");
    /// A user or group by number.
    UserId(i64) = number(0, U32 - 1, "a user or group is from 0 to 4294967294");
    /// A packet mark or its mask.
    Mark(i64) = number(0, U32, "a mark is from 0 to 4294967295");
    /// A next hop's share of the load.
    Weight(i64) = number(1, 256, "a weight is from 1 to 256");
    /// The length of a prefix.
    PrefixLength(i64) = number(0, 128, "a prefix has 0 to 32 bits, or 128 for IPv6");
    /// The number of a VLAN.
    VlanId(i64) = number(1, 4094, "a VLAN is from 1 to 4094: 0 and 4095 are reserved");
    /// The VLAN of ports that say nothing.
    DefaultVlan(i64) = number(0, 4094, "a VLAN is from 1 to 4094, and 0 is none");
    /// The table of a VRF.
    VrfTable(i64) = number_with(1, U32, "a routing table is from 1 to 4294967295", &[(
        "self < 253 || self > 255",
        "tables 253 to 255 are the pod's own: take another",
    )]);
    /// A priority in a VLAN tag.
    TagPriority(i64) = number(0, 7, "a tag's priority is from 0 to 7");
    /// A priority of the system's.
    SkbPriority(i64) = number(0, U32, "a priority is from 0 to 4294967295");
    /// A VLAN or a range of VLANs, such as `100` or `100-199`.
    VlanRange(String) = text(16, &[(
        "self.matches('^[0-9]+(-[0-9]+)?$') && self.split('-').all(v, int(v) >= 1 && int(v) <= 4094) \
         && int(self.split('-')[0]) <= int(self.split('-')[self.split('-').size() - 1])",
        "a VLAN is from 1 to 4094, a range is written as `100-199`: 0 and 4095 are reserved",
    )]);
}

/// `read` for numbers: the model's type if it is within bounds, or a problem with a sentence.
macro_rules! bounded {
    ($($name:ident => $model:ty, $bounds:expr, $sentence:expr;)*) => {$(
        impl $name {
            pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<$model> {
                let within = $bounds.contains(&self.0);
                let value = <$model>::try_from(self.0).ok().filter(|_| within);
                if value.is_none() {
                    problems.invalid(field, format!($sentence, self.0));
                }
                value
            }
        }
    )*};
}

bounded! {
    Mtu => u32, (i64::from(MIN_MTU)..=i64::from(MAX_MTU)), "MTU {} is outside 68 to 65535";
    QueueLength => u32, (0..=U32), "queue length {} is outside 0 to 4294967295";
    LinkGroup => u32, (0..=U32), "link group {} is outside 0 to 4294967295";
    Vni => u32, (0..=0xff_ffff), "VNI {} is outside 0 to 16777215: it has 24 bits";
    Port => u16, (1..=65_535), "port {} is outside 1 to 65535";
    Ttl => u8, (0..=255), "TTL {} is outside 0 to 255";
    Tos => u8, (0..=255), "DS field {} is outside 0 to 255";
    GreKey => u32, (0..=U32), "key {} is outside 0 to 4294967295";
    EncapLimit => u32, (0..=255), "encapsulation limit {} is outside 0 to 255";
    FlowLabel => u32, (0..=i64::from(MAX_FLOW_LABEL)), "flow label {} is outside 0 to 1048575: it has 20 bits";
    Seconds => u32, (0..=1_000_000), "{} seconds are outside 0 to 1000000";
    StpPriority => u16, (0..=65_535), "spanning tree priority {} is outside 0 to 65535";
    TableId => u32, (1..=U32), "routing table {} is outside 1 to 4294967295";
    Metric => u32, (0..=U32), "metric {} is outside 0 to 4294967295";
    Priority => u32, (1..=U32), "priority {} is outside 1 to 4294967295: 0 is the kernel's own";
    Mark => u32, (0..=U32), "mark {} is outside 0 to 4294967295";
    UserId => u32, (0..=U32 - 1), "user or group {} is outside 0 to 4294967294";
    PrefixLength => u8, (0..=128), "prefix length {} is outside 0 to 128";
    VlanId => u16, (1..=4094), "VLAN {} is outside 1 to 4094: 0 and 4095 are reserved";
    DefaultVlan => u16, (0..=4094), "VLAN {} is outside 0 to 4094: 0 is none, 4095 is reserved";
    VrfTable => u32, (1..=U32), "table {} is outside 1 to 4294967295";
    TagPriority => u32, (0..=7), "priority {} is outside 0 to 7, which is what fits into a tag";
    SkbPriority => u32, (0..=U32), "priority {} is outside 0 to 4294967295";
    Weight => u16, (1..=256), "weight {} is outside 1 to 256";
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
            None => format!("`{text}` is no VLAN: write `100`, or `100-199` for a range"),
            Some((first, last)) if first > last => {
                format!("the range `{text}` is upside down: it begins after its end")
            }
            Some((first, last)) => match [first, last].into_iter().find(|vlan| !(1..=4094).contains(vlan)) {
                Some(vlan) => format!("VLAN {vlan} is outside 1 to 4094: 0 and 4095 are reserved"),
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
    fn a_range_of_vlans_is_read_or_refused_in_words() {
        let read = |text: &str| {
            let mut problems = Problems::default();
            let value = VlanRange(text.to_owned()).read("", &mut problems);
            value.ok_or_else(|| problems.to_string())
        };
        assert_eq!(read("100"), Ok((100, 100)));
        assert_eq!(read("100-199"), Ok((100, 199)));
        assert_eq!(read("0").unwrap_err(), "VLAN 0 is outside 1 to 4094: 0 and 4095 are reserved");
        assert_eq!(read("4000-4095").unwrap_err(), "VLAN 4095 is outside 1 to 4094: 0 and 4095 are reserved");
        assert_eq!(read("9-3").unwrap_err(), "the range `9-3` is upside down: it begins after its end");
        for text in ["", "a", "1-2-3", "+1", "1-", "99999999999999999999"] {
            assert!(read(text).unwrap_err().contains("is no VLAN"), "{text}");
        }
    }
}
