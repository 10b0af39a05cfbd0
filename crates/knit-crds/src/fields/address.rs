//! Addresses and ranges.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::Problems;

use super::{Rule, text, values};

/// More ranges on one interface than anyone has asked for.
const MAX_RANGES: usize = 4;

/// See [`not_mapped`].
const MAPPED: Rule<'_> = (
    "!self.matches('(^|,)::[fF]{4}:([0-9]+[.]|[0-9a-fA-F]+:[0-9a-fA-F]+(/|,|$))')",
    "this is an IPv4 address written as IPv6: write it as IPv4",
);

/// Two ranges of a list have no address in common, if there are so many.
macro_rules! apart {
    ($a:literal, $b:literal) => {
        concat!(
            "(self.split(',').size() <= ",
            $b,
            " || (!cidr(self.split(',')[",
            $a,
            "]).containsCIDR(cidr(self.split(',')[",
            $b,
            "])) && !cidr(self.split(',')[",
            $b,
            "]).containsCIDR(cidr(self.split(',')[",
            $a,
            "]))))",
        )
    };
}

values! {
    /// One range.
    Cidr(String) = text(43, &[
        ("isCIDR(self)", "expected a range such as 192.168.100.0/24 or fd00:100::/64"),
        MAPPED,
        (
            "!isCIDR(self) || cidr(self) == cidr(self).masked()",
            "a range has no host bits set: 192.168.100.0/24, not 192.168.100.7/24",
        ),
        (
            "!isCIDR(self) || (cidr(self).prefixLength() >= 1 \
             && cidr(self).prefixLength() <= (cidr(self).ip().family() == 4 ? 30 : 126))",
            "a range has a prefix length from 1 to 30 (IPv4) or 126 (IPv6): the bridge and one pod need an address each",
        ),
        (
            "!isCIDR(self) || cidr(self).prefixLength() == 0 || cidr(self).ip().isGlobalUnicast()",
            "a range is of ordinary addresses, not multicast, loopback or link-local",
        ),
    ]);
    /// One range, or several, at most four, that are separated by commas. It is short, because an API server counts the cost of the
    /// rules for the longest text and the longest list around it.
    CidrList(String) = text(128, &[
        (
            "self.split(',').all(r, isCIDR(r))",
            "expected a range such as 192.168.100.0/24 or fd00:100::/64, or several separated by commas without spaces",
        ),
        (
            "self.split(',').all(r, !isCIDR(r) || cidr(r) == cidr(r).masked())",
            "a range has no host bits set: 192.168.100.0/24, not 192.168.100.7/24",
        ),
        (
            "self.split(',').all(r, !isCIDR(r) || (cidr(r).prefixLength() >= 1 \
             && cidr(r).prefixLength() <= (cidr(r).ip().family() == 4 ? 30 : 126)))",
            "a range has a prefix length from 1 to 30 (IPv4) or 126 (IPv6): the bridge and one pod need an address each",
        ),
        (
            "self.split(',').all(r, !isCIDR(r) || cidr(r).prefixLength() == 0 || cidr(r).ip().isGlobalUnicast())",
            "a range is of ordinary addresses, not multicast, loopback or link-local",
        ),
        MAPPED,
        ("self.split(',').size() <= 4", "at most 4 ranges are allowed"),
        (
            // Every pair by itself: a loop in a loop would cost an API server too much.
            concat!(
                "!self.split(',').all(x, isCIDR(x)) || (",
                apart!(0, 1), " && ", apart!(0, 2), " && ", apart!(0, 3), " && ",
                apart!(1, 2), " && ", apart!(1, 3), " && ", apart!(2, 3), ")",
            ),
            "ranges of one list do not overlap",
        ),
    ]);
    /// An address with its prefix length.
    AddressText(String) = text(49, &[
        ("isCIDR(self)", "expected an address with its prefix length, such as 192.168.100.7/24"),
        MAPPED,
        ("!isCIDR(self) || cidr(self).prefixLength() > 0", "this puts every address there is on the link"),
        (
            "!isCIDR(self) || cidr(self).ip().isGlobalUnicast() || cidr(self).ip().isLinkLocalUnicast()",
            "no interface can have such an address: it is for multicast, the loopback's, or none",
        ),
        (
            "!isCIDR(self) || !(cidr(self) == cidr(self).masked()) \
             || cidr(self).prefixLength() >= (cidr(self).ip().family() == 4 ? 31 : 127)",
            "this is the network itself, not an address in it",
        ),
    ]);
    /// A destination.
    PrefixText(String) = text(49, &[
        ("isCIDR(self)", "expected a prefix such as 10.0.0.0/8, 0.0.0.0/0 or ::/0"),
        ("!isCIDR(self) || cidr(self) == cidr(self).masked()", "a prefix has no host bits set: 10.0.0.0/8, not 10.1.2.3/8"),
    ]);
    /// An address without a prefix length.
    IpText(String) = text(45, &[("isIP(self)", "expected an address such as 192.168.100.1 or fd00::1")]);
}

impl Cidr {
    /// The range, if addresses can be given from it.
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpNet> {
        problems.check(field, range(&self.0))
    }
}

impl CidrList {
    /// The ranges, each one that addresses can be given from.
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Vec<IpNet> {
        let field = field.into();
        let parts: Vec<&str> = self.0.split(',').collect();
        if parts.len() > MAX_RANGES {
            problems.invalid(field, format!("{} ranges, at most {MAX_RANGES} are allowed", parts.len()));
            return Vec::new();
        }
        let mut ranges: Vec<IpNet> = Vec::new();
        for part in parts {
            let Some(range) = problems.check(&field, range(part)) else { continue };
            if let Some(other) = ranges.iter().find(|other| other.contains(&range) || range.contains(*other))
            {
                problems.invalid(&field, format!("{range} overlaps {other}, which is in the same list"));
                continue;
            }
            ranges.push(range);
        }
        ranges
    }
}

