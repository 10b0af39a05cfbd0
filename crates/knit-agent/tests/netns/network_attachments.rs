//! NetworkAttachmentDefinitions named by a pod, on the real kernel: Knit's own kinds, and CNI plugins. Needs root.

use knit_agent::Standalone;
use knit_crds::attachments::{AllowedPlugins, Attachment, Definition, network_status, translate};
use knit_engine::{Event, StoredObject, pod_annotations};
use knit_model::provenance::ObjectRef;
use knit_model::{Sandbox, SandboxId};
use knit_testbed::Deployed;
use serde_json::{Value, json};

use crate::support::test_host::{TestHost, live_leases, objects, problems};

const UPLINK: &str =
    "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Uplink, metadata: {name: fabric}, spec: {
    link: nic0, namespaces: [default], kinds: [macvlan]}}";

/// Where the plugin `host-local` keeps the addresses of the definition `default/tuned`.
const TUNED_ADDRESSES: &str = "/var/lib/cni/networks/default.tuned";

/// A NetworkAttachmentDefinition.
fn definition(name: &str) -> Option<Definition> {
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
                "ipam": {"type": "host-local", "subnet": "10.58.0.0/24"}},
            {"type": "tuning", "mtu": 1300}]}),
        _ => return None,
    };
    Some(Definition::Config(config.to_string()))
}

/// The pod, under an ID as runtimes choose them: CNI plugins accept no other.
fn add_sandbox(host: &TestHost, node: &mut Standalone) -> Sandbox {
    host.add_pod(node);
    let sandbox = node.sandbox("default", "a").unwrap();
    node.node().handle(Event::SandboxRemoved(sandbox.id.clone())).unwrap();
    let sandbox = Sandbox { id: SandboxId("c0ffee".to_owned()), ..sandbox };
    node.node().handle(Event::SandboxUpdated(sandbox.clone())).unwrap();
    sandbox
}

/// Sets the pod's annotation and returns its network status.
fn annotate(node: &mut Standalone, sandbox: &Sandbox, networks: &str) -> Vec<Value> {
    let pod = ObjectRef {
        kind: pod_annotations::KIND.to_owned(),
        namespace: sandbox.namespace.clone(),
        name: sandbox.pod.clone(),
        uid: sandbox.uid.clone(),
        generation: 0,
    };
    let plugins = AllowedPlugins {
        types: ["bridge", "host-local", "tuning"].map(str::to_owned).to_vec(),
        dirs: vec!["/usr/lib/cni".to_owned()],
        timeout_seconds: 20,
    };
    let translation = translate(&pod, networks, |_, name| definition(name), &plugins);
    let attachments: Vec<Attachment> = translation.attachments;
    let stored = StoredObject {
        object: pod,
        intents: translation.intents,
        warnings: translation.warnings,
        manifest: Value::Null,
        since: 0,
        file: None,
    };
    node.node().handle(Event::ObjectApplied(stored)).unwrap();
    node.node().clean_up().unwrap();
    let mut states = node.state().pod_states();
    let objects = states.pop().map(|state| state.objects).unwrap_or_default();
    let mine = objects.into_iter().find(|one| one.object.kind == pod_annotations::KIND);
    if let Some(mine) = &mine {
        assert_eq!(mine.problems, [], "{networks}");
    }
    let interfaces = mine.map(|mine| mine.interfaces).unwrap_or_default();
    serde_json::from_str(&network_status(None, &attachments, &interfaces)).unwrap()
}

