//! Drift, a lost state folder, and leftovers of a crash are detected and repaired. Needs root.

use std::time::Duration;

use knit_agent::{Node, Standalone};
use knit_engine::{Event, Record};
use knit_model::SandboxId;
use knit_model::intent::PeerNode;
use knit_store::{Format, Journal, Options};
use knit_testbed::eventually;
use serde_json::{Value, json};

use crate::support::test_host::{TestHost, live_leases, objects, problems};

const VETH: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: 10.1.0.0/24, mtu: 1400,
    routes: [{to: 10.50.0.0/16, via: 10.1.0.1}], rules: [{priority: 900, from: 10.1.0.0/24, table: 100}]}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {name: mv}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: mv0, parent: eth0, addresses: ['10.8.0.2/24']}}";

/// A node with a pod that has everything of `VETH`.
fn configured_node(host: &TestHost) -> Standalone {
    let mut node = host.open();
    host.add_pod(&mut node);
    node.apply(objects(VETH), "test").unwrap();
    assert_eq!(problems(&node), "");
    node
}

#[test]
fn changes_made_by_hand_are_repaired_and_reported() {
    let host = TestHost::new("byhand");
    host.on_host(|| {
        let mut node = configured_node(&host);
        let expected = host.settled();
        assert!(node.differences().unwrap().is_empty());
        for (on_host, words) in [
            (true, &["link", "del", "br1"][..]),
            (true, &["link", "set", "br1", "down"]),
            (true, &["address", "flush", "dev", "br1"]),
            (true, &["rule", "del", "from", "10.1.0.1"]),
            (true, &["route", "flush", "table", "7500"]),
            (false, &["link", "del", "net1"]),
            (false, &["link", "del", "mv0"]),
            (false, &["link", "set", "net1", "mtu", "1300"]),
            (false, &["address", "flush", "dev", "net1"]),
            (false, &["rule", "del", "from", "10.1.0.0/24"]),
            (false, &["route", "del", "10.50.0.0/16"]),
        ] {
            if on_host { &host.netns } else { host.pod.namespace() }.ip(words);
            assert!(!node.differences().unwrap().is_empty(), "{words:?} is detected");
            let repairs = node.repair().unwrap();
            assert!(!repairs.is_empty() && repairs[0].to_string().contains("drift repaired"), "{repairs:?}");
            assert_eq!(problems(&node), "", "{words:?}");
            host.assert_matches(&expected, &format!("{words:?}"));
        }
        host.pod.ping("10.1.0.1").unwrap();
    });
}

#[test]
fn marked_links_are_removed_after_the_state_is_lost() {
    let host = TestHost::new("lost");
    host.on_host(|| {
        let clean = host.settled();
        drop(configured_node(&host));
        std::fs::remove_dir_all(host.folder.path()).unwrap();
        let mut node = host.open();
        let strays = node.node().strays().unwrap().to_string();
        assert!(strays.contains("- bridge br1") && strays.contains("- rule 7500"), "{strays}");
        let repairs = node.repair().unwrap();
        assert!(repairs[0].to_string().contains("removed stray links"), "{repairs:?}");
        host.add_pod(&mut node);
        host.assert_matches(&clean, "after the state was lost");
        // Everything can be created again.
        node.apply(objects(VETH), "test").unwrap();
        host.pod.ping("10.1.0.1").unwrap();
    });
}

#[test]
fn stray_used_by_others_is_kept_and_unmarked_new_link_is_removed() {
    let host = TestHost::new("strays");
    host.on_host(|| {
        let clean = host.settled();
        drop(configured_node(&host));
        std::fs::remove_dir_all(host.folder.path()).unwrap();
        host.netns.ip(&["link", "add", "theirs", "type", "veth", "peer", "name", "theirs2"]);
        host.netns.enslave("theirs", "br1");
        // A crash between creation and marking leaves a link that only its group identifies.
        host.netns.ip(&["link", "add", "unmarked", "group", "1802398068", "type", "bridge"]);
        let mut node = host.open();
        node.repair().unwrap();
        assert!(host.netns.output("ip", &["link", "show", "unmarked"]).is_err());
        host.netns.ip(&["link", "show", "br1"]);
        host.netns.ip(&["link", "del", "theirs"]);
        node.repair().unwrap();
        host.add_pod(&mut node);
        host.assert_matches(&clean, "once it is unused");
    });
}

