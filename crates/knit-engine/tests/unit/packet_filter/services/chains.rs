//! The chains that Services need: when the tables change, and who waits for that.

use super::*;

impl Node {
    fn has_chain(&self, name: &str) -> bool {
        self.kernel.filter(&Scope::Host).tables[&TableFamily::Inet.table()].chains.contains_key(name)
    }

    /// The number of endpoints of the Service `web`.
    fn set_count(&mut self, count: usize) {
        let endpoints: Vec<String> = (0..count).map(|number| format!("10.80.1.{number}")).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        self.send(ServiceEvent::SliceApplied(Box::new(slice("web", &endpoints))));
    }
}

#[test]
fn a_new_number_of_endpoints_changes_only_elements() {
    let mut node = Node::with_services();
    node.list_two();
    node.take_plans();
    for count in [2, 32, 0, 31, 1] {
        node.set_count(count);
        assert_eq!(node.units_of_plans(), [Unit::Services], "{count}");
    }
}

#[test]
fn chains_come_in_steps_before_elements_need_them_and_go_with_a_comparison_of_everything() {
    let mut node = Node::with_services();
    node.list_two();
    node.take_plans();
    node.set_count(33);
    assert_eq!(node.units_of_plans(), [Unit::PacketFilter, Unit::Services]);
    assert!(node.has_chain("service_choose_33") && node.has_chain("service_choose_64"));
    for count in [64, 1, 40] {
        node.set_count(count);
        assert_eq!(node.units_of_plans(), [Unit::Services], "{count}");
    }
    node.handle(Event::Resync);
    assert_eq!(node.units_of_plans(), [], "they are still needed");
    node.set_count(1);
    node.take_plans();
    node.handle(Event::Resync);
    assert_eq!(node.units_of_plans(), [Unit::PacketFilter]);
    assert!(node.has_chain("service_choose_32") && !node.has_chain("service_choose_33"));
}

#[test]
fn pods_do_not_wait_for_chains_of_services() {
    let mut node = Node::with_services();
    node.list_two();
    node.attach("c");
    node.attach_results();
    node.take_plans();
    node.held = Some(Unit::PacketFilter);
    node.set_count(33);
    node.attach("a");
    assert_eq!(node.attach_results(), [("a".to_owned(), true)]);
    assert!(!node.units_of_plans().contains(&Unit::Services), "its elements wait");
    // Client affinity needs sets.
    let with_affinity = Service { affinity: Some(60), ..service("web", "10.96.0.11") };
    node.send(ServiceEvent::ServiceApplied(Box::new(with_affinity)));
    node.attach("b");
    assert_eq!(node.attach_results(), [("b".to_owned(), true)]);
    node.release();
    assert_eq!(node.units_of_plans().last(), Some(&Unit::Services));
    assert_eq!(node.elements("service_affinity_slots4").len(), 33);
}

/// Sets of ranges are compared as a whole, with the elements of all Services in them.
#[test]
fn source_ranges_of_other_services_stay() {
    let mut node = Node::with_services();
    let restricted = |name: &str, ip: &str, balanced: &str, range: Option<&str>| Service {
        load_balancer_ips: vec![balanced.parse().unwrap()],
        source_ranges: range.iter().map(|range| range.parse().unwrap()).collect(),
        ..service(name, ip)
    };
    let dns = |range: Option<&str>| restricted("dns", "10.96.0.10", "192.0.2.10", range);
    let web = |range: Option<&str>| restricted("web", "10.96.0.11", "192.0.2.11", range);
    node.list_two();
    node.send(ServiceEvent::ServicesListed(vec![dns(Some("198.51.100.0/24")), web(Some("203.0.113.0/24"))]));
    let sources = |node: &Node| -> Vec<String> {
        let all = node.elements("service_allowed_sources4").into_iter();
        all.map(|text| text.rsplit(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(sources(&node), ["198.51.100.0/24", "203.0.113.0/24"]);
    node.send(ServiceEvent::ServiceApplied(Box::new(web(Some("203.0.113.0/25")))));
    assert_eq!(sources(&node), ["198.51.100.0/24", "203.0.113.0/25"]);
    node.send(ServiceEvent::ServiceApplied(Box::new(web(None))));
    assert_eq!(sources(&node), ["198.51.100.0/24"]);
    node.send(ServiceEvent::ServiceApplied(Box::new(web(Some("203.0.113.0/26")))));
    node.send(ServiceEvent::ServiceApplied(Box::new(dns(Some("198.51.100.0/25")))));
    assert_eq!(sources(&node), ["198.51.100.0/25", "203.0.113.0/26"]);
    node.send(ServiceEvent::ServiceDeleted(key("dns")));
    assert_eq!(sources(&node), ["203.0.113.0/26"]);
    let before = node.kernel.filter(&Scope::Host).clone();
    node.handle(Event::Resync);
    assert_eq!(*node.kernel.filter(&Scope::Host), before);
}
