//! Addresses and ranges of Services. Those that an old API server accepted may have leading zeros, which are decimal, as for
//! kube-proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// The addresses that can be parsed.
pub(super) fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| address(text)).collect()
}

/// The source ranges of a load balancer. One that cannot be parsed allows no client, in both families: a family without ranges would
/// be open to all.
pub(super) fn source_ranges(texts: &[String]) -> Vec<IpNet> {
    let no_client =
        || [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()].map(IpNet::from).into();
    texts.iter().flat_map(|text| range(text).map_or_else(no_client, |range| vec![range])).collect()
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| without_leading_zeros(text)?.parse().ok())
}

fn range(text: &str) -> Option<IpNet> {
    let (first, length) = text.trim().split_once('/')?;
    Some(IpNet::new(address(first)?, length.parse().ok()?).ok()?.trunc())
}

/// An IPv4 address with the parts as decimal numbers.
fn without_leading_zeros(text: &str) -> Option<String> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|digit| digit.is_ascii_digit());
    let parts: Vec<&str> = text.split('.').collect();
    let parts: Option<Vec<u8>> =
        parts.into_iter().map(|part| is_number(part).then(|| part.parse().ok())?).collect();
    parts.map(|parts| parts.iter().map(u8::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn leading_zeros_are_decimal() {
        let found = addresses(&owned(&[
            "010.096.0.07",
            "10.96.0.8",
            "fd96::1",
            "10.96.0",
            "10.96.0.256",
            "+1.2.3.4",
        ]));
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.96.0.7", "10.96.0.8", "fd96::1"]
        );
        assert_eq!(
            source_ranges(&owned(&["010.0.1.0/8", " 2001:db8::1/32 "])),
            ["10.0.0.0/8", "2001:db8::/32"].map(|range| range.parse().unwrap())
        );
    }

    #[test]
    fn a_source_range_that_cannot_be_parsed_opens_no_load_balancer() {
        for text in ["nonsense", "10.0.0.0", "10.0.0.0/33", ""] {
            assert_eq!(
                source_ranges(&owned(&[text])),
                ["0.0.0.0/32", "::/128"].map(|range| range.parse().unwrap())
            );
        }
        assert!(source_ranges(&[]).is_empty());
    }
}
