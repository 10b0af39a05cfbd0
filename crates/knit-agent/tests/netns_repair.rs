//! What was changed by hand, lost, or left by a crash is found and mended. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod world;
}

use knit_agent::Standalone;
use knit_engine::Event;
use knit_model::SandboxId;
use knit_model::provenance::Dialect;
use knit_store::{Format, Journal, Options};
use serde_json::{Value, json};
use support::world::{World, live_leases, objects, problems};

const VETH: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: 10.1.0.0/24, mtu: 1400,
    routes: [{to: 10.50.0.0/16, via: 10.1.0.1}], rules: [{priority: 900, from: 10.1.0.0/24, table: 100}]}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Macvlan, metadata: {name: mv}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: mv0, parent: eth0, addresses: ['10.8.0.2/24']}}";

/// A node with a pod that has everything of `VETH`.
fn made(world: &World) -> Standalone {
    let mut node = world.open();
    world.add(&mut node);
    node.apply(objects(VETH), "test").unwrap();
    assert_eq!(problems(&node), "");
    node
}

#[test]
fn what_someone_changes_by_hand_is_mended_and_said() {
    let world = World::new("byhand");
    world.on_host(|| {
        let mut node = made(&world);
        let whole = world.settled();
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
            if on_host { &world.host } else { world.pod.namespace() }.ip(words);
            assert!(!node.differences().unwrap().is_empty(), "{words:?} is seen");
            let repairs = node.repair().unwrap();
            assert!(
                !repairs.is_empty() && repairs[0].to_string().contains("was not as asked for"),
                "{repairs:?}"
            );
            assert_eq!(problems(&node), "", "{words:?}");
            world.assert_like(&whole, &format!("{words:?}"));
        }
        world.pod.ping("10.1.0.1").unwrap();
    });
}

#[test]
fn without_its_state_what_has_knits_mark_is_found_and_goes() {
    let world = World::new("lost");
    world.on_host(|| {
        let clean = world.settled();
        drop(made(&world));
        std::fs::remove_dir_all(world.folder.path()).unwrap();
        let mut node = world.open();
        let strays = node.node().strays().unwrap().to_string();
        assert!(strays.contains("- bridge br1") && strays.contains("- rule 7500"), "{strays}");
        let repairs = node.repair().unwrap();
        assert!(repairs[0].to_string().contains("removed what has Knit's mark"), "{repairs:?}");
        world.add(&mut node);
        world.assert_like(&clean, "after the state was lost");
        // And all of it comes again.
        node.apply(objects(VETH), "test").unwrap();
        world.pod.ping("10.1.0.1").unwrap();
    });
}

#[test]
fn a_stray_that_others_use_stays_and_one_that_was_just_born_goes() {
    let world = World::new("strays");
    world.on_host(|| {
        let clean = world.settled();
        drop(made(&world));
        std::fs::remove_dir_all(world.folder.path()).unwrap();
        world.host.ip(&["link", "add", "theirs", "type", "veth", "peer", "name", "theirs2"]);
        world.host.enslave("theirs", "br1");
        // What a crash between birth and mark leaves: the group is all that says whose it is.
        world.host.ip(&["link", "add", "newborn", "group", "1802398068", "type", "bridge"]);
        let mut node = world.open();
        node.repair().unwrap();
        assert!(world.host.output("ip", &["link", "show", "newborn"]).is_err());
        world.host.ip(&["link", "show", "br1"]);
        world.host.ip(&["link", "del", "theirs"]);
        node.repair().unwrap();
        world.add(&mut node);
        world.assert_like(&clean, "when it is free");
    });
}

#[test]
fn what_was_cut_off_before_a_crash_is_deleted() {
    let world = World::new("cutoff");
    world.on_host(|| {
        let mut node = made(&world);
        let whole = world.settled();
        for place in [&world.host, world.pod.namespace()] {
            place.ip(&["link", "add", "knitx99", "group", "1802398069", "type", "bridge"]);
        }
        node.repair().unwrap();
        world.assert_like(&whole, "what waits to be deleted");
    });
}

#[test]
fn a_sandbox_of_another_boot_is_gone_whatever_its_numbers_say() {
    let world = World::new("boot");
    world.on_host(|| {
        let mut node = world.open();
        world.add(&mut node);
        let mut old = node.sandbox("default", "a").unwrap();
        node.node().hear(Event::SandboxGone(old.id.clone())).unwrap();
        // The same pid and the same cookie, but before a reboot.
        old.instance.boot = "another".to_owned();
        node.node().record(&knit_engine::Record::SandboxSeen(old)).unwrap();
        node.apply(objects(VETH), "test").unwrap();
        drop(node);
        let clean = world.settled();
        let node = world.open();
        assert!(!node.state().sandboxes.contains_key(&SandboxId("default/a".to_owned())));
        assert_eq!((live_leases(&node), node.state().made.len()), (0, 0));
        world.assert_like(&clean, "nothing of it was made");
    });
}

#[test]
fn a_namespace_that_others_hold_open_is_cleared_when_its_sandbox_goes() {
    let world = World::new("heldopen");
    world.on_host(|| {
        let mut node = world.open();
        let clean = world.settled();
        world.add(&mut node);
        node.apply(objects(VETH), "test").unwrap();
        node.delete_sandbox("default", "a").unwrap();
        world.assert_like(&clean, "its process still runs");
        assert!(world.pod.holder().is_running());
    });
}

#[test]
fn what_an_older_version_wrote_is_read() {
    let world = World::new("format1");
    world.on_host(|| {
        let object = knit_crds::Object::parse(VETH.split("---").next().unwrap()).unwrap();
        let intents = object.intents(Dialect::File).unwrap().intents;
        let reference = object.object_ref();
        let (kind, namespace, name) = (&reference.kind, &reference.namespace, &reference.name);
        // Of a sandbox that is gone since then, with what it had: nothing of what later versions added.
        let old = [
            json!({"objectApplied": {"object": reference, "intents": intents, "warnings": [], "manifest": object.to_value()}}),
            json!({"ended": {"unit": {"sandbox": "default/gone"}, "made": {"host_links": ["knit0123456789"], "rules": [],
                "uses": [{"namespace": "default", "name": "br1"}], "bridge": null, "warnings": [], "interfaces": [
                    [{"kind": kind, "namespace": namespace, "name": name}, {"field": "spec", "name": "net1", "kind": "veth",
                      "addresses": ["10.1.0.2/24"], "mac": null, "mtu": 1400, "peer": "knit0123456789", "master": "br1",
                      "ready": true}]]},
                "problems": [], "given_back": [], "at": 1}}),
        ];
        let options = Options { format: Format::first(), segments: 4 };
        let opened = Journal::<Value, Value>::open(world.folder.path(), options).unwrap();
        for record in &old {
            opened.journal.append_durable(record).unwrap();
        }
        drop(opened);
        let mut node = world.open();
        assert!(node.state().objects.keys().any(|key| key.kind == "Veth" && key.name == "net"));
        world.add(&mut node);
        assert_eq!(problems(&node), "");
        world.pod.ping("10.1.0.1").unwrap();
    });
}
