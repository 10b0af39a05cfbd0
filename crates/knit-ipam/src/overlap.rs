//! Overlaps of ranges.

use ipnet::IpNet;

/// Whether two ranges overlap.
pub fn overlaps(one: IpNet, other: IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// An error message if the range overlaps one of the named ranges.
///
/// A name reads like `service range`; [`reserved_ranges`] lists those that are never usable for pods.
pub fn overlap_message(range: IpNet, others: &[(&str, IpNet)]) -> Option<String> {
    let (name, other) = others.iter().find(|(_, other)| overlaps(range, *other))?;
    Some(format!("{range} overlaps the {name} {other}"))
}

/// Special-purpose ranges that are never usable for pods, with their names.
pub fn reserved_ranges() -> Vec<(&'static str, IpNet)> {
    let ranges = [
        ("range for \"this network\"", "0.0.0.0/8"),
        ("loopback range", "127.0.0.0/8"),
        ("link-local range", "169.254.0.0/16"),
        ("multicast range", "224.0.0.0/4"),
        ("reserved range", "240.0.0.0/4"),
        ("unspecified address", "::/128"),
        ("loopback range", "::1/128"),
        ("range of IPv4-mapped addresses", "::ffff:0:0/96"),
        ("link-local range", "fe80::/10"),
        ("multicast range", "ff00::/8"),
    ];
    ranges.map(|(name, range)| (name, range.parse().expect("a constant range is valid"))).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_overlap_when_one_contains_the_other() {
        for (one, other, expected) in [
            ("192.168.100.0/24", "192.168.96.0/20", true),
            ("192.168.100.77/24", "192.168.100.1/32", true),
            ("10.0.0.0/25", "10.0.0.128/25", false),
            ("0.0.0.0/0", "10.0.0.0/8", true),
            ("::/0", "10.0.0.0/8", false),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8", false),
            ("fd00::/48", "fd00:0:0:1::/64", true),
        ] {
            assert_eq!(overlaps(net(one), net(other)), expected, "{one} {other}");
            assert_eq!(overlaps(net(other), net(one)), expected, "{other} {one}");
        }
    }

    #[test]
    fn an_overlap_message_names_the_other_range() {
        let others = [("pod range", net("10.244.0.0/16")), ("service range", net("192.168.96.0/20"))];
        assert_eq!(
            overlap_message(net("192.168.100.0/24"), &others).unwrap(),
            "192.168.100.0/24 overlaps the service range 192.168.96.0/20"
        );
        assert_eq!(overlap_message(net("192.168.112.0/24"), &others), None);
    }

    #[test]
    fn special_purpose_ranges_are_reserved() {
        let message = |range: &str| overlap_message(net(range), &reserved_ranges());
        for range in
            ["::/0", "0.0.0.0/0", "::ffff:10.0.0.0/104", "169.254.7.0/24", "fe80::/64", "239.0.0.0/24"]
        {
            assert!(message(range).is_some(), "{range}");
        }
        assert_eq!(message("fe80::/64").unwrap(), "fe80::/64 overlaps the link-local range fe80::/10");
        for range in ["10.0.0.0/8", "100.64.0.0/10", "fd00::/48", "2001:db8::/32"] {
            assert_eq!(message(range), None, "{range}");
        }
    }
}
