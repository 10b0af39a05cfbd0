//! Where in a network's ranges a call wants its addresses: sets of ranges, one address of each set.
//!
//! The network stays the authority: a set narrows where the allocator looks, and what is not the network's is refused.

use std::net::IpAddr;

use ipnet::IpNet;
use knit_ipam::{Part, Pool};
use knit_model::intent::NetworkIntent;
use serde::{Deserialize, Serialize};

use super::Asked;

/// One range of a set, as the caller says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeWish {
    /// The subnet, within one range of the network.
    pub subnet: IpNet,
    /// The first address that may be given; the first that a host of the subnet may have when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<IpAddr>,
    /// The last address that may be given; the last that a host of the subnet may have when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<IpAddr>,
    /// The router that the caller expects: the network's own, and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

impl RangeWish {
    /// The addresses that are meant.
    pub fn part(&self) -> Part {
        let Part { first, last } = Part::of(self.subnet);
        Part { first: self.first.unwrap_or(first), last: self.last.unwrap_or(last) }
    }

    /// The network's range that it lies in.
    pub(crate) fn range_of(&self, ranges: &[IpNet]) -> Option<IpNet> {
        ranges.iter().find(|range| range.contains(&self.subnet)).copied()
    }
}

/// What is wrong with the sets of a call on a network: the field, after the interface's own, and a sentence.
pub(crate) fn check(network: &NetworkIntent, asked: &Asked) -> Result<(), (String, String)> {
    let mut before: Vec<(usize, &RangeWish)> = Vec::new();
    for (at, set) in asked.sets.iter().enumerate() {
        let Some(first) = set.first() else {
            return Err((format!("range_sets[{at}]"), "this set has no range".to_owned()));
        };
        for (of, wish) in set.iter().enumerate() {
            let place = format!("range_sets[{at}].ranges[{of}]");
            check_range(network, wish).map_err(|(field, why)| (format!("{place}.{field}"), why))?;
            if wish.subnet.addr().is_ipv4() != first.subnet.addr().is_ipv4() {
                let why = "one set gives one address: all its ranges are of one family";
                return Err((format!("{place}.subnet"), why.to_owned()));
            }
            let mut others = before.iter().filter(|(set, _)| *set != at);
            if let Some((set, other)) = others.find(|(_, other)| other.part().overlaps(&wish.part())) {
                let why = format!("{} is partly set {set}'s {}, too", wish.part(), other.part());
                return Err((format!("{place}.subnet"), why));
            }
            before.push((at, wish));
        }
    }
    check_addresses(network, asked)
}

fn check_range(network: &NetworkIntent, wish: &RangeWish) -> Result<(), (&'static str, String)> {
    let RangeWish { subnet, first, last, gateway } = wish;
    let name = &network.name;
    if *subnet != subnet.trunc() {
        let why = format!("{subnet} has bits set behind its prefix: {} is meant", subnet.trunc());
        return Err(("subnet", why));
    }
    let Some(range) = wish.range_of(&network.ranges) else {
        let ranges: Vec<String> = network.ranges.iter().map(ToString::to_string).collect();
        let why = format!("{subnet} lies in no range of network {name}, which has {}", ranges.join(", "));
        return Err(("subnet", why));
    };
    for (field, address) in [("first", first), ("last", last)] {
        if let Some(outside) = address.filter(|address| !subnet.contains(address)) {
            return Err((field, format!("{outside} is not in the subnet {subnet}")));
        }
    }
    let (part, pool) = (wish.part(), Pool::with_gateway("", range));
    if part.first > part.last {
        return Err(("first", format!("{} comes after the last address, {}", part.first, part.last)));
    }
    let router = pool.gateway_address().map(|router| router.addr()).filter(|_| !network.isolated);
    match (gateway, router) {
        (Some(asked), Some(router)) if *asked != router => {
            return Err(("gateway", format!("{asked} is not the router of network {name}: {router} is")));
        }
        (Some(asked), None) => {
            return Err(("gateway", format!("network {name} has no router, and {asked} is none of it")));
        }
        _ => {}
    }
    if pool.within(part).total() == 0 {
        let why = format!("network {name} gives no address of {part}: what is there is kept for itself");
        return Err(("subnet", why));
    }
    Ok(())
}

