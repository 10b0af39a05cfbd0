//! Limits of what one Service can add to the kernel of every node.
//!
//! Whoever may create Services and EndpointSlices chooses how many addresses, ports, source ranges and endpoints they have, and the
//! elements are the product of them. What exceeds a limit is left out, the same on every node, and reported.

use std::net::IpAddr;

use crate::service::Service;

/// How many external and load balancer IPs are used.
const MAX_ADDRESSES: usize = 64;
/// How many ports are used.
const MAX_PORTS: usize = 1_024;
/// How many frontends there are: each port at each address.
const MAX_FRONTENDS: usize = 4_096;
/// How many backends all frontends of a family lead to, those of each frontend counted. At least 16 of each frontend are used.
const MAX_BACKENDS: usize = 65_536;
/// How many source ranges all frontends of load balancers of a family have, those of each frontend counted.
const MAX_SOURCES: usize = 65_536;

/// Leaves out what exceeds the limits. Load balancers come before external IPs.
pub(crate) fn limited(mut service: Service) -> Service {
    service.ports.truncate(MAX_PORTS);
    let ports = service.ports.len().max(1);
    // A port has a cluster IP and a node port, too.
    let addresses = (MAX_FRONTENDS / ports).saturating_sub(2).min(MAX_ADDRESSES);
    service.load_balancer_ips.truncate(addresses);
    service.external_ips.truncate(addresses - service.load_balancer_ips.len());
    let ranges = MAX_SOURCES / (ports * service.load_balancer_ips.len().max(1));
    // Of each family: one without ranges is open to all.
    let (mut v4, mut v6) = (ranges, ranges);
    service.source_ranges.retain(|range| {
        let left = match range.addr() {
            IpAddr::V4(_) => &mut v4,
            IpAddr::V6(_) => &mut v6,
        };
        let is_kept = *left > 0;
        *left = left.saturating_sub(1);
        is_kept
    });
    service
}

/// How many endpoints of each port are used.
pub(crate) fn max_endpoints(service: &Service) -> usize {
    let addresses = 1 + service.load_balancer_ips.len() + service.external_ips.len();
    let node_ports = service.ports.iter().filter(|port| port.node_port.is_some()).count();
    MAX_BACKENDS / (service.ports.len() * addresses + node_ports).max(1)
}
