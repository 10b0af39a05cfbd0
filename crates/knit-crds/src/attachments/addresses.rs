//! Where the addresses of a network come from: what a configuration says to the plugin that gives them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use knit_model::problem::Reason;
use serde_json::{Map, Value, json};

use super::{Refusal, invalid};

/// What a configuration says about addresses and routes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ipam {
    /// Ranges of which each pod has one address.
    pub(super) ranges: Vec<IpNet>,
    /// Addresses by value.
    pub(super) fixed: Vec<IpNet>,
    /// Addresses that are never given.
    pub(super) reserved: Vec<IpNet>,
    /// Whether all nodes share the ranges.
    pub(super) shared: bool,
    /// Routers, as they are stated.
    pub(super) gateways: Vec<IpAddr>,
    /// Routes, as an object of Knit's has them.
    pub(super) routes: Vec<Value>,
    /// What will not be as one would expect.
    pub(super) warnings: Vec<String>,
}

type Fields = Map<String, Value>;

impl Ipam {
    /// Reads the part of a plugin's configuration that says where addresses come from.
    pub(super) fn read(plugin: &Fields) -> Result<Self, Refusal> {
        let fields = match plugin.get("ipam") {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Object(fields)) if fields.is_empty() => return Ok(Self::default()),
            Some(Value::Object(fields)) => fields,
            Some(other) => return Err(invalid(format!("spec.config.ipam: {other} is no object"))),
        };
        let mut ipam = Self::default();
        let known = match fields.get("type").and_then(Value::as_str).unwrap_or_default() {
            "host-local" => ipam.host_local(fields)?,
            "static" => ipam.by_value(fields)?,
            "whereabouts" => ipam.whereabouts(fields)?,
            "dhcp" => {
                let message =
                    "ipam dhcp: Knit asks no DHCP server for a pod: use host-local, whereabouts or static";
                return Err((Reason::NotAllowed, message.to_owned()));
            }
            other => {
                let message =
                    format!("ipam {}: Knit knows host-local, whereabouts and static", other.escape_debug());
                return Err((Reason::NotAllowed, message));
            }
        };
        ipam.take_routes(fields)?;
        ipam.warnings.extend(unknown(fields, "ipam.", &[known, &["type", "routes"][..]].concat()));
        Ok(ipam)
    }

    /// Each node gives addresses of all of the range by itself, as the plugin does.
    fn host_local(&mut self, fields: &Fields) -> Result<&'static [&'static str], Refusal> {
        if fields.contains_key("subnet") {
            self.range("ipam", fields)?;
        }
        for (at, set) in list(fields, "ipam", "ranges")?.iter().enumerate() {
            let place = format!("ipam.ranges[{at}]");
            match set.as_array().map(Vec::as_slice) {
                Some([Value::Object(range)]) => self.range(&place, range)?,
                Some([_, _, ..]) => {
                    let message = format!("{place}: a set of several ranges, of which one address is given");
                    return Err((Reason::NotAllowed, format!("{message}, is not read: state one range")));
                }
                _ => return Err(invalid(format!("{place}: this is no set of ranges"))),
            }
        }
        if self.ranges.is_empty() {
            return Err(invalid("ipam: it names no subnet"));
        }
        // Where the plugin would keep its notes.
        Ok(&["subnet", "rangeStart", "rangeEnd", "gateway", "ranges", "dataDir"])
    }

    /// No two nodes give one address.
    fn whereabouts(&mut self, fields: &Fields) -> Result<&'static [&'static str], Refusal> {
        self.shared = true;
        let mut all: Vec<(String, &Fields)> = Vec::new();
        if fields.contains_key("range") {
            all.push(("ipam".to_owned(), fields));
        }
        let more = list(fields, "ipam", "ipRanges")?;
        for (at, range) in more.iter().enumerate() {
            let place = format!("ipam.ipRanges[{at}]");
            let range = range.as_object().ok_or_else(|| invalid(format!("{place}: this is no range")))?;
            all.push((place, range));
        }
        for (place, range) in all {
            self.shared_range(&place, range)?;
        }
        if self.ranges.is_empty() {
            return Err(invalid("ipam: it names no range"));
        }
        // How whereabouts keeps its own notes is no matter here.
        Ok(&[
            "range",
            "range_start",
            "range_end",
            "exclude",
            "gateway",
            "ipRanges",
            "log_file",
            "log_level",
            "kubernetes",
            "datastore",
            "configuration_path",
            "leader_lease_duration",
            "leader_renew_deadline",
            "leader_retry_period",
            "enable_overlapping_ranges",
            "network_name",
        ])
    }

    fn by_value(&mut self, fields: &Fields) -> Result<&'static [&'static str], Refusal> {
        for (at, entry) in list(fields, "ipam", "addresses")?.iter().enumerate() {
            let place = format!("ipam.addresses[{at}]");
            let entry = entry.as_object().ok_or_else(|| invalid(format!("{place}: this is no address")))?;
            let text = word(entry, &place, "address")?.unwrap_or_default();
            let address: IpNet = text.parse().map_err(|_| {
                invalid(format!("{place}.address: `{text}` is no address with its prefix length"))
            })?;
            self.fixed.push(address);
            self.gateways.extend(address_in(entry, &place, "gateway")?);
        }
        Ok(&["addresses"])
    }

    /// A range as `host-local` has it.
    fn range(&mut self, place: &str, fields: &Fields) -> Result<(), Refusal> {
        let text = word(fields, place, "subnet")?.unwrap_or_default();
        let range: IpNet =
            text.parse().map_err(|_| invalid(format!("{place}.subnet: `{text}` is no range")))?;
        let (first, last) =
            (address_in(fields, place, "rangeStart")?, address_in(fields, place, "rangeEnd")?);
        self.add(place, range.trunc(), first, last, address_in(fields, place, "gateway")?)
    }

    /// A range as `whereabouts` has it: `10.0.0.0/24`, or `10.0.0.10-10.0.0.20/24`.
    fn shared_range(&mut self, place: &str, fields: &Fields) -> Result<(), Refusal> {
        let text = word(fields, place, "range")?.unwrap_or_default();
        let wrong = || invalid(format!("{place}.range: `{text}` is no range"));
        let (from, text_of_range) = match text.split_once('-') {
            Some((from, rest)) => (Some(from.parse::<IpAddr>().map_err(|_| wrong())?), rest),
            None => (None, text.as_str()),
        };
        let said: IpNet = text_of_range.parse().map_err(|_| wrong())?;
        let to = from.map(|_| said.addr());
        let first = address_in(fields, place, "range_start")?.or(from);
        let last = address_in(fields, place, "range_end")?.or(to);
        for (at, text) in list(fields, place, "exclude")?.iter().enumerate() {
            let wrong = || invalid(format!("{place}.exclude[{at}]: {text} is no range"));
            let text = text.as_str().ok_or_else(wrong)?;
            let range = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            self.reserved.push(range.map_err(|_| wrong())?.trunc());
        }
        self.add(place, said.trunc(), first, last, address_in(fields, place, "gateway")?)
    }

    fn add(
        &mut self,
        place: &str,
        range: IpNet,
        first: Option<IpAddr>,
        last: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        for address in [first, last, gateway].into_iter().flatten() {
            if !range.contains(&address) {
                return Err(invalid(format!("{place}: {address} is not in {range}")));
            }
        }
        if let (Some(first), Some(last)) = (first, last)
            && first > last
        {
            return Err(invalid(format!("{place}: {first} comes after {last}")));
        }
        self.reserved.extend(outside(range, first, last));
        self.reserved.extend(gateway.map(IpNet::from));
        self.gateways.extend(gateway);
        self.ranges.push(range);
        Ok(())
    }

    /// Routes without a router go through the network's own: what is stated, or the first address of its range.
    fn take_routes(&mut self, fields: &Fields) -> Result<(), Refusal> {
        for (at, route) in list(fields, "ipam", "routes")?.iter().enumerate() {
            let place = format!("ipam.routes[{at}]");
            let route = route.as_object().ok_or_else(|| invalid(format!("{place}: this is no route")))?;
            let text = word(route, &place, "dst")?.unwrap_or_default();
            let to: IpNet =
                text.parse().map_err(|_| invalid(format!("{place}.dst: `{text}` is no range")))?;
            if to.prefix_len() == 0 {
                self.warnings.push(format!("{place}: the pod's first interface keeps the default routes"));
                continue;
            }
            let stated = address_in(route, &place, "gw")?;
            let mut entry = json!({ "to": to.trunc() });
            if let Some(via) = stated.or_else(|| self.gateway(to.addr().is_ipv4())) {
                entry["via"] = json!(via);
            }
            self.routes.push(entry);
        }
        Ok(())
    }

    /// The network's router of a family.
    fn gateway(&self, ipv4: bool) -> Option<IpAddr> {
        let stated = self.gateways.iter().find(|gateway| gateway.is_ipv4() == ipv4).copied();
        let range = self.ranges.iter().find(|range| range.addr().is_ipv4() == ipv4);
        stated.or_else(|| range.map(|range| first_of(*range)))
    }

    /// A router that is stated and is not the first address of its range, which is a bridge's own.
    pub(super) fn other_gateway(&self) -> Option<IpAddr> {
        let is_first = |gateway: &IpAddr| self.ranges.iter().any(|range| first_of(*range) == *gateway);
        self.gateways.iter().find(|gateway| !is_first(gateway)).copied()
    }

    /// Takes addresses that a pod asks for by value, in place of those that all pods would have.
    pub(super) fn ask_for(&mut self, asked: &[String]) -> Result<(), Refusal> {
        if asked.is_empty() {
            return Ok(());
        }
        self.fixed.clear();
        for text in asked {
            let wrong = || invalid(format!("ips: `{}` is no address", text.escape_debug()));
            let address = match text.parse::<IpNet>() {
                Ok(address) => address,
                Err(_) => {
                    let address: IpAddr = text.parse().map_err(|_| wrong())?;
                    let range =
                        self.ranges.iter().find(|range| range.contains(&address)).ok_or_else(|| {
                            invalid(format!(
                                "ips: {address} is in no range of the network: say its prefix length"
                            ))
                        })?;
                    IpNet::new(address, range.prefix_len()).map_err(|_| wrong())?
                }
            };
            self.fixed.push(address);
        }
        Ok(())
    }
}