#[test]
fn link_pending_deletion_at_a_crash_is_deleted() {
    let host = TestHost::new("cutoff");
    host.on_host(|| {
        let mut node = configured_node(&host);
        let expected = host.settled();
        for namespace in [&host.netns, host.pod.namespace()] {
            namespace.ip(&["link", "add", "knitx99", "group", "1802398069", "type", "bridge"]);
        }
        node.repair().unwrap();
        host.assert_matches(&expected, "links pending deletion");
    });
}

#[test]
fn sandbox_of_another_boot_is_gone_even_with_the_same_ids() {
    let host = TestHost::new("boot");
    host.on_host(|| {
        let mut node = host.open();
        host.add_pod(&mut node);
        let mut old = node.sandbox("default", "a").unwrap();
        node.node().handle(Event::SandboxRemoved(old.id.clone())).unwrap();
        // The same PID and cookie, from before a reboot.
        old.instance.boot = "another".to_owned();
        node.node().record(&knit_engine::Record::SandboxUpdated(old)).unwrap();
        node.apply(objects(VETH), "test").unwrap();
        drop(node);
        let clean = host.settled();
        let node = host.open();
        assert!(!node.state().sandboxes.contains_key(&SandboxId("default/a".to_owned())));
        assert_eq!((live_leases(&node), node.state().units.len()), (0, 0));
        host.assert_matches(&clean, "nothing was created for it");
    });
}

#[test]
fn netns_held_open_by_others_is_cleaned_up_when_its_sandbox_is_deleted() {
    let host = TestHost::new("heldopen");
    host.on_host(|| {
        let mut node = host.open();
        let clean = host.settled();
        host.add_pod(&mut node);
        node.apply(objects(VETH), "test").unwrap();
        node.delete_sandbox("default", "a").unwrap();
        host.assert_matches(&clean, "its process still runs");
        assert!(host.pod.holder().is_running());
    });
}

#[test]
fn a_journal_of_an_older_format_is_rejected() {
    let host = TestHost::new("format1");
    host.on_host(|| {
        let options = Options { format: Format::initial(), retained_segments: 4 };
        let opened = Journal::<Value, Value>::open(host.folder.path(), options).unwrap();
        opened.journal.append_durable(&json!({ "undone": null })).unwrap();
        drop(opened);
        // A program that another test is starting may hold a copy of the lock between fork and exec.
        eventually("the journal lock is free", Duration::from_secs(20), || {
            let error = Standalone::open(host.folder.path()).err().unwrap();
            match error {
                knit_agent::Error::OldJournal { found, .. } => {
                    assert_eq!(found, 1);
                    true
                }
                error => {
                    assert!(error.to_string().contains("locked by"), "{error}");
                    false
                }
            }
        });
    });
}

#[test]
fn large_records_are_compacted_into_a_snapshot_long_before_there_are_many() {
    let host = TestHost::new("compact");
    host.on_host(|| {
        let (mut node, _) = Node::open(host.folder.path()).unwrap();
        let peers = |number: usize| -> Vec<PeerNode> {
            let peer = |name: String| PeerNode {
                name,
                ranges: vec![],
                addresses: vec![],
                off_link_addresses: vec![],
                key: None,
            };
            (0..1_000).map(|index| peer(format!("{number}-{index}-{}", "n".repeat(1_000)))).collect()
        };
        for number in 0..9 {
            let removed = node.state().peers.keys().cloned().collect();
            node.record(&Record::Peers { applied: peers(number), removed }).unwrap();
        }
        let before = node.journal_size();
        assert!(before.records < 100 && before.bytes > 8 << 20, "{before:?}");
        node.compact().unwrap();
        assert!(node.journal_size().bytes < 4_096, "{:?}", node.journal_size());
        let state = node.state().persistent();
        drop(node);
        // A child process of another test may have the lock's descriptor until it executes its program.
        let mut reopened = None;
        eventually("the journal is unlocked", Duration::from_secs(20), || {
            reopened = Node::open(host.folder.path()).ok();
            reopened.is_some()
        });
        let (node, notes) = reopened.unwrap();
        assert_eq!((node.state().persistent(), notes), (state, vec![]));
    });
}
