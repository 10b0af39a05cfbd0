//! Source ranges of load balancers.

use knit_service::NodeFacts;

use crate::support::*;

fn restricted(ranges: &[&str]) -> knit_service::ServiceIndex {
    let mut service = external("web");
    service.source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    index(service, vec![endpoint("10.75.0.1", "a")])
}

#[test]
fn a_load_balancer_drops_other_sources_and_other_frontends_do_not() {
    let index = restricted(&["198.51.100.0/25", "198.51.100.0/24", "2001:db8::/32"]);
    let all =
        |source: &str| frontends().map(|(address, port)| reached(&index, connection(source, address, port)));
    let (open, closed) = (set(&["10.75.0.1"]), set(&["SourceNotAllowed"]));
    assert_eq!(all(OUTSIDE), [(); 4].map(|()| open.clone()));
    for source in ["198.51.101.1", "10.75.0.2", NODE] {
        assert_eq!(all(source), [open.clone(), open.clone(), closed.clone(), open.clone()], "{source}");
    }
}

#[test]
fn a_family_without_ranges_is_not_restricted() {
    let index = restricted(&["2001:db8::/32"]);
    assert_eq!(reached(&index, connection(OUTSIDE, BALANCER, 80)), set(&["10.75.0.1"]));
}

#[test]
fn the_load_balancers_own_address_is_a_source_of_a_node_that_is_allowed() {
    let mut index = restricted(&["192.0.2.0/24"]);
    assert_eq!(reached(&index, connection(BALANCER, BALANCER, 80)), set(&["10.75.0.1"]));
    let changed = index.set_node(NodeFacts { addresses: vec![ip("192.0.3.1")], ..node() });
    assert_eq!(changed, [key("web")].into());
    assert_eq!(reached(&index, connection(BALANCER, BALANCER, 80)), set(&["SourceNotAllowed"]));
}