/// The first address that a host of a range may have.
fn first_of(range: IpNet) -> IpAddr {
    let is_small = range.max_prefix_len() - range.prefix_len() < 2;
    match range.network() {
        address if is_small => address,
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from(u32::from(address).saturating_add(1))),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address).saturating_add(1))),
    }
}

/// What of a range lies before the first and behind the last address that may be given.
fn outside(range: IpNet, first: Option<IpAddr>, last: Option<IpAddr>) -> Vec<IpNet> {
    let mut all = Vec::new();
    match (range.network(), range.broadcast()) {
        (IpAddr::V4(start), IpAddr::V4(end)) => {
            let (start, end) = (u32::from(start), u32::from(end));
            if let Some(IpAddr::V4(first)) = first
                && u32::from(first) > start
            {
                let before = Ipv4Addr::from(u32::from(first) - 1);
                all.extend(Ipv4Subnets::new(start.into(), before, 0).map(IpNet::V4));
            }
            if let Some(IpAddr::V4(last)) = last
                && u32::from(last) < end
            {
                let behind = Ipv4Addr::from(u32::from(last) + 1);
                all.extend(Ipv4Subnets::new(behind, end.into(), 0).map(IpNet::V4));
            }
        }
        (IpAddr::V6(start), IpAddr::V6(end)) => {
            let (start, end) = (u128::from(start), u128::from(end));
            if let Some(IpAddr::V6(first)) = first
                && u128::from(first) > start
            {
                let before = Ipv6Addr::from(u128::from(first) - 1);
                all.extend(Ipv6Subnets::new(start.into(), before, 0).map(IpNet::V6));
            }
            if let Some(IpAddr::V6(last)) = last
                && u128::from(last) < end
            {
                let behind = Ipv6Addr::from(u128::from(last) + 1);
                all.extend(Ipv6Subnets::new(behind, end.into(), 0).map(IpNet::V6));
            }
        }
        _ => {}
    }
    all
}

