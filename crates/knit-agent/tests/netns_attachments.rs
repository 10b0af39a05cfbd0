//! What a pod asks for by naming NetworkAttachmentDefinitions, on the real kernel: kinds of Knit's, and plugins. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod world;
}

use knit_agent::Standalone;
use knit_crds::attachments::{Attachment, Plugins, status, translate};
use knit_engine::{Event, StoredObject, annotated};
use knit_model::provenance::ObjectRef;
use knit_model::{Sandbox, SandboxId};
use serde_json::{Value, json};
use support::world::{World, live_leases, objects, problems};

const UPLINK: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Uplink, metadata: {name: fabric}, spec: {
    link: nic0, namespaces: [default], kinds: [macvlan]}}";

/// The configurations that there are.
fn definition(world: &World, name: &str) -> Option<String> {
    let notes = world.folder.path().join("notes");
    let config = match name {
        "storage" => {
            json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "storage0", "isGateway": true, "mtu": 1400,
            "ipam": {"type": "host-local", "subnet": "10.56.0.0/24", "rangeStart": "10.56.0.131",
                "routes": [{"dst": "10.55.0.0/24"}]}})
        }
        "fabric" => json!({"plugins": [{"type": "macvlan", "master": "nic0",
            "ipam": {"type": "whereabouts", "range": "10.57.0.0/24"}}]}),
        "by-value" => json!({"type": "macvlan", "master": "nic0",
            "ipam": {"type": "static", "addresses": [{"address": "10.57.0.9/24"}]}}),
        "tuned" => json!({"cniVersion": "1.0.0", "name": "tuned", "plugins": [
            {"type": "bridge", "bridge": "tuned0",
                "ipam": {"type": "host-local", "subnet": "10.58.0.0/24", "dataDir": notes}},
            {"type": "tuning", "mtu": 1300}]}),
        _ => return None,
    };
    Some(config.to_string())
}

/// The pod, under an id as runtimes make them: plugins take no other.
fn known(world: &World, node: &mut Standalone) -> Sandbox {
    world.add(node);
    let sandbox = node.sandbox("default", "a").unwrap();
    node.node().hear(Event::SandboxGone(sandbox.id.clone())).unwrap();
    let sandbox = Sandbox { id: SandboxId("c0ffee".to_owned()), ..sandbox };
    node.node().hear(Event::SandboxSeen(sandbox.clone())).unwrap();
    sandbox
}

/// Has the pod name these networks; what it is to say then.
fn name_networks(world: &World, node: &mut Standalone, sandbox: &Sandbox, networks: &str) -> Vec<Value> {
    let pod = ObjectRef {
        kind: annotated::KIND.to_owned(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.pod.clone(),
        uid: sandbox.uid.clone(),
        generation: 0,
    };
    let plugins = Plugins {
        types: ["bridge", "host-local", "tuning"].map(str::to_owned).to_vec(),
        dirs: vec!["/usr/lib/cni".to_owned()],
        timeout_seconds: 20,
    };
    let asked = translate(&pod, networks, |_, name| definition(world, name), &plugins);
    let attachments: Vec<Attachment> = asked.attachments;
    let stored = StoredObject {
        object: pod,
        intents: asked.intents,
        warnings: asked.warnings,
        manifest: Value::Null,
        since: 0,
        file: None,
    };
    node.node().hear(Event::ObjectApplied(stored)).unwrap();
    node.node().tidy().unwrap();
    let mut states = node.state().pod_states();
    let objects = states.pop().map(|state| state.objects).unwrap_or_default();
    let mine = objects.into_iter().find(|one| one.object.kind == annotated::KIND);
    if let Some(mine) = &mine {
        assert_eq!(mine.problems, [], "{networks}");
    }
    let interfaces = mine.map(|mine| mine.interfaces).unwrap_or_default();
    serde_json::from_str(&status(None, &attachments, &interfaces)).unwrap()
}

#[test]
fn a_running_pod_has_what_it_names_and_nothing_when_it_names_nothing() {
    let world = World::new("attachments");
    world.host.ip(&["link", "set", "nic0", "up"]);
    world.on_host(|| {
        let mut node = world.open();
        let sandbox = known(&world, &mut node);
        node.apply(objects(UPLINK), "test").unwrap();
        let clean = world.settled();
        let said = name_networks(&world, &mut node, &sandbox, "storage, by-value@fab0, tuned@tun0");
        assert_eq!(problems(&node), "");
        let words: Vec<(&str, &str, &str)> = said
            .iter()
            .map(|one| {
                let word = |value: &'static str| one[value].as_str().unwrap();
                (word("name"), word("interface"), one["ips"][0].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            words,
            [
                ("default/storage", "net1", "10.56.0.131"),
                ("default/by-value", "fab0", "10.57.0.9"),
                ("default/tuned", "tun0", "10.58.0.2"),
            ]
        );
        let inside = world.pod.namespace().ip(&["-o", "link"]);
        for (link, mtu) in [("net1@", "mtu 1400"), ("fab0@", "mtu 1400"), ("tun0@", "mtu 1300")] {
            let line =
                inside.lines().find(|line| line.contains(link)).unwrap_or_else(|| panic!("{link}: {inside}"));
            assert!(line.contains(mtu), "{line}");
        }
        let routes = world.pod.namespace().ip(&["route"]);
        assert!(routes.contains("10.55.0.0/24 via 10.56.0.1 dev net1"), "{routes}");
        world.pod.ping("10.56.0.1").unwrap();

        // One of them goes, the others stay as they are.
        let index = |link: &str| {
            let all = world.pod.namespace().ip(&["-o", "link"]);
            all.lines()
                .find(|line| line.contains(link))
                .map(|line| line.split(':').next().unwrap().to_owned())
        };
        let before = (index("net1@"), index("tun0@"));
        assert_eq!(name_networks(&world, &mut node, &sandbox, "storage, tuned@tun0").len(), 2);
        assert_eq!(((index("net1@"), index("tun0@")), index("fab0@")), (before, None));

        // Nobody asks for anything any more.
        assert_eq!(name_networks(&world, &mut node, &sandbox, "").len(), 0);
        world.host.ip(&["link", "delete", "tuned0"]);
        world.assert_like(&clean, "after the annotation named nothing");
        assert_eq!(live_leases(&node), 0);
        assert!(node.differences().unwrap().is_empty());
    });
}

#[test]
fn addresses_that_nodes_share_wait_for_a_block_of_this_node() {
    let world = World::new("attachshared");
    world.host.ip(&["link", "set", "nic0", "up"]);
    world.on_host(|| {
        let mut node = world.open();
        let sandbox = known(&world, &mut node);
        node.apply(objects(UPLINK), "test").unwrap();
        let pod = ObjectRef {
            kind: annotated::KIND.to_owned(),
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: sandbox.uid,
            generation: 0,
        };
        let asked = translate(&pod, "fabric", |_, name| definition(&world, name), &Plugins::default());
        let (intents, warnings) = (asked.intents, asked.warnings);
        let stored =
            StoredObject { object: pod, intents, warnings, manifest: Value::Null, since: 0, file: None };
        node.node().hear(Event::ObjectApplied(stored)).unwrap();
        let said = problems(&node);
        let network = "network default/NetworkAttachmentDefinition/fabric range 10.57.0.0/24";
        assert!(said.contains(&format!("{network} waits for a block of addresses")), "{said}");
    });
}
