//! Options of namespaces and pools: anti-spoofing and masquerade.

use super::*;

#[test]
fn namespace_can_be_exempt_from_anti_spoofing_while_its_pods_run() {
    let mut node = Node::new(true);
    for (namespace, id) in [("lab", "a"), ("shop", "b")] {
        node.attach_in(namespace, id);
    }
    let exempt = NamespaceOptions { allow_spoofing: true, masquerade: None };
    node.handle(namespace_options("lab", exempt));
    assert_eq!(node.guarded_addresses(), ["10.75.0.3"], "the other namespace stays guarded");
    assert_eq!(node.fast_path_addresses(), ["10.75.0.3".to_owned()].into());
    let warnings = node.state.report(&cluster::key()).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("namespace lab may spoof source addresses"), "{warnings:?}");
    // A pod attached later has no elements.
    node.attach_results();
    node.attach_in("lab", "c");
    assert_eq!(node.attach_results(), [("c".to_owned(), true)]);
    assert!(node.state.units[&sandbox("c")].filter.is_empty());
    // A repeated event changes nothing, and the exemption survives a restart.
    node.take_plans();
    node.handle(namespace_options("lab", exempt));
    node.restart();
    assert_eq!(node.take_plans(), []);
    assert_eq!(node.guarded_addresses(), ["10.75.0.3"]);
    node.handle(Event::Namespaces(NamespaceEvent::Listed(Namespaces::new())));
    assert_eq!(node.guarded_addresses(), ["10.75.0.2", "10.75.0.3", "10.75.0.4"]);
    assert_eq!(node.fast_path_addresses().len(), 3);
    node.check_owners();
}

/// Masqueraded ranges, pods that are masqueraded by option, and pods that are not.
fn masquerade(node: &Node) -> [Vec<String>; 3] {
    ["pod_ranges4", "masqueraded_pods4", "keep_source4"].map(|set| node.elements(set))
}

fn masquerade_option(masquerade: bool) -> Event {
    namespace_options("lab", NamespaceOptions { masquerade: Some(masquerade), ..NamespaceOptions::default() })
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn namespace_overrides_masquerade() {
    let mut node = Node::new(false);
    node.attach_in("lab", "a");
    node.attach_in("shop", "b");
    assert!(!has_nat(&node));
    node.handle(masquerade_option(true));
    assert_eq!(masquerade(&node), [texts(&[]), texts(&["10.75.0.2"]), texts(&[])]);
    assert_eq!(node.elements("no_masquerade4"), ["10.75.0.0/29"], "never between pods");
    node.handle(Event::ObjectApplied(network_with_masquerade(true)));
    assert_eq!(masquerade(&node), [texts(&["10.75.0.0/29"]), texts(&[]), texts(&[])]);
    assert_eq!(node.elements("no_masquerade4"), ["10.75.0.0/29", "172.16.0.0/12", "192.0.2.0/24"]);
    node.handle(masquerade_option(false));
    assert_eq!(masquerade(&node), [texts(&["10.75.0.0/29"]), texts(&[]), texts(&["10.75.0.2"])]);
    node.check_owners();
    node.detach("a");
    assert_eq!(masquerade(&node), [texts(&["10.75.0.0/29"]), texts(&[]), texts(&[])]);
    node.handle(Event::ObjectApplied(network_with_masquerade(false)));
    assert!(!has_nat(&node));
    node.check_owners();
}

#[test]
fn pool_overrides_the_agent_and_namespace_overrides_the_pool() {
    let pool = |masquerade| {
        let range = "10.75.0.0/24".parse().unwrap();
        let intent = IntentSpec::AddressPool(AddressPoolIntent {
            name: "p".to_owned(),
            range,
            block: 29,
            namespaces: Vec::new(),
            masquerade,
        });
        Event::ObjectApplied(object("PodAddressPool", "", "p", vec![intent]))
    };
    let whole_range = [texts(&["10.75.0.0/29"]), texts(&[]), texts(&[])];
    let mut node = Node::new(false);
    node.attach_in("lab", "a");
    node.handle(Event::ObjectApplied(network_with_masquerade(true)));
    assert_eq!(masquerade(&node), whole_range);
    node.take_plans();
    node.handle(pool(None));
    assert_eq!(node.take_plans(), [], "a pool without a setting changes nothing");
    node.handle(pool(Some(false)));
    assert!(!has_nat(&node));
    node.handle(masquerade_option(true));
    assert_eq!(masquerade(&node), [texts(&[]), texts(&["10.75.0.2"]), texts(&[])]);
    node.handle(Event::Namespaces(NamespaceEvent::Listed(Namespaces::new())));
    assert!(!has_nat(&node));
    node.handle(Event::ObjectApplied(network_with_masquerade(false)));
    node.handle(pool(Some(true)));
    assert_eq!(masquerade(&node), whole_range);
    node.check_owners();
}