#[test]
fn running_pod_gets_the_networks_it_names() {
    let host = TestHost::new("attachments");
    host.netns.ip(&["link", "set", "nic0", "up"]);
    host.netns.run_as(Deployed::PrimaryWithAttachments, || {
        let mut node = host.open();
        let sandbox = add_sandbox(&host, &mut node);
        node.apply(objects(UPLINK), "test").unwrap();
        let clean = host.settled();
        let status = annotate(&mut node, &sandbox, "storage, by-value@fab0, tuned@tun0");
        assert_eq!(problems(&node), "");
        let summary: Vec<(&str, &str, &str)> = status
            .iter()
            .map(|one| {
                let text = |value: &'static str| one[value].as_str().unwrap();
                (text("name"), text("interface"), one["ips"][0].as_str().unwrap())
            })
            .collect();
        assert_eq!(
            summary,
            [
                ("default/storage", "net1", "10.56.0.131"),
                ("default/by-value", "fab0", "10.57.0.9"),
                ("default/tuned", "tun0", "10.58.0.2"),
            ]
        );
        let inside = host.pod.namespace().ip(&["-o", "link"]);
        for (link, mtu) in [("net1@", "mtu 1400"), ("fab0@", "mtu 1400"), ("tun0@", "mtu 1300")] {
            let line =
                inside.lines().find(|line| line.contains(link)).unwrap_or_else(|| panic!("{link}: {inside}"));
            assert!(line.contains(mtu), "{line}");
        }
        let routes = host.pod.namespace().ip(&["route"]);
        assert!(routes.contains("10.55.0.0/24 via 10.56.0.1 dev net1"), "{routes}");
        host.pod.ping("10.56.0.1").unwrap();

        // Removing one network keeps the others.
        let index = |link: &str| {
            let all = host.pod.namespace().ip(&["-o", "link"]);
            all.lines()
                .find(|line| line.contains(link))
                .map(|line| line.split(':').next().unwrap().to_owned())
        };
        let before = (index("net1@"), index("tun0@"));
        assert_eq!(annotate(&mut node, &sandbox, "storage, tuned@tun0").len(), 2);
        assert_eq!(((index("net1@"), index("tun0@")), index("fab0@")), (before, None));

        // The annotation is removed.
        assert_eq!(annotate(&mut node, &sandbox, "").len(), 0);
        // The plugin's bridge has a name of its namespace, and stays.
        let bridges = host.netns.ip(&["-o", "link", "show", "type", "bridge"]);
        let names = bridges.lines().filter_map(|line| line.split(": ").nth(1));
        let [bridge] =
            names.filter(|name| name.len() == 15 && name.starts_with("kn")).collect::<Vec<_>>()[..]
        else {
            panic!("{bridges}")
        };
        assert!(!bridges.contains("tuned0"), "{bridges}");
        host.netns.ip(&["link", "delete", bridge]);
        std::fs::remove_dir_all(TUNED_ADDRESSES).unwrap();
        host.assert_matches(&clean, "after the annotation named nothing");
        assert_eq!(live_leases(&node), 0);
        assert!(node.differences().unwrap().is_empty());
    });
}

#[test]
fn shared_range_waits_for_a_block_of_this_node() {
    let host = TestHost::new("attachshared");
    host.netns.ip(&["link", "set", "nic0", "up"]);
    host.netns.run_as(Deployed::PrimaryWithAttachments, || {
        let mut node = host.open();
        let sandbox = add_sandbox(&host, &mut node);
        node.apply(objects(UPLINK), "test").unwrap();
        let pod = ObjectRef {
            kind: pod_annotations::KIND.to_owned(),
            namespace: "default".to_owned(),
            name: "a".to_owned(),
            uid: sandbox.uid,
            generation: 0,
        };
        let translation = translate(&pod, "fabric", |_, name| definition(name), &AllowedPlugins::default());
        let (intents, warnings) = (translation.intents, translation.warnings);
        let stored =
            StoredObject { object: pod, intents, warnings, manifest: Value::Null, since: 0, file: None };
        node.node().handle(Event::ObjectApplied(stored)).unwrap();
        let reported = problems(&node);
        let network = "network default/NetworkAttachmentDefinition/fabric range 10.57.0.0/24";
        assert!(reported.contains(&format!("{network} waits for a block of addresses")), "{reported}");
    });
}