/// Fields that are there and not known.
pub(super) fn unknown(fields: &Fields, place: &str, known: &[&str]) -> Vec<String> {
    let unknown = fields.keys().filter(|key| !known.contains(&key.as_str()));
    unknown
        .map(|key| format!("spec.config.{place}{}: not known, and does nothing", key.escape_debug()))
        .collect()
}

fn word(fields: &Fields, place: &str, key: &str) -> Result<Option<String>, Refusal> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(invalid(format!("{place}.{key}: {other} is no text"))),
    }
}

fn address_in(fields: &Fields, place: &str, key: &str) -> Result<Option<IpAddr>, Refusal> {
    let text = word(fields, place, key)?;
    let read = |text: String| {
        text.parse::<IpAddr>().map_err(|_| invalid(format!("{place}.{key}: `{text}` is no address")))
    };
    text.map(read).transpose()
}

fn list(fields: &Fields, place: &str, key: &str) -> Result<Vec<Value>, Refusal> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => Ok(all.clone()),
        Some(other) => Err(invalid(format!("{place}.{key}: {other} is no list"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ipam: Value) -> Result<Ipam, String> {
        let plugin = json!({ "type": "bridge", "ipam": ipam });
        Ipam::read(plugin.as_object().unwrap()).map_err(|(_, why)| why)
    }

    fn nets(all: &[IpNet]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_range_of_host_local_is_each_nodes_own_and_its_ends_are_kept_back() {
        let ipam = read(json!({"type": "host-local", "subnet": "10.10.0.0/24", "rangeStart": "10.10.0.16",
            "rangeEnd": "10.10.0.31", "gateway": "10.10.0.254", "dataDir": "/run/x",
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.99.0.0/16"}, {"dst": "10.98.0.0/16", "gw": "10.10.0.9"}]}))
        .unwrap();
        assert_eq!((nets(&ipam.ranges), ipam.shared), (vec!["10.10.0.0/24".to_owned()], false));
        let reserved = ["10.10.0.0/28", "10.10.0.32/27", "10.10.0.64/26", "10.10.0.128/25", "10.10.0.254/32"];
        assert_eq!(nets(&ipam.reserved), reserved);
        assert_eq!(
            ipam.routes,
            [
                json!({"to": "10.99.0.0/16", "via": "10.10.0.254"}),
                json!({"to": "10.98.0.0/16", "via": "10.10.0.9"})
            ]
        );
        assert_eq!(ipam.warnings, ["ipam.routes[0]: the pod's first interface keeps the default routes"]);
        assert_eq!(ipam.other_gateway(), Some("10.10.0.254".parse().unwrap()));
    }

    #[test]
    fn ranges_of_both_families_give_an_address_each() {
        let ipam = read(
            json!({"type": "host-local", "ranges": [[{"subnet": "10.10.0.0/24", "gateway": "10.10.0.1"}],
            [{"subnet": "fd00:10::/64"}]], "routes": [{"dst": "fd00:99::/64"}]}),
        )
        .unwrap();
        assert_eq!(nets(&ipam.ranges), ["10.10.0.0/24", "fd00:10::/64"]);
        assert_eq!(ipam.routes, [json!({"to": "fd00:99::/64", "via": "fd00:10::1"})]);
        assert_eq!(ipam.other_gateway(), None);
    }

    #[test]
    fn a_range_of_whereabouts_is_all_nodes_together() {
        let ipam = read(json!({"type": "whereabouts", "range": "192.168.2.225/28",
            "exclude": ["192.168.2.229/30", "192.168.2.236"], "log_level": "debug"}))
        .unwrap();
        assert!(ipam.shared);
        assert_eq!(nets(&ipam.ranges), ["192.168.2.224/28"]);
        assert_eq!(nets(&ipam.reserved), ["192.168.2.228/30", "192.168.2.236/32"]);
        assert_eq!(ipam.warnings, [""; 0]);
        let ipam = read(json!({"type": "whereabouts", "range": "10.0.0.4-10.0.0.7/28"})).unwrap();
        assert_eq!(nets(&ipam.reserved), ["10.0.0.0/30", "10.0.0.8/29"]);
    }

    #[test]
    fn addresses_by_value_are_what_the_pod_says_or_what_the_definition_does() {
        let mut ipam =
            read(json!({"type": "static", "addresses": [{"address": "10.1.0.9/24", "gateway": "10.1.0.1"}]}))
                .unwrap();
        assert_eq!(nets(&ipam.fixed), ["10.1.0.9/24"]);
        ipam.ask_for(&["10.1.0.10/24".to_owned()]).unwrap();
        assert_eq!(nets(&ipam.fixed), ["10.1.0.10/24"]);
        let mut ipam = read(json!({"type": "host-local", "subnet": "10.10.0.0/24"})).unwrap();
        ipam.ask_for(&["10.10.0.7".to_owned()]).unwrap();
        assert_eq!(nets(&ipam.fixed), ["10.10.0.7/24"]);
        let (_, why) = ipam.ask_for(&["10.11.0.7".to_owned()]).unwrap_err();
        assert!(why.contains("in no range of the network"), "{why}");
    }

    #[test]
    fn what_cannot_be_is_said_in_words() {
        for (ipam, why) in [
            (json!({"type": "dhcp"}), "Knit asks no DHCP server"),
            (json!({"type": "mine"}), "ipam mine: Knit knows host-local, whereabouts and static"),
            (json!({"type": "host-local"}), "it names no subnet"),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/33"}),
                "ipam.subnet: `10.0.0.0/33` is no range",
            ),
            (
                json!({"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]]}),
                "ipam.ranges[0]: a set of several ranges",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}),
                "ipam: 10.0.1.1 is not in 10.0.0.0/24",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.3"}),
                "10.0.0.9 comes after 10.0.0.3",
            ),
            (
                json!({"type": "static", "addresses": [{"address": "10.0.0.1"}]}),
                "no address with its prefix length",
            ),
            (json!("host-local"), "is no object"),
        ] {
            let said = read(ipam.clone()).unwrap_err();
            assert!(said.contains(why), "{ipam}: {said}");
        }
        assert_eq!(read(json!({})).unwrap(), Ipam::default());
    }
}
