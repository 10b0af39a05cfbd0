//! Address sets of an attach: one address from each set, each set a list of ranges.
//!
//! A set can only narrow the network's own ranges; anything outside of them is rejected.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Pool, SubRange};
use knit_model::intent::NetworkIntent;
use serde::{Deserialize, Serialize};

use super::InterfaceRequest;

/// One range of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The subnet, within one range of the network.
    pub subnet: IpNet,
    /// The first usable address; defaults to the first host address of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<IpAddr>,
    /// The last usable address; defaults to the last host address of the subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<IpAddr>,
    /// The gateway that the caller expects; must be the network's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl RangeRequest {
    /// The requested addresses.
    pub fn part(&self) -> SubRange {
        let SubRange { first, last } = SubRange::of(self.subnet);
        SubRange { first: self.first.unwrap_or(first), last: self.last.unwrap_or(last) }
    }

    /// The range of the network that contains it.
    pub(crate) fn range_of(&self, ranges: &[IpNet]) -> Option<IpNet> {
        ranges.iter().find(|range| range.contains(&self.subnet)).copied()
    }
}

/// Validates the address sets of a request. The error is the field, relative to the interface, and a message.
pub(crate) fn check(network: &NetworkIntent, request: &InterfaceRequest) -> Result<(), (String, String)> {
    let mut before: Vec<(usize, &RangeRequest)> = Vec::new();
    for (at, set) in request.sets.iter().enumerate() {
        let Some(first) = set.first() else {
            return Err((format!("range_sets[{at}]"), "this set has no range".to_owned()));
        };
        for (of, range) in set.iter().enumerate() {
            let place = format!("range_sets[{at}].ranges[{of}]");
            check_range(network, range).map_err(|(field, error)| (format!("{place}.{field}"), error))?;
            if range.subnet.addr().is_ipv4() != first.subnet.addr().is_ipv4() {
                let error = "all ranges of a set must have the same address family";
                return Err((format!("{place}.subnet"), error.to_owned()));
            }
            let mut others = before.iter().filter(|(set, _)| *set != at);
            if let Some((set, other)) = others.find(|(_, other)| other.part().overlaps(&range.part())) {
                let error = format!("{} overlaps set {set} with {}", range.part(), other.part());
                return Err((format!("{place}.subnet"), error));
            }
            before.push((at, range));
        }
    }
    check_addresses(network, request)
}

fn check_range(network: &NetworkIntent, request: &RangeRequest) -> Result<(), (&'static str, String)> {
    let RangeRequest { subnet, first, last, gateway } = request;
    let name = &network.name;
    if *subnet != subnet.trunc() {
        let error = format!("{subnet} has host bits set: use {}", subnet.trunc());
        return Err(("subnet", error));
    }
    let Some(range) = request.range_of(&network.ranges) else {
        let ranges: Vec<String> = network.ranges.iter().map(ToString::to_string).collect();
        let error =
            format!("{subnet} is not within a range of network {name}, which has {}", ranges.join(", "));
        return Err(("subnet", error));
    };
    for (field, address) in [("first", first), ("last", last)] {
        if let Some(outside) = address.filter(|address| !subnet.contains(address)) {
            return Err((field, format!("{outside} is not in the subnet {subnet}")));
        }
    }
    let (part, pool) = (request.part(), Pool::with_gateway("", range));
    if part.first > part.last {
        return Err(("first", format!("{} is after the last address, {}", part.first, part.last)));
    }
    let router = pool.gateway_address().map(|router| router.addr()).filter(|_| !network.isolated);
    match (gateway, router) {
        (Some(gateway), Some(router)) if *gateway != router => {
            return Err((
                "gateway",
                format!("{gateway} is not the gateway of network {name}, which is {router}"),
            ));
        }
        (Some(gateway), None) => {
            return Err(("gateway", format!("network {name} has no gateway, so it cannot be {gateway}")));
        }
        _ => {}
    }
    if pool.within(part).total() == 0 {
        let error = format!("network {name} has no usable address in {part}: all are reserved");
        return Err(("subnet", error));
    }
    Ok(())
}

