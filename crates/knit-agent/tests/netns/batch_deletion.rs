//! Objects that are deleted together are removed in few changes. Needs root.

use knit_engine::{Record, Unit};

use crate::support::test_host::{TestHost, keys, objects, problems};

/// Six interfaces of one pod, each from its own object.
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
fn objects_deleted_together_change_their_pod_at_most_twice() {
    let host = TestHost::new("removal");
    host.on_host(|| {
        let mut node = host.open();
        host.add_pod(&mut node);
        let clean = host.settled();
        node.apply(objects(&veths()), "test").unwrap();
        assert_eq!(problems(&node), "");
        let last = node.node().last_seq();
        node.delete(&keys(&veths()), "test").unwrap();
        assert_eq!(problems(&node), "");
        let history = node.node().history(last).unwrap().map(|read| read.unwrap().1);
        let is_of_the_pod = |record: &Record| {
            matches!(record, Record::ChangeStarted(began) if matches!(began.unit, Unit::Sandbox(_)))
        };
        let changes = history.filter(is_of_the_pod).count();
        assert_eq!(changes, 2, "one for the first object, and one for all others");
        host.assert_matches(&clean, "after the deletion");
        assert!(node.differences().unwrap().is_empty());
    });
}