/// An address that is asked for by value is of a set, where the sets speak of its range.
fn check_addresses(network: &NetworkIntent, asked: &Asked) -> Result<(), (String, String)> {
    let wishes = || asked.sets.iter().flatten();
    let is_left_out = |address: &&IpAddr| {
        let range = network.ranges.iter().find(|range| range.contains(*address));
        let spoken_of = wishes().any(|wish| wish.range_of(&network.ranges).as_ref() == range);
        spoken_of && !wishes().any(|wish| wish.part().contains(**address))
    };
    match asked.addresses.iter().find(is_left_out) {
        None => Ok(()),
        Some(address) => {
            let why = format!("{address} is in none of the ranges that the same call asks for");
            Err(("addresses".to_owned(), why))
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
            span: None,
        }
    }

    /// A range as `subnet first last gateway`, `-` for what is left out.
    fn wish(text: &str) -> RangeWish {
        let words: Vec<&str> = text.split(' ').collect();
        let address =
            |at: usize| words.get(at).filter(|word| **word != "-").map(|word| word.parse().unwrap());
        let subnet = words[0].parse().unwrap();
        RangeWish { subnet, first: address(1), last: address(2), gateway: address(3) }
    }

    fn said(sets: &[&[&str]], addresses: &[&str]) -> String {
        let sets = sets.iter().map(|set| set.iter().map(|text| wish(text)).collect()).collect();
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        match check(&network(), &Asked { sets, addresses, ..Asked::default() }) {
            Ok(()) => String::new(),
            Err((field, why)) => format!("{field}: {why}"),
        }
    }

    #[test]
    fn sets_within_the_networks_ranges_are_fine() {
        assert_eq!(said(&[&["10.75.9.0/24"], &["fd75::100/120"]], &[]), "");
        assert_eq!(said(&[&["10.75.0.0/16 10.75.0.9 10.75.0.9 10.75.0.1"]], &[]), "");
        assert_eq!(
            said(&[&["10.75.8.0/24", "10.75.9.0/24"], &["10.75.10.0/24"]], &["10.75.9.7", "fd75::9"]),
            ""
        );
    }

    #[test]
    fn what_is_not_the_networks_is_refused_in_words() {
        for (sets, addresses, words) in [
            (&[&[][..]][..], &[][..], "range_sets[0]: this set has no range"),
            (
                &[&["10.9.0.0/16"]],
                &[],
                "range_sets[0].ranges[0].subnet: 10.9.0.0/16 lies in no range of network blue, which has \
                 10.75.0.0/16, fd75::/64",
            ),
            (&[&["10.0.0.0/8 10.75.0.4 10.75.0.9"]], &[], "10.0.0.0/8 lies in no range"),
            (&[&["10.75.9.1/24"]], &[], "10.75.9.0/24 is meant"),
            (&[&["10.75.9.0/24 10.75.8.1"]], &[], "ranges[0].first: 10.75.8.1 is not in the subnet"),
            (&[&["10.75.9.0/24 - fd75::1"]], &[], "ranges[0].last: fd75::1 is not in the subnet"),
            (&[&["10.75.9.0/24 10.75.9.9 10.75.9.8"]], &[], "10.75.9.9 comes after the last"),
            (
                &[&["10.75.9.0/24 - - 10.75.9.1"]],
                &[],
                "gateway: 10.75.9.1 is not the router of network blue: 10.75.0.1",
            ),
            (&[&["10.75.0.0/31"]], &[], "network blue gives no address of 10.75.0.0-10.75.0.1"),
            (&[&["10.75.9.0/24", "fd75::/120"]], &[], "range_sets[0].ranges[1].subnet: one set gives one"),
            (
                &[&["10.75.9.0/24"], &["10.75.8.0/23"]],
                &[],
                "range_sets[1].ranges[0].subnet: 10.75.8.1-10.75.9.254 is",
            ),
            (&[&["10.75.9.0/24"]], &["10.75.8.8"], "addresses: 10.75.8.8 is in none of the ranges"),
        ] {
            let said = said(sets, addresses);
            assert!(said.contains(words), "{said}");
        }
        let isolated = NetworkIntent { isolated: true, ..network() };
        let sets = vec![vec![wish("10.75.9.0/24 - - 10.75.0.1")]];
        let (field, why) = check(&isolated, &Asked { sets, ..Asked::default() }).unwrap_err();
        assert!(field.ends_with("gateway") && why.contains("has no router"), "{why}");
    }
}
