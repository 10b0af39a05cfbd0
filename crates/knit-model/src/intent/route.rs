//! Route intents: a next hop may refer to "this interface", whose name is known only per sandbox.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::name::IfName;
use crate::route::{NextHop, Route, RouteAction, RouteScope};

/// A route in each selected pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteIntent {
    /// The destination.
    pub to: IpNet,
    /// What happens to packets.
    pub action: RouteAction,
    /// The next hops; several are an ECMP route.
    pub via: Vec<NextHopIntent>,
    /// The table.
    pub table: u32,
    /// The metric; 0: the kernel's default.
    pub metric: u32,
    /// The source address for packets of the pod.
    pub source: Option<IpAddr>,
    /// Scope of the route; `None`: derived from the next hop.
    pub scope: Option<RouteScope>,
    /// MTU of the route.
    pub mtu: Option<u32>,
}

/// A next hop of a route intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHopIntent {
    /// The gateway; `None`: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The link; `None`: the interface that the route was requested with.
    pub link: Option<IfName>,
    /// ECMP weight, 1 to 256.
    pub weight: u16,
    /// Whether the gateway is on the link even if no connected range contains it.
    pub onlink: bool,
}

impl RouteIntent {
    /// The route for an interface with this name.
    pub fn to_route(&self, interface: &IfName) -> Route {
        let mut via: Vec<NextHop> = self.via.iter().map(|hop| hop.to_next_hop(interface)).collect();
        if let [only] = via.as_mut_slice() {
            // The kernel stores no weight for a single next hop.
            only.weight = 1;
        }
        let on_link = !via.is_empty() && via.iter().all(|hop| hop.gateway.is_none());
        let default_scope =
            if on_link && self.to.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Global };
        Route {
            to: self.to,
            action: self.action,
            via,
            table: self.table,
            metric: self.metric,
            source: self.source,
            scope: self.scope.unwrap_or(default_scope),
            mtu: self.mtu,
            owned: true,
        }
    }
}

impl NextHopIntent {
    fn to_next_hop(&self, interface: &IfName) -> NextHop {
        let link = self.link.clone().unwrap_or_else(|| interface.clone());
        NextHop { gateway: self.gateway, link, weight: self.weight, onlink: self.onlink }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::MAIN_TABLE;

    fn intent(gateway: Option<&str>, link: Option<&str>) -> RouteIntent {
        let hop = NextHopIntent {
            gateway: gateway.map(|gateway| gateway.parse().unwrap()),
            link: link.map(|link| link.parse().unwrap()),
            weight: 1,
            onlink: false,
        };
        RouteIntent {
            to: "10.9.0.0/16".parse().unwrap(),
            action: RouteAction::Forward,
            via: vec![hop],
            table: MAIN_TABLE,
            metric: 0,
            source: None,
            scope: None,
            mtu: None,
        }
    }

    #[test]
    fn a_next_hop_without_a_link_uses_the_interface() {
        let name: IfName = "pc02841804".parse().unwrap();
        assert_eq!(
            intent(Some("10.0.0.1"), None).to_route(&name).to_string(),
            "10.9.0.0/16 via 10.0.0.1 dev pc02841804"
        );
        assert_eq!(intent(None, Some("eth0")).to_route(&name).to_string(), "10.9.0.0/16 dev eth0");
    }

    #[test]
    fn a_single_next_hop_has_no_weight() {
        let name: IfName = "net1".parse().unwrap();
        let mut only = intent(Some("10.0.0.1"), None);
        only.via[0].weight = 7;
        assert_eq!(only.to_route(&name).via[0].weight, 1);
        only.via.push(NextHopIntent { gateway: "10.0.0.2".parse().ok(), ..only.via[0].clone() });
        assert_eq!(only.to_route(&name).via[0].weight, 7);
    }

    #[test]
    fn the_scope_follows_from_the_next_hop() {
        let name: IfName = "net1".parse().unwrap();
        assert_eq!(intent(None, None).to_route(&name).scope, RouteScope::Link);
        assert_eq!(intent(Some("10.0.0.1"), None).to_route(&name).scope, RouteScope::Global);
    }
}
