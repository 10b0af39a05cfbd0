//! The `ipam` section of a CNI configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use knit_model::problem::Reason;
use serde_json::{Map, Value, json};

use super::{EntryError, invalid};

/// Addresses and routes of a CNI configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ipam {
    /// Subnets of which each pod gets one address.
    pub(super) ranges: Vec<IpNet>,
    /// Static addresses.
    pub(super) fixed: Vec<IpNet>,
    /// Addresses that are never allocated.
    pub(super) reserved: Vec<IpNet>,
    /// Whether allocations are unique across nodes (whereabouts) or per node (host-local).
    pub(super) shared: bool,
    /// The configured gateways.
    pub(super) gateways: Vec<IpAddr>,
    /// Routes, in the format of Knit's kinds.
    pub(super) routes: Vec<Value>,
    /// Fields that are ignored or behave unexpectedly.
    pub(super) warnings: Vec<String>,
}

type Fields = Map<String, Value>;

impl Ipam {
    /// Parses the `ipam` section of a plugin's configuration.
    pub(super) fn read(plugin: &Fields) -> Result<Self, EntryError> {
        let fields = match plugin.get("ipam") {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Object(fields)) if fields.is_empty() => return Ok(Self::default()),
            Some(Value::Object(fields)) => fields,
            Some(other) => return Err(invalid(format!("spec.config.ipam must be an object, got {other}"))),
        };
        let mut ipam = Self::default();
        let known = match fields.get("type").and_then(Value::as_str).unwrap_or_default() {
            "host-local" => ipam.host_local(fields)?,
            "static" => ipam.static_addresses(fields)?,
            "whereabouts" => ipam.whereabouts(fields)?,
            "dhcp" => {
                let message = "ipam.type must be host-local, whereabouts or static: dhcp is not supported";
                return Err((Reason::NotAllowed, message.to_owned()));
            }
            other => {
                let message = format!(
                    "ipam.type must be host-local, whereabouts or static, got {}",
                    other.escape_debug()
                );
                return Err((Reason::NotAllowed, message));
            }
        };
        ipam.read_routes(fields)?;
        ipam.warnings.extend(unknown(fields, "ipam.", &[known, &["type", "routes"][..]].concat()));
        Ok(ipam)
    }

    /// Each node allocates addresses of the whole range on its own, like the plugin.
    fn host_local(&mut self, fields: &Fields) -> Result<&'static [&'static str], EntryError> {
        if fields.contains_key("subnet") {
            self.range("ipam", fields)?;
        }
        for (at, set) in list(fields, "ipam", "ranges")?.iter().enumerate() {
            let place = format!("ipam.ranges[{at}]");
            match set.as_array().map(Vec::as_slice) {
                Some([Value::Object(range)]) => self.range(&place, range)?,
                Some([_, _, ..]) => {
                    let message =
                        format!("{place} must contain exactly one range: sets of ranges are not supported");
                    return Err((Reason::NotAllowed, message));
                }
                _ => return Err(invalid(format!("{place} must be a list of ranges"))),
            }
        }
        if self.ranges.is_empty() {
            return Err(invalid("ipam.subnet or ipam.ranges must be set"));
        }
        // `dataDir` is the plugin's own state directory, which Knit does not use.
        Ok(&["subnet", "rangeStart", "rangeEnd", "gateway", "ranges", "dataDir"])
    }

    /// Allocations are unique across nodes.
    fn whereabouts(&mut self, fields: &Fields) -> Result<&'static [&'static str], EntryError> {
        self.shared = true;
        let mut all: Vec<(String, &Fields)> = Vec::new();
        if fields.contains_key("range") {
            all.push(("ipam".to_owned(), fields));
        }
        let more = list(fields, "ipam", "ipRanges")?;
        for (at, range) in more.iter().enumerate() {
            let place = format!("ipam.ipRanges[{at}]");
            let range = range.as_object().ok_or_else(|| invalid(format!("{place} must be an object")))?;
            all.push((place, range));
        }
        for (place, range) in all {
            self.shared_range(&place, range)?;
        }
        if self.ranges.is_empty() {
            return Err(invalid("ipam.range or ipam.ipRanges must be set"));
        }
        // Settings of the datastore and the log of whereabouts are ignored.
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

    fn static_addresses(&mut self, fields: &Fields) -> Result<&'static [&'static str], EntryError> {
        for (at, entry) in list(fields, "ipam", "addresses")?.iter().enumerate() {
            let place = format!("ipam.addresses[{at}]");
            let entry = entry.as_object().ok_or_else(|| invalid(format!("{place} must be an object")))?;
            let text = string(entry, &place, "address")?.unwrap_or_default();
            let address: IpNet = text.parse().map_err(|_| {
                invalid(format!("{place}.address must be an address with a prefix length, got `{text}`"))
            })?;
            self.fixed.push(address);
            self.gateways.extend(address_in(entry, &place, "gateway")?);
        }
        Ok(&["addresses"])
    }

    /// A range of `host-local`.
    fn range(&mut self, place: &str, fields: &Fields) -> Result<(), EntryError> {
        let text = string(fields, place, "subnet")?.unwrap_or_default();
        let range: IpNet =
            text.parse().map_err(|_| invalid(format!("{place}.subnet must be a subnet, got `{text}`")))?;
        let (first, last) =
            (address_in(fields, place, "rangeStart")?, address_in(fields, place, "rangeEnd")?);
        self.add(place, range.trunc(), first, last, address_in(fields, place, "gateway")?)
    }

    /// A range of `whereabouts`: `10.0.0.0/24`, or `10.0.0.10-10.0.0.20/24`.
    fn shared_range(&mut self, place: &str, fields: &Fields) -> Result<(), EntryError> {
        let text = string(fields, place, "range")?.unwrap_or_default();
        let wrong = || invalid(format!("{place}.range must be a subnet, got `{text}`"));
        let (from, text_of_range) = match text.split_once('-') {
            Some((from, rest)) => (Some(from.parse::<IpAddr>().map_err(|_| wrong())?), rest),
            None => (None, text.as_str()),
        };
        let range: IpNet = text_of_range.parse().map_err(|_| wrong())?;
        let to = from.map(|_| range.addr());
        let first = address_in(fields, place, "range_start")?.or(from);
        let last = address_in(fields, place, "range_end")?.or(to);
        for (at, text) in list(fields, place, "exclude")?.iter().enumerate() {
            let wrong = || invalid(format!("{place}.exclude[{at}] must be an address or subnet, got {text}"));
            let text = text.as_str().ok_or_else(wrong)?;
            let excluded = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            self.reserved.push(excluded.map_err(|_| wrong())?.trunc());
        }
        self.add(place, range.trunc(), first, last, address_in(fields, place, "gateway")?)
    }

    fn add(
        &mut self,
        place: &str,
        range: IpNet,
        first: Option<IpAddr>,
        last: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<(), EntryError> {
        for address in [first, last, gateway].into_iter().flatten() {
            if !range.contains(&address) {
                return Err(invalid(format!("{place}: {address} must be in {range}")));
            }
        }
        if let (Some(first), Some(last)) = (first, last)
            && first > last
        {
            return Err(invalid(format!(
                "{place}: the first address {first} must not be larger than the last address {last}"
            )));
        }
        self.reserved.extend(excluded(range, first, last));
        self.reserved.extend(gateway.map(IpNet::from));
        self.gateways.extend(gateway);
        self.ranges.push(range);
        Ok(())
    }

    /// Routes without a gateway use the gateway of the network: the configured one, or the first address of its range.
    fn read_routes(&mut self, fields: &Fields) -> Result<(), EntryError> {
        for (at, route) in list(fields, "ipam", "routes")?.iter().enumerate() {
            let place = format!("ipam.routes[{at}]");
            let route = route.as_object().ok_or_else(|| invalid(format!("{place} must be an object")))?;
            let text = string(route, &place, "dst")?.unwrap_or_default();
            let to: IpNet =
                text.parse().map_err(|_| invalid(format!("{place}.dst must be a prefix, got `{text}`")))?;
            if to.prefix_len() == 0 {
                self.warnings
                    .push(format!("{place}: ignored: the primary interface keeps the default routes"));
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

    /// The gateway of an address family.
    fn gateway(&self, ipv4: bool) -> Option<IpAddr> {
        let stated = self.gateways.iter().find(|gateway| gateway.is_ipv4() == ipv4).copied();
        let range = self.ranges.iter().find(|range| range.addr().is_ipv4() == ipv4);
        stated.or_else(|| range.map(|range| first_of(*range)))
    }

    /// A configured gateway that is not the first address of its range, which belongs to the bridge.
    pub(super) fn other_gateway(&self) -> Option<IpAddr> {
        let is_first = |gateway: &IpAddr| self.ranges.iter().any(|range| first_of(*range) == *gateway);
        self.gateways.iter().find(|gateway| !is_first(gateway)).copied()
    }

    /// Replaces the static addresses by those that the pod requests.
    pub(super) fn set_static(&mut self, addresses: &[String]) -> Result<(), EntryError> {
        if addresses.is_empty() {
            return Ok(());
        }
        self.fixed.clear();
        for text in addresses {
            let wrong = || invalid(format!("ips must be addresses, got `{}`", text.escape_debug()));
            let address = match text.parse::<IpNet>() {
                Ok(address) => address,
                Err(_) => {
                    let address: IpAddr = text.parse().map_err(|_| wrong())?;
                    let range =
                        self.ranges.iter().find(|range| range.contains(&address)).ok_or_else(|| {
                            invalid(format!(
                                "ips: {address} must be in a range of the network or have a prefix length"
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

/// The first host address of a range.
fn first_of(range: IpNet) -> IpAddr {
    let is_small = range.max_prefix_len() - range.prefix_len() < 2;
    match range.network() {
        address if is_small => address,
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from(u32::from(address).saturating_add(1))),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from(u128::from(address).saturating_add(1))),
    }
}

/// The parts of a range before the first and after the last address that may be allocated.
fn excluded(range: IpNet, first: Option<IpAddr>, last: Option<IpAddr>) -> Vec<IpNet> {
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

/// Warnings about unknown fields.
pub(super) fn unknown(fields: &Fields, place: &str, known: &[&str]) -> Vec<String> {
    let unknown = fields.keys().filter(|key| !known.contains(&key.as_str()));
    unknown.map(|key| format!("spec.config.{place}{}: unknown field, ignored", key.escape_debug())).collect()
}

fn string(fields: &Fields, place: &str, key: &str) -> Result<Option<String>, EntryError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(other) => Err(invalid(format!("{place}.{key} must be a string, got {other}"))),
    }
}

fn address_in(fields: &Fields, place: &str, key: &str) -> Result<Option<IpAddr>, EntryError> {
    let text = string(fields, place, key)?;
    let read = |text: String| {
        text.parse::<IpAddr>()
            .map_err(|_| invalid(format!("{place}.{key} must be an IP address, got `{text}`")))
    };
    text.map(read).transpose()
}

fn list(fields: &Fields, place: &str, key: &str) -> Result<Vec<Value>, EntryError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(all)) => Ok(all.clone()),
        Some(other) => Err(invalid(format!("{place}.{key} must be a list, got {other}"))),
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
    fn a_host_local_range_is_per_node_and_excludes_addresses_outside_start_and_end() {
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
        assert_eq!(
            ipam.warnings,
            ["ipam.routes[0]: ignored: the primary interface keeps the default routes"]
        );
        assert_eq!(ipam.other_gateway(), Some("10.10.0.254".parse().unwrap()));
    }

    #[test]
    fn ranges_of_both_families_are_read() {
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
    fn a_whereabouts_range_is_shared_by_all_nodes() {
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
    fn static_addresses_of_the_pod_override_those_of_the_definition() {
        let mut ipam =
            read(json!({"type": "static", "addresses": [{"address": "10.1.0.9/24", "gateway": "10.1.0.1"}]}))
                .unwrap();
        assert_eq!(nets(&ipam.fixed), ["10.1.0.9/24"]);
        ipam.set_static(&["10.1.0.10/24".to_owned()]).unwrap();
        assert_eq!(nets(&ipam.fixed), ["10.1.0.10/24"]);
        let mut ipam = read(json!({"type": "host-local", "subnet": "10.10.0.0/24"})).unwrap();
        ipam.set_static(&["10.10.0.7".to_owned()]).unwrap();
        assert_eq!(nets(&ipam.fixed), ["10.10.0.7/24"]);
        let (_, why) = ipam.set_static(&["10.11.0.7".to_owned()]).unwrap_err();
        assert!(why.contains("must be in a range of the network"), "{why}");
    }

    #[test]
    fn unsupported_ipam_is_rejected() {
        for (ipam, why) in [
            (json!({"type": "dhcp"}), "dhcp is not supported"),
            (json!({"type": "mine"}), "must be host-local, whereabouts or static, got mine"),
            (json!({"type": "host-local"}), "ipam.subnet or ipam.ranges must be set"),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/33"}),
                "ipam.subnet must be a subnet, got `10.0.0.0/33`",
            ),
            (
                json!({"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.1.0/24"}]]}),
                "ipam.ranges[0] must contain exactly one range",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}),
                "ipam: 10.0.1.1 must be in 10.0.0.0/24",
            ),
            (
                json!({"type": "host-local", "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.3"}),
                "10.0.0.9 must not be larger than the last address 10.0.0.3",
            ),
            (
                json!({"type": "static", "addresses": [{"address": "10.0.0.1"}]}),
                "must be an address with a prefix length",
            ),
            (json!("host-local"), "must be an object"),
        ] {
            let message = read(ipam.clone()).unwrap_err();
            assert!(message.contains(why), "{ipam}: {message}");
        }
        assert_eq!(read(json!({})).unwrap(), Ipam::default());
    }
}