/// A fixed address must be in one of the sets that narrow its range.
fn check_addresses(network: &NetworkIntent, request: &InterfaceRequest) -> Result<(), (String, String)> {
    let requests = || request.sets.iter().flatten();
    let is_left_out = |address: &&IpAddr| {
        let range = network.ranges.iter().find(|range| range.contains(*address));
        let is_narrowed = requests().any(|request| request.range_of(&network.ranges).as_ref() == range);
        is_narrowed && !requests().any(|request| request.part().contains(**address))
    };
    match request.addresses.iter().find(is_left_out) {
        None => Ok(()),
        Some(address) => {
            let error = format!("{address} is in none of the requested ranges");
            Err(("addresses".to_owned(), error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network() -> NetworkIntent {
        NetworkIntent {
            name: "blue".to_owned(),
            ranges: vec!["10.75.0.0/16".parse().unwrap(), "fd75::/64".parse().unwrap()],
            isolated: false,
            mtu: None,
            overlay: None,
        }
    }

    /// A range as `subnet first last gateway`, `-` for an absent value.
    fn range(text: &str) -> RangeRequest {
        let expected: Vec<&str> = text.split(' ').collect();
        let address =
            |at: usize| expected.get(at).filter(|word| **word != "-").map(|word| word.parse().unwrap());
        let subnet = expected[0].parse().unwrap();
        RangeRequest { subnet, first: address(1), last: address(2), gateway: address(3) }
    }

    fn error_text(sets: &[&[&str]], addresses: &[&str]) -> String {
        let sets = sets.iter().map(|set| set.iter().map(|text| range(text)).collect()).collect();
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        match check(&network(), &InterfaceRequest { sets, addresses, ..InterfaceRequest::default() }) {
            Ok(()) => String::new(),
            Err((field, error)) => format!("{field}: {error}"),
        }
    }

    #[test]
    fn sets_within_the_networks_ranges_are_accepted() {
        assert_eq!(error_text(&[&["10.75.9.0/24"], &["fd75::100/120"]], &[]), "");
        assert_eq!(error_text(&[&["10.75.0.0/16 10.75.0.9 10.75.0.9 10.75.0.1"]], &[]), "");
        assert_eq!(
            error_text(&[&["10.75.8.0/24", "10.75.9.0/24"], &["10.75.10.0/24"]], &["10.75.9.7", "fd75::9"]),
            ""
        );
    }

    #[test]
    fn ranges_outside_of_the_network_are_rejected_with_an_error() {
        for (sets, addresses, expected) in [
            (&[&[][..]][..], &[][..], "range_sets[0]: this set has no range"),
            (
                &[&["10.9.0.0/16"]],
                &[],
                "range_sets[0].ranges[0].subnet: 10.9.0.0/16 is not within a range of network blue, which has \
                 10.75.0.0/16, fd75::/64",
            ),
            (&[&["10.0.0.0/8 10.75.0.4 10.75.0.9"]], &[], "10.0.0.0/8 is not within a range"),
            (&[&["10.75.9.1/24"]], &[], "use 10.75.9.0/24"),
            (&[&["10.75.9.0/24 10.75.8.1"]], &[], "ranges[0].first: 10.75.8.1 is not in the subnet"),
            (&[&["10.75.9.0/24 - fd75::1"]], &[], "ranges[0].last: fd75::1 is not in the subnet"),
            (&[&["10.75.9.0/24 10.75.9.9 10.75.9.8"]], &[], "10.75.9.9 is after the last"),
            (
                &[&["10.75.9.0/24 - - 10.75.9.1"]],
                &[],
                "gateway: 10.75.9.1 is not the gateway of network blue, which is 10.75.0.1",
            ),
            (&[&["10.75.0.0/31"]], &[], "network blue has no usable address in 10.75.0.0-10.75.0.1"),
            (&[&["10.75.9.0/24", "fd75::/120"]], &[], "range_sets[0].ranges[1].subnet: all ranges of a set"),
            (
                &[&["10.75.9.0/24"], &["10.75.8.0/23"]],
                &[],
                "range_sets[1].ranges[0].subnet: 10.75.8.1-10.75.9.254 overlaps set 0",
            ),
            (&[&["10.75.9.0/24"]], &["10.75.8.8"], "addresses: 10.75.8.8 is in none of the requested ranges"),
        ] {
            let error_text = error_text(sets, addresses);
            assert!(error_text.contains(expected), "{error_text}");
        }
        let isolated = NetworkIntent { isolated: true, ..network() };
        let sets = vec![vec![range("10.75.9.0/24 - - 10.75.0.1")]];
        let (field, error) =
            check(&isolated, &InterfaceRequest { sets, ..InterfaceRequest::default() }).unwrap_err();
        assert!(field.ends_with("gateway") && error.contains("has no gateway"), "{error}");
    }
}
