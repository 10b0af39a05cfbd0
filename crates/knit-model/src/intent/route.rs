//! Routes as an intent says them: a next hop may be "this interface", whose name only the sandbox gives.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;
use crate::route::{Action, NextHop, Route, RouteScope};

/// A route in each pod that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteIntent {
    /// The destination.
    pub to: IpNet,
    /// What becomes of packets.
    pub action: Action,
    /// The next hops; several share the load.
    pub via: Vec<NextHopIntent>,
    /// The table.
    pub table: u32,
    /// The metric; 0 is the kernel's own.
    pub metric: u32,
    /// The source address for packets of the pod.
    pub source: Option<IpAddr>,
    /// How far the destination is; `None` follows from the next hop.
    pub scope: Option<RouteScope>,
    /// The largest packet on this route.
    pub mtu: Option<u32>,
}

/// One way to the destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHopIntent {
    /// The router; `None` is directly on the link.
    pub gateway: Option<IpAddr>,
    /// The link; `None` is the interface that the route was asked with.
    pub link: Option<IfName>,
    /// Share of the load, 1 to 256.
    pub weight: u16,
    /// Take the gateway to be on the link even if no address says so.
    pub onlink: bool,
}

impl RouteIntent {
    /// The route, once the interface that it was asked with has its name.
    pub fn on(&self, interface: &IfName) -> Route {
        let mut via: Vec<NextHop> = self.via.iter().map(|hop| hop.on(interface)).collect();
        if let [only] = via.as_mut_slice() {
            // All of the load is all of it, and the kernel keeps no share for it.
            only.weight = 1;
        }
        let on_link = !via.is_empty() && via.iter().all(|hop| hop.gateway.is_none());
        let natural = if on_link && self.to.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Global };
        Route {
            to: self.to,
            action: self.action,
            via,
            table: self.table,
            metric: self.metric,
            source: self.source,
            scope: self.scope.unwrap_or(natural),
            mtu: self.mtu,
            owned: true,
        }
    }
}

impl NextHopIntent {
    fn on(&self, interface: &IfName) -> NextHop {
        let link = self.link.clone().unwrap_or_else(|| interface.clone());
        NextHop { gateway: self.gateway, link, weight: self.weight, onlink: self.onlink }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::MAIN_TABLE;

    fn want(gateway: Option<&str>, link: Option<&str>) -> RouteIntent {
        let hop = NextHopIntent {
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            link: link.map(|link| link.parse().unwrap()),
            weight: 1,
            onlink: false,
        };
        RouteIntent {
            to: "10.9.0.0/16".parse().unwrap(),
            action: Action::Forward,
            via: vec![hop],
            table: MAIN_TABLE,
            metric: 0,
            source: None,
            scope: None,
            mtu: None,
        }
    }

    #[test]
    fn a_hop_without_a_link_is_the_interface_itself() {
        let name: IfName = "pc02841804".parse().unwrap();
        assert_eq!(
            want(Some("10.0.0.1"), None).on(&name).to_string(),
            "10.9.0.0/16 via 10.0.0.1 dev pc02841804"
        );
        assert_eq!(want(None, Some("eth0")).on(&name).to_string(), "10.9.0.0/16 dev eth0");
    }

    #[test]
    fn the_only_hop_has_no_share() {
        let name: IfName = "net1".parse().unwrap();
        let mut only = want(Some("10.0.0.1"), None);
        only.via[0].weight = 7;
        assert_eq!(only.on(&name).via[0].weight, 1);
        only.via.push(NextHopIntent { gateway: "10.0.0.2".parse().ok(), ..only.via[0].clone() });
        assert_eq!(only.on(&name).via[0].weight, 7);
    }

    #[test]
    fn the_scope_follows_from_the_next_hop() {
        let name: IfName = "net1".parse().unwrap();
        assert_eq!(want(None, None).on(&name).scope, RouteScope::Link);
        assert_eq!(want(Some("10.0.0.1"), None).on(&name).scope, RouteScope::Global);
    }
}