impl AddressText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpNet> {
        problems.check(field, host_address(&self.0))
    }
}

impl PrefixText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpNet> {
        let expected = "a prefix such as 10.0.0.0/8, 0.0.0.0/0 or ::/0";
        let prefix = parse(&self.0, expected).and_then(without_host_bits);
        problems.check(field, prefix)
    }
}

impl IpText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpAddr> {
        let parsed = self.0.parse().map_err(|_| {
            format!(
                "`{}` is no address: expected one such as 192.168.100.1 or fd00::1",
                self.0.escape_debug()
            )
        });
        problems.check(field, parsed.and_then(|address: IpAddr| not_mapped(address).map(|()| address)))
    }
}

impl IpText {
    /// An address that a machine may have on any of its links.
    pub(crate) fn read_ordinary(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpAddr> {
        let field = field.into();
        let address = self.read(field.clone(), problems)?;
        let everyone = || (address == IpAddr::from([255; 4])).then_some("for everyone on a link");
        let special = special(address).or_else(|| link_local(address)).or_else(everyone);
        problems.check(field, special.map_or(Ok(address), |special| Err(format!("{address} is {special}"))))
    }
}

/// A range that addresses can be given from.
fn range(text: &str) -> Result<IpNet, String> {
    let range = parse(text, "a range such as 192.168.100.0/24 or fd00:100::/64")?;
    if range.prefix_len() == 0 {
        return Err(format!("{range} is every address there is: name the range that is yours"));
    }
    let range = without_host_bits(range)?;
    if range.prefix_len() + 2 > range.max_prefix_len() {
        return Err(format!("{range} is too small: the bridge and at least one pod need an address each"));
    }
    let special = special(range.addr()).or_else(|| link_local(range.addr()));
    special.map_or(Ok(range), |special| Err(format!("{range} is {special}")))
}

/// An address that an interface may have.
fn host_address(text: &str) -> Result<IpNet, String> {
    let address = parse(text, "an address with its prefix length, such as 192.168.100.7/24")?;
    let single = address.prefix_len() == address.max_prefix_len();
    if address.prefix_len() == 0 {
        return Err(format!("{address} puts every address there is on the link"));
    }
    if let Some(special) = special(address.addr()) {
        return Err(format!("{} is {special}", address.addr()));
    }
    if !single && address.prefix_len() + 1 < address.max_prefix_len() {
        if address.addr() == address.network() {
            return Err(format!("{address} is the network itself, not an address in it"));
        }
        if address.addr().is_ipv4() && address.addr() == address.broadcast() {
            return Err(format!("{address} is the network's broadcast address"));
        }
    }
    Ok(address)
}

fn parse(text: &str, expected: &str) -> Result<IpNet, String> {
    let refused = || format!("`{}` is not {expected}", text.escape_debug());
    let parsed: IpNet = text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(_) => format!("`{text}` has no prefix length: expected {expected}"),
        Err(_) => refused(),
    })?;
    not_mapped(parsed.addr()).map(|()| parsed)
}

fn without_host_bits(prefix: IpNet) -> Result<IpNet, String> {
    if prefix == prefix.trunc() {
        return Ok(prefix);
    }
    Err(format!("{prefix} has host bits set: the network is {}", prefix.trunc()))
}

/// `::ffff:192.0.2.1` is an IPv4 address in disguise: the kernel and every tool after it would see two different things.
fn not_mapped(address: IpAddr) -> Result<(), String> {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("`{address}` is an IPv4 address written as IPv6: write it as IPv4"))
        }
        _ => Ok(()),
    }
}

/// What no interface may have, in words.
fn special(address: IpAddr) -> Option<&'static str> {
    if address.is_multicast() {
        Some("for multicast, no interface can have such an address")
    } else if address.is_loopback() {
        Some("the loopback's, no other interface can have such an address")
    } else if address.is_unspecified() {
        Some("no address")
    } else {
        None
    }
}

/// Every link has these addresses already: as a range they would be on two links at once.
fn link_local(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    link_local.then_some("link-local, which every link may have: take a range of your own")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str) -> (Vec<IpNet>, String) {
        let mut problems = Problems::default();
        let ranges = CidrList(text.to_owned()).read("", &mut problems);
        (ranges, problems.to_string())
    }

    #[test]
    fn a_list_has_ranges_of_both_families() {
        let (ranges, problems) = ranges("192.168.100.0/24,fd00:100::/64");
        assert_eq!(problems, "");
        assert_eq!(ranges.len(), 2);
    }

    #[test]
    fn the_smallest_range_has_room_for_a_bridge_and_a_pod() {
        assert_eq!(ranges("10.0.0.0/30").1, "");
        assert_eq!(ranges("fd00::/126").1, "");
        for small in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::/128"] {
            assert!(ranges(small).1.contains("too small"), "{small}");
        }
    }

    #[test]
    fn the_network_and_broadcast_addresses_are_no_hosts() {
        assert!(host_address("10.0.0.0/24").is_err());
        assert!(host_address("10.0.0.255/24").is_err());
        assert!(host_address("10.0.0.0/31").is_ok());
        assert!(host_address("10.0.0.7/32").is_ok());
        assert!(host_address("fd00::ffff/112").is_ok());
    }
}
