//! Addresses and subnets.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_model::Problems;

use super::{Rule, text, values};

/// The maximum number of subnets of one interface.
const MAX_RANGES: usize = 4;

/// See [`not_mapped`].
const MAPPED: Rule<'_> = (
    "!self.matches('(^|,)::[fF]{4}:([0-9]+[.]|[0-9a-fA-F]+:[0-9a-fA-F]+(/|,|$))')",
    "must not be an IPv4-mapped IPv6 address: write it as IPv4",
);

/// CEL: two subnets of a list do not overlap, if the list has that many.
macro_rules! disjoint {
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
    /// A subnet.
    Cidr(String) = text(43, &[
        ("isCIDR(self)", "must be a subnet such as 192.168.100.0/24 or fd00:100::/64"),
        MAPPED,
        (
            "!isCIDR(self) || cidr(self) == cidr(self).masked()",
            "must have no host bits set: 192.168.100.0/24, not 192.168.100.7/24",
        ),
        (
            "!isCIDR(self) || (cidr(self).prefixLength() >= 1 \
             && cidr(self).prefixLength() <= (cidr(self).ip().family() == 4 ? 30 : 126))",
            "must have a prefix length of 1 to 30 (IPv4) or 1 to 126 (IPv6): the bridge and one pod need an address each",
        ),
        (
            "!isCIDR(self) || cidr(self).prefixLength() == 0 || cidr(self).ip().isGlobalUnicast()",
            "must be a unicast subnet, not multicast, loopback or link-local",
        ),
    ]);
    /// Up to four subnets separated by commas. The length limit bounds the cost of the CEL rules, which the API server
    /// estimates for the longest value in the longest list.
    CidrList(String) = text(128, &[
        (
            "self.split(',').all(r, isCIDR(r))",
            "must be a subnet such as 192.168.100.0/24 or fd00:100::/64, or several separated by commas without spaces",
        ),
        (
            "self.split(',').all(r, !isCIDR(r) || cidr(r) == cidr(r).masked())",
            "must have no host bits set: 192.168.100.0/24, not 192.168.100.7/24",
        ),
        (
            "self.split(',').all(r, !isCIDR(r) || (cidr(r).prefixLength() >= 1 \
             && cidr(r).prefixLength() <= (cidr(r).ip().family() == 4 ? 30 : 126)))",
            "must have a prefix length of 1 to 30 (IPv4) or 1 to 126 (IPv6): the bridge and one pod need an address each",
        ),
        (
            "self.split(',').all(r, !isCIDR(r) || cidr(r).prefixLength() == 0 || cidr(r).ip().isGlobalUnicast())",
            "must be a unicast subnet, not multicast, loopback or link-local",
        ),
        MAPPED,
        ("self.split(',').size() <= 4", "must contain at most 4 subnets"),
        (
            // Each pair explicitly: nested loops exceed the CEL cost limit.
            concat!(
                "!self.split(',').all(x, isCIDR(x)) || (",
                disjoint!(0, 1), " && ", disjoint!(0, 2), " && ", disjoint!(0, 3), " && ",
                disjoint!(1, 2), " && ", disjoint!(1, 3), " && ", disjoint!(2, 3), ")",
            ),
            "subnets must not overlap",
        ),
    ]);
    /// An address with its prefix length.
    AddressText(String) = text(49, &[
        ("isCIDR(self)", "must be an address with a prefix length, such as 192.168.100.7/24"),
        MAPPED,
        ("!isCIDR(self) || cidr(self).prefixLength() > 0", "must have a prefix length of at least 1"),
        (
            "!isCIDR(self) || cidr(self).ip().isGlobalUnicast() || cidr(self).ip().isLinkLocalUnicast()",
            "must be a unicast address, not multicast, loopback or unspecified",
        ),
        (
            "!isCIDR(self) || !(cidr(self) == cidr(self).masked()) \
             || cidr(self).prefixLength() >= (cidr(self).ip().family() == 4 ? 31 : 127)",
            "must be a host address, not the network address",
        ),
    ]);
    /// A destination prefix.
    PrefixText(String) = text(49, &[
        ("isCIDR(self)", "must be a prefix such as 10.0.0.0/8, 0.0.0.0/0 or ::/0"),
        ("!isCIDR(self) || cidr(self) == cidr(self).masked()", "must have no host bits set: 10.0.0.0/8, not 10.1.2.3/8"),
    ]);
    /// A range whose addresses are assigned one by one. The size is bounded, so that addresses can be counted.
    PoolRange(String) = text(43, &[
        ("isCIDR(self)", "must be a range such as 192.0.2.128/26, 192.0.2.7/32 or 2001:db8::/112"),
        MAPPED,
        (
            "!isCIDR(self) || cidr(self) == cidr(self).masked()",
            "must have no host bits set: 192.0.2.128/26, not 192.0.2.130/26",
        ),
        (
            "!isCIDR(self) || cidr(self).prefixLength() >= (cidr(self).ip().family() == 4 ? 8 : 96)",
            "must have a prefix length of at least 8 (IPv4) or 96 (IPv6)",
        ),
        (
            "!isCIDR(self) || cidr(self).prefixLength() < 8 || cidr(self).ip().isGlobalUnicast()",
            "must be a unicast range, not multicast, loopback or link-local",
        ),
    ]);
    /// An IP address without a prefix length.
    IpText(String) = text(45, &[("isIP(self)", "must be an IP address such as 192.168.100.1 or fd00::1")]);
}

