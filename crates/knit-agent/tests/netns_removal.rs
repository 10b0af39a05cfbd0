//! What goes together goes in few changes. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod world;
}

use knit_engine::{Record, Unit};
use support::world::{World, keys, objects, problems};

/// Interfaces of one pod, each of an object of its own.
fn veths() -> String {
    let veth = |number: u32| {
        format!(
            "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {{name: net{number}}}, spec: {{
                selector: {{matchLabels: {{app: x}}}}, interfaceName: net{number}, master: br{number},
                cidr: 10.{number}.0.0/24}}}}"
        )
    };
    (1..=6).map(veth).collect::<Vec<_>>().join("\n---\n")
}

#[test]
fn objects_that_go_together_change_their_pod_twice_at_most_and_leave_nothing() {
    let world = World::new("removal");
    world.on_host(|| {
        let mut node = world.open();
        world.add(&mut node);
        let clean = world.settled();
        node.apply(objects(&veths()), "test").unwrap();
        assert_eq!(problems(&node), "");
        let last = node.node().last();
        node.delete(&keys(&veths()), "test").unwrap();
        assert_eq!(problems(&node), "");
        let history = node.node().history(last).unwrap().map(|read| read.unwrap().1);
        let is_of_the_pod = |record: &Record| {
            matches!(record, Record::Began(began) if matches!(began.unit, Unit::Sandbox(_)))
        };
        let changes = history.filter(is_of_the_pod).count();
        assert_eq!(changes, 2, "one for the first, and one for all others");
        world.assert_like(&clean, "after all of them went");
        assert!(node.differences().unwrap().is_empty());
    });
}
