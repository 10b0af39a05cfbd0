//! Segments of the cluster network: nothing is created for them, and no interface can be attached to them.

use knit_engine::{Event, StoredObject};
use knit_model::intent::{IntentSpec, SegmentIntent};

use crate::support::node::{Node, key, object, sandbox, veth, with_eth0};

fn segment() -> StoredObject {
    let intent = SegmentIntent { name: "cnf-vn".to_owned() };
    object("VirtualNetwork", "cnf", "cnf-vn", vec![IntentSpec::Segment(intent)])
}

fn node() -> Node {
    let mut node = Node::with_kernel(with_eth0(&["a"]));
    node.handle(Event::SandboxUpdated(sandbox("a", 2_841_804, "cnf", "x")));
    node
}

/// A veth on the network with the segment's name.
fn interface() -> StoredObject {
    let IntentSpec::Interface(mut intent) = veth("x", "n", "vn-cnf-vn", "10.0.0.0/24") else {
        unreachable!()
    };
    (intent.ranges, intent.network) = (Vec::new(), Some("cnf-vn".to_owned()));
    object("Veth", "cnf", "net", vec![IntentSpec::Interface(intent)])
}

#[test]
fn a_segment_creates_nothing_on_a_node() {
    let mut node = node();
    let before = node.kernel.observe();
    node.handle(Event::ObjectApplied(segment()));
    node.handle(Event::Resync);
    assert_eq!(node.kernel.observe(), before);
    assert_eq!((node.applied_steps, node.problems("cnf-vn")), (0, Vec::new()));
    assert!(node.state.leases.iter().next().is_none() && node.state.units.keys().len() <= 1);
    node.handle(Event::ObjectDeleted(key(&segment())));
    assert_eq!(node.kernel.observe(), before);
}

#[test]
fn an_interface_cannot_be_attached_to_a_segment_in_either_order() {
    for segment_first in [true, false] {
        let mut node = node();
        let before = node.kernel.observe();
        let objects = [segment(), interface()];
        let order = if segment_first { [0, 1] } else { [1, 0] };
        for index in order {
            node.handle(Event::ObjectApplied(objects[index].clone()));
        }
        let problems = node.problems("net");
        assert!(
            problems[0]
                .contains("VirtualNetwork cnf-vn in namespace cnf is a segment of the cluster network"),
            "{problems:?}"
        );
        assert_eq!(node.kernel.observe(), before, "neither a bridge nor an interface");
        assert!(node.state.leases.iter().next().is_none());
        node.handle(Event::ObjectDeleted(key(&segment())));
        assert!(node.problems("net")[0].contains("there is no VirtualNetwork cnf-vn"));
    }
}