impl Cidr {
    /// The subnet, if addresses can be allocated from it.
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpNet> {
        problems.check(field, range(&self.0))
    }
}

impl CidrList {
    /// The valid subnets.
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Vec<IpNet> {
        let field = field.into();
        let parts: Vec<&str> = self.0.split(',').collect();
        if parts.len() > MAX_RANGES {
            problems
                .invalid(field, format!("must contain at most {MAX_RANGES} subnets, got {}", parts.len()));
            return Vec::new();
        }
        let mut ranges: Vec<IpNet> = Vec::new();
        for part in parts {
            let Some(range) = problems.check(&field, range(part)) else { continue };
            if let Some(other) = ranges.iter().find(|other| other.contains(&range) || range.contains(*other))
            {
                problems.invalid(&field, format!("subnets must not overlap: {range} overlaps {other}"));
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

impl PoolRange {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpNet> {
        problems.check(field, pool_range(&self.0))
    }
}

impl IpText {
    pub(crate) fn read(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpAddr> {
        let parsed = self.0.parse().map_err(|_| {
            format!("must be an IP address such as 192.168.100.1 or fd00::1, got `{}`", self.0.escape_debug())
        });
        problems.check(field, parsed.and_then(|address: IpAddr| not_mapped(address).map(|()| address)))
    }
}

impl IpText {
    /// A global unicast address.
    pub(crate) fn read_unicast(&self, field: impl Into<String>, problems: &mut Problems) -> Option<IpAddr> {
        let field = field.into();
        let address = self.read(field.clone(), problems)?;
        let broadcast = || (address == IpAddr::from([255; 4])).then_some("broadcast");
        let special = special(address).or_else(|| link_local(address)).or_else(broadcast);
        problems.check(
            field,
            special.map_or(Ok(address), |special| {
                Err(format!("must be a unicast address, {address} is {special}"))
            }),
        )
    }
}

/// A subnet that addresses can be allocated from.
fn range(text: &str) -> Result<IpNet, String> {
    let range = parse(text, "a subnet such as 192.168.100.0/24 or fd00:100::/64")?;
    if range.prefix_len() == 0 {
        return Err(format!("must have a prefix length of at least 1, got {range}"));
    }
    let range = without_host_bits(range)?;
    if range.prefix_len() + 2 > range.max_prefix_len() {
        return Err(format!(
            "must have a prefix length of at most {}, got {range}: the bridge and one pod need an address each",
            range.max_prefix_len() - 2
        ));
    }
    let special = special(range.addr()).or_else(|| link_local(range.addr()));
    special.map_or(Ok(range), |special| Err(format!("must be a unicast subnet, {range} is {special}")))
}

/// A range whose addresses are assigned one by one.
fn pool_range(text: &str) -> Result<IpNet, String> {
    let range = parse(text, "a range such as 192.0.2.128/26, 192.0.2.7/32 or 2001:db8::/112")?;
    let range = without_host_bits(range)?;
    let smallest = if range.addr().is_ipv4() { 8 } else { 96 };
    if range.prefix_len() < smallest {
        return Err(format!("must have a prefix length of at least {smallest}, got {range}"));
    }
    let special = special(range.addr()).or_else(|| link_local(range.addr()));
    special.map_or(Ok(range), |special| Err(format!("must be a unicast range, {range} is {special}")))
}

/// An address that an interface may have.
fn host_address(text: &str) -> Result<IpNet, String> {
    let address = parse(text, "an address with a prefix length, such as 192.168.100.7/24")?;
    let single = address.prefix_len() == address.max_prefix_len();
    if address.prefix_len() == 0 {
        return Err(format!("must have a prefix length of at least 1, got {address}"));
    }
    if let Some(special) = special(address.addr()) {
        return Err(format!("must be a unicast address, {} is {special}", address.addr()));
    }
    if !single && address.prefix_len() + 1 < address.max_prefix_len() {
        if address.addr() == address.network() {
            return Err(format!("must be a host address, {address} is the network address"));
        }
        if address.addr().is_ipv4() && address.addr() == address.broadcast() {
            return Err(format!("must be a host address, {address} is the broadcast address"));
        }
    }
    Ok(address)
}

fn parse(text: &str, expected: &str) -> Result<IpNet, String> {
    let invalid = || format!("must be {expected}, got `{}`", text.escape_debug());
    let parsed: IpNet = text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(_) => format!("must be {expected}, got `{text}` without a prefix length"),
        Err(_) => invalid(),
    })?;
    not_mapped(parsed.addr()).map(|()| parsed)
}

fn without_host_bits(prefix: IpNet) -> Result<IpNet, String> {
    if prefix == prefix.trunc() {
        return Ok(prefix);
    }
    Err(format!("must have no host bits set, got {prefix}: the network is {}", prefix.trunc()))
}

/// IPv4-mapped IPv6 addresses such as `::ffff:192.0.2.1` are rejected: the kernel and tools interpret them differently.
fn not_mapped(address: IpAddr) -> Result<(), String> {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(format!("must not be an IPv4-mapped IPv6 address, got `{address}`: write it as IPv4"))
        }
        _ => Ok(()),
    }
}

/// The class of an address that an interface cannot have.
fn special(address: IpAddr) -> Option<&'static str> {
    if address.is_multicast() {
        Some("multicast")
    } else if address.is_loopback() {
        Some("loopback")
    } else if address.is_unspecified() {
        Some("unspecified")
    } else {
        None
    }
}

/// Link-local addresses exist on every link, so a link-local subnet would be ambiguous.
fn link_local(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    link_local.then_some("link-local")
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
    fn a_list_may_have_subnets_of_both_families() {
        let (ranges, problems) = ranges("192.168.100.0/24,fd00:100::/64");
        assert_eq!(problems, "");
        assert_eq!(ranges.len(), 2);
    }

    #[test]
    fn the_smallest_subnet_has_addresses_for_a_bridge_and_a_pod() {
        assert_eq!(ranges("10.0.0.0/30").1, "");
        assert_eq!(ranges("fd00::/126").1, "");
        for small in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::/128"] {
            assert!(ranges(small).1.contains("need an address each"), "{small}");
        }
    }

    #[test]
    fn network_and_broadcast_addresses_are_rejected() {
        assert!(host_address("10.0.0.0/24").is_err());
        assert!(host_address("10.0.0.255/24").is_err());
        assert!(host_address("10.0.0.0/31").is_ok());
        assert!(host_address("10.0.0.7/32").is_ok());
        assert!(host_address("fd00::ffff/112").is_ok());
    }
}
