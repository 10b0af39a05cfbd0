//! Routes, policy rules and neighbours in a pod.

use knit_model::intent::{NextHopIntent, RouteIntent};
use knit_model::route::{MAIN_TABLE, RouteAction, RouteScope};
use knit_model::{IfName, Neighbour, Problems, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{
    HardwareAddr, InterfaceName, IpText, Mark, Metric, Mtu, PrefixText, Priority, TableId, Weight,
};
use crate::rules;

/// RouteEntry is a route in the pod. It is updated in place and removed with the entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[
    ("!has(self.nextHops) || size(self.nextHops) == 0 || (!has(self.via) && !has(self.dev))",
     "nextHops must be unset if via or dev is set"),
    ("!has(self.type) || self.type == 'forward' || (!has(self.via) && !has(self.dev) && (!has(self.nextHops) || size(self.nextHops) == 0))",
     "via, dev and nextHops must be unset unless type is forward"),
    rules::ONLINK,
    rules::SAME_FAMILY_ROUTE,
])))]
pub struct RouteEntry {
    /// to is the destination prefix, such as `10.0.0.0/8`. `0.0.0.0/0` and `::/0` are default routes.
    pub to: PrefixText,
    /// via is the address of the next hop. Defaults to none: the destination is on-link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpText>,
    /// dev is the outgoing interface. Defaults to the interface of this object, or for a PodRoute to the interface
    /// whose network contains the next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<InterfaceName>,
    /// onlink treats the next hop as directly reachable through the interface, even if no address of the interface
    /// matches. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onlink: Option<bool>,
    /// nextHops lists the next hops of a multipath route, at most 16. Mutually exclusive with via and dev.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub next_hops: Vec<PodNextHop>,
    /// type is the type of the route: `forward`, `blackhole`, `unreachable` or `prohibit`. Defaults to `forward`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RouteType>,
    /// table is the routing table. Defaults to 254, the main table; for a VRF and its ports, 254 is the table of the
    /// VRF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableId>,
    /// metric is the priority among routes to the same destination; the smallest wins. Defaults to the kernel's (0 for
    /// IPv4, 1024 for IPv6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// src is the preferred source address. Defaults to the kernel's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<IpText>,
    /// scope is the scope of the destination: `global`, `link` or `host`. Defaults to `link` without a next hop and
    /// `global` with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<PodRouteScope>,
    /// mtu is the MTU of the route in bytes. Defaults to the MTU of the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
}

/// PodNextHop is one next hop of a multipath route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[rules::ONLINK])))]
pub struct PodNextHop {
    /// via is the address of the next hop. Defaults to none: the destination is on-link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpText>,
    /// dev is the outgoing interface. Defaults to the interface of this object, or for a PodRoute to the interface
    /// whose network contains the next hop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<InterfaceName>,
    /// weight is the share of the next hop, 1 to 256. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// onlink treats the next hop as directly reachable through the interface. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onlink: Option<bool>,
}

/// RouteType is the type of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RouteType {
    Forward,
    Blackhole,
    Unreachable,
    Prohibit,
}

/// PodRouteScope is the scope of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum PodRouteScope {
    Global,
    Link,
    Host,
}

/// PodRule is a policy routing rule in the pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&rules::POLICY)))]
pub struct PodRule {
    /// priority orders the rules; the smallest is evaluated first.
    pub priority: Priority,
    /// from matches the source prefix. Defaults to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PrefixText>,
    /// to matches the destination prefix. Defaults to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<PrefixText>,
    /// iif matches the incoming interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<InterfaceName>,
    /// oif matches the outgoing interface of packets from sockets bound to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oif: Option<InterfaceName>,
    /// fwmark matches the firewall mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
    /// fwmask is the mask of fwmark. Requires fwmark. Defaults to all bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmask: Option<Mark>,
    /// table is the routing table to look up.
    pub table: TableId,
    /// family is the address family if neither from nor to is set: `ipv4` or `ipv6`. Defaults to `ipv4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<AddressFamily>,
}

/// NeighbourEntry is a permanent neighbour, or an address that the interface proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[
    ("has(self.hardwareAddr) != (has(self.proxy) && self.proxy)", HARDWARE_ADDR_OR_PROXY),
])))]
pub struct NeighbourEntry {
    /// address is the address of the neighbour.
    pub address: IpText,
    /// dev is the name or name prefix of the interface in the pod.
    pub dev: InterfaceName,
    /// hardwareAddr is the hardware address of the neighbour, such as `02:00:00:00:00:01`. Exactly one of hardwareAddr
    /// and proxy must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// proxy answers ARP requests or neighbour solicitations for the address on the interface. Exactly one of
    /// hardwareAddr and proxy must be set. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<bool>,
}

const HARDWARE_ADDR_OR_PROXY: &str = "exactly one of hardwareAddr and proxy: true must be set";

/// AddressFamily is an address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum AddressFamily {
    Ipv4,
    Ipv6,
}

