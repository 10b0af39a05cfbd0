//! The number of interfaces that objects give one pod.

use knit_engine::Event;

use crate::support::node::{Node, key, object, sandbox, veth, with_eth0};

/// How many interfaces a pod may have.
const LIMIT: usize = 32;

/// An object with one interface for the pod.
fn interface(number: usize) -> knit_engine::StoredObject {
    let (name, bridge) = (format!("object{number:02}"), format!("br{number}"));
    let spec = veth("x", &format!("n{number}x"), &bridge, &format!("10.{number}.0.0/24"));
    object("Veth", "shop", &name, vec![spec])
}

fn interfaces(node: &Node) -> usize {
    let links = &node.kernel.observe().scopes[&crate::support::node::scope("a")].links;
    links.keys().filter(|name| name.as_str() != "eth0").count()
}

fn node_with_objects(objects: usize) -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "shop", "x")));
    (0..objects).for_each(|number| node.handle(Event::ObjectApplied(interface(number))));
    node
}

#[test]
fn the_33rd_interface_of_a_pod_is_denied_and_the_others_stay() {
    let mut node = node_with_objects(LIMIT + 1);
    assert_eq!(interfaces(&node), LIMIT);
    for number in 0..LIMIT {
        assert_eq!(node.problems(&format!("object{number:02}")), [""; 0]);
    }
    let denied = ["spec.entries[0]: pod shop/a has 32 interfaces of Knit already"];
    assert_eq!(node.problems("object32"), denied);
    let leases = node.state.leases.iter().filter(|(_, _, lease)| lease.is_live()).count();
    assert_eq!(leases, LIMIT, "a denied interface holds no address");
    // Neither a comparison with the kernel nor a restart changes that.
    node.handle(Event::Resync);
    assert_eq!((interfaces(&node), node.problems("object32")), (LIMIT, denied.map(str::to_owned).to_vec()));
    assert_eq!(node.replayed().persistent(), node.state.persistent());
    // Once there is room, the denied interface is created.
    node.handle(Event::ObjectDeleted(key(&interface(4))));
    assert_eq!((interfaces(&node), node.problems("object32")), (LIMIT, Vec::new()));
}

#[test]
fn an_object_with_more_interfaces_than_a_pod_may_have_gets_those_that_fit() {
    let mut node = node_with_objects(LIMIT - 1);
    let specs = (90..93).map(|number| veth("x", &format!("m{number}x"), "many0", "10.99.0.0/24")).collect();
    node.handle(Event::ObjectApplied(object("PodConfig", "shop", "three", specs)));
    assert_eq!(interfaces(&node), LIMIT);
    assert_eq!(node.problems("three").len(), 2, "{:?}", node.problems("three"));
}
