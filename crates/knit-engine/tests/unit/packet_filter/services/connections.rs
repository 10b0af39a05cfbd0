//! UDP connections to backends that are gone.

use std::net::SocketAddr;

use super::*;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Node {
    /// Whether the connections that were to be ended since the last call contain one to this destination and backend.
    fn takes_ended(&mut self, to: &str, backend: &str) -> bool {
        let ended = std::mem::take(&mut self.ended);
        ended.iter().any(|stale| stale.contains(at(to), true, at(backend)))
    }

    /// The endpoints of the Service `web`.
    fn set_endpoints(&mut self, endpoints: &[&str]) {
        self.send(ServiceEvent::SliceApplied(Box::new(slice("web", endpoints))));
    }
}

const WEB: &str = "10.96.0.11:53";
const FIRST: &str = "10.80.0.3:5353";
const SECOND: &str = "10.80.0.4:5353";

#[test]
fn connections_end_when_no_element_leads_to_their_backend_any_more() {
    let mut node = Node::with_services();
    node.list_two();
    node.set_endpoints(&["10.80.0.3", "10.80.0.4"]);
    node.ended.clear();
    // The endpoint is removed while another change is in flight: the elements of that one still lead to it.
    node.held = Some(Unit::Services);
    node.set_endpoints(&["10.80.0.3", "10.80.0.4", "10.80.0.5"]);
    node.set_endpoints(&["10.80.0.3", "10.80.0.5"]);
    assert!(!node.takes_ended(WEB, SECOND), "nothing is applied yet");
    node.held = None;
    let effect = node.pending.pop_front().unwrap();
    let event = node.execute(effect);
    node.held = Some(Unit::Services);
    node.handle(event);
    assert!(node.backends().iter().any(|backend| backend.contains("10.80.0.4")), "{:?}", node.backends());
    assert!(!node.takes_ended(WEB, SECOND), "a client would get it again");
    node.release();
    assert!(!node.backends().iter().any(|backend| backend.contains("10.80.0.4")), "{:?}", node.backends());
    assert!(node.takes_ended(WEB, SECOND), "its connections end with its elements");
}

#[test]
fn connections_that_could_not_be_ended_are_ended_later_as_far_as_they_are_stale_by_then() {
    let mut node = Node::with_services();
    node.list_two();
    node.set_endpoints(&["10.80.0.4"]);
    let [.., stale] = &node.ended[..] else { panic!("{:?}", node.ended) };
    let frontends: Vec<_> = stale.frontends.keys().copied().collect();
    assert_eq!(frontends.len(), 1, "{frontends:?}");
    let failed = || ServiceEvent::ConnectionsNotEnded(frontends.clone());
    assert_eq!(node.state.next_service_retry_in(Time(1)), None);
    node.ended.clear();
    node.send(failed());
    assert_eq!(node.state.next_service_retry_in(Time(1)), Some(1_000));
    assert_eq!(node.state.next_service_retry_in(Time(1_001)), Some(0));
    node.send(ServiceEvent::RetryTimer);
    assert_eq!(node.state.next_service_retry_in(Time(1_001)), None, "it is being tried");
    assert!(node.takes_ended(WEB, FIRST));
    // The next change of another Service repeats it, too. What is a backend by then is none of them.
    node.send(failed());
    node.set_endpoints(&["10.80.0.3"]);
    assert!(node.takes_ended(WEB, SECOND));
    node.send(failed());
    node.send(ServiceEvent::SliceApplied(Box::new(slice("dns", &["10.80.0.9"]))));
    assert!(node.ended[0].frontends.len() == 2 && !node.ended[0].contains(at(WEB), true, at(FIRST)));
    assert!(node.takes_ended(WEB, SECOND));
}

#[test]
fn connections_to_a_changed_node_port_are_those_that_no_other_frontend_takes() {
    let mut node = Node::with_services();
    let with_port = |name: &str, ip: &str, port: u16, node_port: Option<u16>| {
        let mut service = service(name, ip);
        (service.ports[0].port, service.ports[0].node_port) = (port, node_port);
        service
    };
    node.send(ServiceEvent::ServicesListed(vec![
        with_port("dns", "10.96.0.10", 30_053, None),
        with_port("web", "10.96.0.11", 53, Some(30_053)),
    ]));
    node.send(ServiceEvent::SlicesListed(vec![
        slice("dns", &["10.80.0.2"]),
        slice("web", &["10.80.0.3", "10.80.0.4"]),
    ]));
    node.ended.clear();
    node.set_endpoints(&["10.80.0.3"]);
    let [stale] = &node.ended[..] else { panic!("{:?}", node.ended) };
    let is_stale = |to: &str, has_dnat: bool, backend: &str| stale.contains(at(to), has_dnat, at(backend));
    assert!(is_stale(WEB, true, SECOND) && !is_stale(WEB, true, FIRST));
    assert!(is_stale(WEB, false, WEB), "it was opened before there was a backend");
    assert!(is_stale("192.0.2.1:30053", true, SECOND) && !is_stale("192.0.2.1:30053", true, FIRST));
    assert!(!is_stale("192.0.2.1:30053", false, "192.0.2.1:30053"), "a program on the node has the port");
    assert!(!is_stale("10.96.0.10:30053", true, "10.80.0.2:5353"), "it is the cluster IP of another Service");
}

#[test]
fn a_frontend_that_moves_to_another_service_has_the_backends_of_that_one() {
    let mut node = Node::with_services();
    for (first, second) in [("dns", "web"), ("web", "dns")] {
        node.list_two();
        let both = |first: &str, second: &str| {
            vec![service(first, "10.96.0.20"), Service { created: 1, ..service(second, "10.96.0.21") }]
        };
        node.send(ServiceEvent::ServicesListed(both(first, second)));
        node.ended.clear();
        node.send(ServiceEvent::ServicesListed(both(second, first)));
        let backend = |name: &str| if name == "dns" { "10.80.0.2:5353" } else { "10.80.0.3:5353" };
        let [stale] = &node.ended[..] else { panic!("{:?}", node.ended) };
        let is_stale = |name: &str| stale.contains(at("10.96.0.20:53"), true, at(backend(name)));
        assert!(is_stale(first) && !is_stale(second), "{first}");
    }
}
