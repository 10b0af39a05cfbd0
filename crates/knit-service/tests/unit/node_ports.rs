//! Node ports.

use knit_service::Backend;

use crate::packets::{Masquerade, Outcome, Tables};
use crate::support::*;

#[test]
fn node_ports_are_served_at_all_addresses_of_the_node_and_nowhere_else() {
    let index = index(external("web"), vec![endpoint("10.75.0.1", "a")]);
    for address in [NODE, "192.0.2.10"] {
        assert_eq!(reached(&index, connection(OUTSIDE, address, 30080)), set(&["10.75.0.1"]));
    }
    assert_eq!(reached(&index, connection(POD, "192.0.2.2", 30080)), set(&["not a service"]), "another node");
}

#[test]
fn a_node_port_does_not_take_connections_to_the_nodes_own_programs_on_loopback() {
    let mut service = external("web");
    service.cluster_ips.push(ip("fd96::1"));
    for endpoints in [vec![endpoint("10.75.0.1", "a")], Vec::new()] {
        let index = index(service.clone(), endpoints);
        for address in ["127.0.0.1", "127.7.0.1", "::1"] {
            assert_eq!(reached(&index, connection(address, address, 30080)), set(&["not a service"]));
        }
    }
}

#[test]
fn a_node_port_without_endpoints_does_not_close_the_port_for_translated_connections() {
    // The backend of one Service is this node's port with the number of another one's node port.
    let mut index = index(external("web"), Vec::new());
    let mut on_host = slice("host", "host", vec![endpoint(NODE, "a")]);
    on_host.ports[0].port = 30080;
    index.apply_slice(on_host);
    index.apply_service(service("host", &["10.96.0.2"]));
    assert_eq!(reached(&index, connection(OUTSIDE, NODE, 30080)), set(&["NoEndpoints"]));
    let outcome = Tables::of(&index).send(&connection(POD, "10.96.0.2", 80), 0);
    let translated = Some(Backend { address: ip(NODE), port: 30080 });
    assert_eq!(outcome, Outcome::Accepted { translated, masquerade: Masquerade::NotReached });
}
