//! Addresses of gateways: owned, of one family, shared, in use.

use super::*;

#[test]
fn egress_address_is_owned_also_where_the_kernel_stores_no_mark() {
    let mut node = Node::new();
    let before = node.kernel.observe();
    node.handle(shop(&["node1"]));
    node.handle(ready_nodes(&["node1"]));
    let mut unmarked = node.kernel.observe();
    let addresses = unmarked.scope(&Scope::Host).addresses.values_mut();
    addresses.filter(|one| one.deprecated).for_each(|one| one.owned = false);
    node.kernel = FakeKernel::with_state(unmarked);
    node.state = node.replayed();
    node.handle(Event::Resync);
    assert_eq!(node.messages("shop"), [""; 0]);
    node.handle(Event::ObjectDeleted(key("shop")));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn family_without_a_gateway_address_is_unaffected() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.handle(ready_nodes(&["node2"]));
    node.handle(gateway("shop", &["shop"], &["2001:db8::77"], &["node2"]));
    assert_eq!(node.gateway_state(), ["::/0 via 2001:db8::2 dev lan7", "rule of IPv6"]);
    let egress_rules = node.egress_rules();
    assert_eq!((egress_rules.marks.len(), egress_rules.blocked.len()), (1, 0));
}

#[test]
fn first_gateway_by_name_wins_a_shared_namespace_or_address() {
    let mut node = Node::new();
    node.attach("shop", "a");
    node.handle(ready_nodes(&["node1", "node2"]));
    node.handle(gateway("second", &["shop", "lab"], &["192.0.2.77"], &["node2"]));
    node.handle(gateway("first", &["shop"], &["192.0.2.77"], &["node1"]));
    assert_eq!(node.messages("first"), [""; 0]);
    let messages = node.messages("second");
    assert!(
        messages.iter().any(|one| one.contains("192.0.2.77 is not used: it belongs to gateway first")),
        "{messages:?}"
    );
    assert!(
        messages.iter().any(|one| one.contains("egress of namespace shop uses gateway first")),
        "{messages:?}"
    );
    assert_eq!(node.egress_rules().snat.len(), 1);
    assert_eq!(node.gateway_state(), LOCAL[..1]);
}

#[test]
fn address_already_in_use_is_rejected() {
    let mut node = Node::new();
    node.handle(ready_nodes(&["node1"]));
    for (address, why) in [
        ("192.0.2.1", "it is an address of node node1"),
        ("192.0.2.2", "it is an address of node node2"),
        ("10.1.1.9", "it is in the pod range 10.1.1.0/24"),
        ("10.1.3.9", "it is in the pod range 10.1.3.0/24"),
    ] {
        node.handle(gateway("bad", &["shop"], &[address], &["node1"]));
        let messages = node.messages("bad");
        assert!(messages.iter().any(|one| one.contains(why)), "{address}: {messages:?}");
        assert_eq!(node.gateway_state(), [""; 0]);
    }
    // Another program added it to the link.
    let address = Address::new("lan7".parse().unwrap(), "192.0.2.9/24".parse().unwrap());
    let mut held = host();
    held.scope(&Scope::Host).add_address(Address { owned: false, ..address });
    let mut node = Node { kernel: FakeKernel::with_state(held), ..Node::new() };
    node.handle(Event::Resync);
    node.handle(ready_nodes(&["node1"]));
    node.handle(gateway("bad", &["shop"], &["192.0.2.9"], &["node1"]));
    assert!(
        node.messages("bad")[0].contains("already exists and is not owned by Knit"),
        "{:?}",
        node.messages("bad")
    );
    assert_eq!(node.gateway_state(), [""; 0]);
}
