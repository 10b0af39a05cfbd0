//! Ranges that must not meet.

use ipnet::IpNet;

/// Whether two ranges have an address in common.
pub fn overlaps(one: IpNet, other: IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// Why the range cannot be used beside the named ranges, as a sentence; `None` if nothing speaks against it.
///
/// A name reads like `service range`; [`never_for_pods`] has those that no cluster may give to pods.
pub fn forbidden(range: IpNet, others: &[(&str, IpNet)]) -> Option<String> {
    let (name, other) = others.iter().find(|(_, other)| overlaps(range, *other))?;
    Some(format!("{range} overlaps the {name} {other}"))
}

/// Ranges that mean something else on every machine, with their names.
pub fn never_for_pods() -> Vec<(&'static str, IpNet)> {
    let ranges = [
        ("range for \"this network\"", "0.0.0.0/8"),
        ("loopback range", "127.0.0.0/8"),
        ("link-local range", "169.254.0.0/16"),
        ("multicast range", "224.0.0.0/4"),
        ("range that no host may use", "240.0.0.0/4"),
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
    fn ranges_overlap_when_one_holds_the_other() {
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
    fn a_forbidden_range_names_what_it_meets() {
        let others = [("pod range", net("10.244.0.0/16")), ("service range", net("192.168.96.0/20"))];
        assert_eq!(
            forbidden(net("192.168.100.0/24"), &others).unwrap(),
            "192.168.100.0/24 overlaps the service range 192.168.96.0/20"
        );
        assert_eq!(forbidden(net("192.168.112.0/24"), &others), None);
    }

    #[test]
    fn some_ranges_are_never_for_pods() {
        let refused = |range: &str| forbidden(net(range), &never_for_pods());
        for range in
            ["::/0", "0.0.0.0/0", "::ffff:10.0.0.0/104", "169.254.7.0/24", "fe80::/64", "239.0.0.0/24"]
        {
            assert!(refused(range).is_some(), "{range}");
        }
        assert_eq!(refused("fe80::/64").unwrap(), "fe80::/64 overlaps the link-local range fe80::/10");
        for range in ["10.0.0.0/8", "100.64.0.0/10", "fd00::/48", "2001:db8::/32"] {
            assert_eq!(refused(range), None, "{range}");
        }
    }
}
