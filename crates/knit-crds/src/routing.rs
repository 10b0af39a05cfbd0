//! Routes, policy rules and neighbours in a pod, as the kinds have them.

use knit_model::intent::{NextHopIntent, RouteIntent};
use knit_model::route::{Action, MAIN_TABLE, RouteScope};
use knit_model::{IfName, Neighbour, Problems, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fields::{
    HardwareAddr, InterfaceName, IpText, Mark, Metric, Mtu, PrefixText, Priority, TableId, Weight,
};
use crate::rules;

/// A route in the pod. Changing a field changes the route in place; taking the entry away takes the route away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[
    ("!has(self.nextHops) || size(self.nextHops) == 0 || (!has(self.via) && !has(self.dev))",
     "name one next hop with `via` and `dev`, or several with `nextHops`, not both"),
    ("!has(self.type) || self.type == 'forward' || (!has(self.via) && !has(self.dev) && (!has(self.nextHops) || size(self.nextHops) == 0))",
     "a route that drops packets has no next hop"),
    rules::ONLINK,
    rules::SAME_FAMILY_ROUTE,
])))]
pub struct RouteEntry {
    /// Where packets go: a prefix such as `10.0.0.0/8`. `0.0.0.0/0` and `::/0` are the default routes.
    pub to: PrefixText,
    /// The router's address. Left out: the destination is directly on the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpText>,
    /// The interface of the pod that packets leave by. Default: the interface that this object makes or changes; for a
    /// PodRoute, the interface whose network has the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<InterfaceName>,
    /// Take the router to be on the interface even if no address of the interface says so. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onlink: Option<bool>,
    /// Several next hops that share the load, in place of `via` and `dev`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("maxItems" = 16, "x-kubernetes-list-type" = "atomic"))]
    pub next_hops: Vec<PodNextHop>,
    /// What becomes of packets. Default: `forward`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RouteType>,
    /// The routing table of the pod. Default: 254, the main table; for a VRF and its ports 254 is the VRF's own table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableId>,
    /// The smallest metric wins among routes to the same destination. Default: the kernel's (0, or 1024 for IPv6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// The source address of packets that the pod itself sends. Default: the kernel chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<IpText>,
    /// How far the destination is. Default: `link` without a router, `global` with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Reach>,
    /// The largest packet on this route, in bytes. Default: the interface's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<Mtu>,
}

/// One of several next hops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[rules::ONLINK])))]
pub struct PodNextHop {
    /// The router's address. Left out: the destination is directly on the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpText>,
    /// The interface of the pod. Default: the interface that this object makes or changes; for a PodRoute, the interface
    /// whose network has the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dev: Option<InterfaceName>,
    /// Its share of the load, 1 to 256. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<Weight>,
    /// Take the router to be on the interface even if no address says so. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub onlink: Option<bool>,
}

/// What becomes of packets on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RouteType {
    Forward,
    Blackhole,
    Unreachable,
    Prohibit,
}

/// How far a destination is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Reach {
    Global,
    Link,
    Host,
}

/// A policy rule in the pod: which table a packet's route is looked up in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&rules::POLICY)))]
pub struct PodRule {
    /// Rules are asked in this order, the smallest first.
    pub priority: Priority,
    /// Packets from this prefix. Default: from anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PrefixText>,
    /// Packets to this prefix. Default: to anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<PrefixText>,
    /// Packets that came in by this interface of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iif: Option<InterfaceName>,
    /// Packets of the pod that are bound to this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oif: Option<InterfaceName>,
    /// Packets with this mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmark: Option<Mark>,
    /// Which bits of the mark count. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fwmask: Option<Mark>,
    /// The table to look in.
    pub table: TableId,
    /// The family, when neither `from` nor `to` says it. Default: `ipv4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
}

/// A neighbour of the pod that is not found out but said, or an address that an interface answers for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = crate::fields::rule_list(&[
    ("has(self.hardwareAddr) != (has(self.proxy) && self.proxy)", ONE_ANSWER),
])))]
pub struct NeighbourEntry {
    /// The neighbour's address.
    pub address: IpText,
    /// The interface of the pod, or the prefix that an object asks for it with.
    pub dev: InterfaceName,
    /// Where packets for it go, such as `02:00:00:00:00:01`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware_addr: Option<HardwareAddr>,
    /// In place of `hardwareAddr`: the interface answers ARP or neighbour discovery for this address. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<bool>,
}

const ONE_ANSWER: &str =
    "a neighbour has a `hardwareAddr`, or the interface answers for it with `proxy: true`";

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl RouteEntry {
    pub(crate) fn read(&self, path: &str, problems: &mut Problems) -> Option<RouteIntent> {
        let before = problems.0.len();
        let at = |field: &str| format!("{path}.{field}");
        let action = match self.action {
            None | Some(RouteType::Forward) => Action::Forward,
            Some(RouteType::Blackhole) => Action::Blackhole,
            Some(RouteType::Unreachable) => Action::Unreachable,
            Some(RouteType::Prohibit) => Action::Prohibit,
        };
        let scope = self.scope.map(|scope| match scope {
            Reach::Global => RouteScope::Global,
            Reach::Link => RouteScope::Link,
            Reach::Host => RouteScope::Host,
        });
        let to = self.to.read(at("to"), problems);
        let table = self.table.as_ref().map_or(Some(MAIN_TABLE), |table| table.read(at("table"), problems));
        let metric = self.metric.as_ref().map_or(Some(0), |metric| metric.read(at("metric"), problems));
        let via = self.hops(path, action, problems);
        let source = self.src.as_ref().and_then(|src| src.read(at("src"), problems));
        let mtu = self.mtu.as_ref().and_then(|mtu| mtu.read(at("mtu"), problems));
        let want = RouteIntent { to: to?, action, via, table: table?, metric: metric?, source, scope, mtu };
        // The rest is the model's to say; the name stands for whatever the interface will be called.
        let stand_in = IfName::new("eth0").expect("a valid name");
        want.on(&stand_in).check(path, problems);
        (problems.0.len() == before).then_some(want)
    }

    fn hops(&self, path: &str, action: Action, problems: &mut Problems) -> Vec<NextHopIntent> {
        let stated = self.via.is_some() || self.dev.is_some();
        if stated && !self.next_hops.is_empty() {
            problems.invalid(
                format!("{path}.nextHops"),
                "name one next hop with `via` and `dev`, or several with `nextHops`, not both",
            );
        }
        if !self.next_hops.is_empty() {
            let read =
                |(index, hop): (usize, &PodNextHop)| hop.read(&format!("{path}.nextHops[{index}]"), problems);
            return self.next_hops.iter().enumerate().map(read).collect();
        }
        if action != Action::Forward && !stated {
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
            problems.invalid(at("onlink"), "`onlink` is about a router: name it with `via`");
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
            problems.invalid(at("fwmask"), "a mask needs the mark that it is for: state `fwmark`");
        }
        let mark = self.fwmark.as_ref().and_then(|mark| mark.read(at("fwmark"), problems));
        let mask = self.fwmask.as_ref().and_then(|mask| mask.read(at("fwmask"), problems));
        let from = self.from.as_ref().and_then(|from| from.read(at("from"), problems));
        let to = self.to.as_ref().and_then(|to| to.read(at("to"), problems));
        let ipv6 = match (from.or(to), self.family) {
            (_, Some(family)) => family == Family::Ipv6,
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
            problems.invalid(path, ONE_ANSWER);
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