impl RouteEntry {
    pub(crate) fn read(&self, path: &str, problems: &mut Problems) -> Option<RouteIntent> {
        let before = problems.0.len();
        let at = |field: &str| format!("{path}.{field}");
        let action = match self.action {
            None | Some(RouteType::Forward) => RouteAction::Forward,
            Some(RouteType::Blackhole) => RouteAction::Blackhole,
            Some(RouteType::Unreachable) => RouteAction::Unreachable,
            Some(RouteType::Prohibit) => RouteAction::Prohibit,
        };
        let scope = self.scope.map(|scope| match scope {
            PodRouteScope::Global => RouteScope::Global,
            PodRouteScope::Link => RouteScope::Link,
            PodRouteScope::Host => RouteScope::Host,
        });
        let to = self.to.read(at("to"), problems);
        let table = self.table.as_ref().map_or(Some(MAIN_TABLE), |table| table.read(at("table"), problems));
        let metric = self.metric.as_ref().map_or(Some(0), |metric| metric.read(at("metric"), problems));
        let via = self.hops(path, action, problems);
        let source = self.src.as_ref().and_then(|src| src.read(at("src"), problems));
        let mtu = self.mtu.as_ref().and_then(|mtu| mtu.read(at("mtu"), problems));
        let route = RouteIntent { to: to?, action, via, table: table?, metric: metric?, source, scope, mtu };
        // The model validates the rest; the interface name is a placeholder.
        let placeholder = IfName::new("eth0").expect("a valid name");
        route.to_route(&placeholder).check(path, problems);
        (problems.0.len() == before).then_some(route)
    }

    fn hops(&self, path: &str, action: RouteAction, problems: &mut Problems) -> Vec<NextHopIntent> {
        let has_hop = self.via.is_some() || self.dev.is_some();
        if has_hop && !self.next_hops.is_empty() {
            problems.invalid(format!("{path}.nextHops"), "nextHops must be unset if via or dev is set");
        }
        if !self.next_hops.is_empty() {
            let read =
                |(index, hop): (usize, &PodNextHop)| hop.read(&format!("{path}.nextHops[{index}]"), problems);
            return self.next_hops.iter().enumerate().map(read).collect();
        }
        if action != RouteAction::Forward && !has_hop {
            return Vec::new();
        }
        let single =
            PodNextHop { via: self.via.clone(), dev: self.dev.clone(), weight: None, onlink: self.onlink };
        vec![single.read(path, problems)]
    }
}

impl PodNextHop {
    fn read(&self, path: &str, problems: &mut Problems) -> NextHopIntent {
        let at = |field: &str| format!("{path}.{field}");
        if self.onlink == Some(true) && self.via.is_none() {
            problems.invalid(at("onlink"), "via must be set if onlink is true");
        }
        NextHopIntent {
            gateway: self.via.as_ref().and_then(|via| via.read(at("via"), problems)),
            link: self.dev.as_ref().and_then(|dev| dev.read(at("dev"), problems)),
            weight: self.weight.as_ref().and_then(|weight| weight.read(at("weight"), problems)).unwrap_or(1),
            onlink: self.onlink.unwrap_or(false),
        }
    }
}

impl PodRule {
    pub(crate) fn read(&self, path: &str, problems: &mut Problems) -> Option<Rule> {
        let before = problems.0.len();
        let at = |field: &str| format!("{path}.{field}");
        if self.fwmask.is_some() && self.fwmark.is_none() {
            problems.invalid(at("fwmask"), "fwmark must be set if fwmask is set");
        }
        let mark = self.fwmark.as_ref().and_then(|mark| mark.read(at("fwmark"), problems));
        let mask = self.fwmask.as_ref().and_then(|mask| mask.read(at("fwmask"), problems));
        let from = self.from.as_ref().and_then(|from| from.read(at("from"), problems));
        let to = self.to.as_ref().and_then(|to| to.read(at("to"), problems));
        let ipv6 = match (from.or(to), self.family) {
            (_, Some(family)) => family == AddressFamily::Ipv6,
            (Some(prefix), None) => prefix.addr().is_ipv6(),
            (None, None) => false,
        };
        let priority = self.priority.read(at("priority"), problems);
        let table = self.table.read(at("table"), problems);
        let rule = Rule {
            priority: priority?,
            ipv6,
            from,
            to,
            iif: self.iif.as_ref().and_then(|link| link.read(at("iif"), problems)),
            oif: self.oif.as_ref().and_then(|link| link.read(at("oif"), problems)),
            mark: mark.map(|mark| (mark, mask.unwrap_or(u32::MAX))),
            table: table?,
            vrf: false,
        };
        rule.check(path, problems);
        (problems.0.len() == before).then_some(rule)
    }
}

impl NeighbourEntry {
    pub(crate) fn read(&self, path: &str, problems: &mut Problems) -> Option<Neighbour> {
        let at = |field: &str| format!("{path}.{field}");
        let mac = self.hardware_addr.as_ref().map(|mac| mac.read(at("hardwareAddr"), problems));
        if mac.is_some() == (self.proxy == Some(true)) {
            problems.invalid(path, HARDWARE_ADDR_OR_PROXY);
        }
        let (address, link) =
            (self.address.read(at("address"), problems), self.dev.read(at("dev"), problems));
        let mac = match mac {
            Some(mac) => Some(mac?),
            None => None,
        };
        Some(Neighbour { link: link?, address: address?, mac, owned: true })
    }
}
