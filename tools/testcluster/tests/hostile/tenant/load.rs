//! Load: quotas across kinds, objects of maximal size, and objects that change all the time.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::hostile::objects::{named, object, select};
use crate::hostile::stage::{Stage, assert_denied, stage};
use crate::support::kubectl::{feed, run};
use crate::support::operator::eventually;
use crate::support::programs::script;

/// How long another tenant's object may take meanwhile.
const CONVERGENCE: Duration = Duration::from_secs(30);

/// Links of a pod other than those that it starts with.
fn extra_links(stage: &Stage, pod: &str) -> usize {
    let links = script(&stage.attacker, pod, "ls /sys/class/net");
    links.split_whitespace().filter(|link| !["lo", "eth0", "bonding_masters"].contains(link)).count()
}

/// A quota of the attacker's namespace, by an admin.
struct Quota<'a>(&'a Stage);

impl<'a> Quota<'a> {
    fn new(stage: &'a Stage, spec: &Value) -> Self {
        let quota = named("NetworkQuota", "most", spec);
        stage.attacker.apply(&quota.to_string());
        // The agents have seen it once they report it.
        let ready = ["wait", "--for=condition=Ready", "networkquota/most", "--timeout=60s"];
        stage.attacker.kubectl(&ready);
        Self(stage)
    }
}

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        run(&["-n", &self.0.attacker.name, "delete", "networkquota", "most", "--timeout=60s"]);
    }
}

#[test]
fn quota_of_interfaces_by_several_kinds_at_once() {
    let stage = stage();
    let _quota = Quota::new(&stage, &json!({"interfaces": 2}));
    let pods = json!({"matchLabels": {"team": "attacker"}});
    let attachment = |name: &str| json!({"name": name, "linkType": "veth", "master": "attbr11"});
    let objects = [
        object("Veth", &json!({"selector": pods, "interfaceName": "att0", "master": "attbr11"})),
        object("Macvlan", &json!({"selector": pods, "interfaceName": "att1", "parent": "eth0"})),
        object("Vxlan", &json!({"selector": pods, "interfaceName": "att2", "vni": 7, "remote": "192.0.2.7"})),
        object(
            "PodConfig",
            &json!({"selector": pods, "networkAttachments": [attachment("atta"), attachment("attb")]}),
        ),
        object(
            "PodNetworkConfig",
            &json!({"selector": pods, "links": [{"namePrefix": "attc", "master": "attbr11"}]}),
        ),
    ];
    let stored: Vec<_> = objects.iter().map(|object| stage.create(object)).collect();
    let denied = || stored.iter().filter(|one| one.status().to_string().contains("QuotaExceeded")).count();
    eventually("objects are denied", denied, |denied| *denied >= 3);
    // A claim of one node must not leave room for the other to exceed it later.
    std::thread::sleep(Duration::from_secs(2));
    let links = extra_links(&stage, "plain") + extra_links(&stage, "admin");
    assert!(links <= 2, "{links} interfaces with a quota of 2");
}

#[test]
fn quota_of_bridges_by_interfaces() {
    let stage = stage();
    let _quota = Quota::new(&stage, &json!({"bridges": 1}));
    let veth = |number: u32| {
        let (name, master) = (format!("att{number}"), format!("attq{number}"));
        object("Veth", &json!({"selector": select("plain"), "interfaceName": name, "master": master}))
    };
    let objects = [veth(0), veth(1), veth(2)];
    let stored: Vec<_> = objects.iter().map(|object| stage.create(object)).collect();
    let denied = || stored.iter().filter(|one| one.status().to_string().contains("QuotaExceeded")).count();
    eventually("two bridges are denied", denied, |denied| *denied == 2);
    let links = crate::support::operator::on_node("node1", &["ip", "-o", "link"]);
    let bridges = ["attq0", "attq1", "attq2"].iter().filter(|name| links.contains(&format!(": {name}:")));
    assert_eq!(bridges.count(), 1, "{links}");
}

#[test]
fn quota_deleted_by_a_tenant() {
    let stage = stage();
    let _quota = Quota::new(&stage, &json!({"interfaces": 1}));
    assert_denied(stage.as_tenant(&["delete", "networkquota", "most"]), "forbidden");
}

#[test]
fn object_with_more_attachments_than_a_pod_may_have() {
    let stage = stage();
    let attachments: Vec<Value> = (0..33)
        .map(|number| json!({"name": format!("at{number}"), "linkType": "veth", "master": "attbr12"}))
        .collect();
    let spec = json!({"selector": select("plain"), "networkAttachments": attachments});
    assert_denied(stage.try_create(&stage.tenant, &object("PodConfig", &spec)), "networkAttachments");
}

#[test]
fn object_larger_than_the_api_servers_limit() {
    let stage = stage();
    let mut bridge = object("Bridge", &json!({"name": "attbr13"}));
    bridge["metadata"]["annotations"] = json!({"note": "x".repeat(300 << 10)});
    assert_denied(stage.try_create(&stage.tenant, &bridge), "may not be more than");
}

/// How long it takes until a new interface of the other tenant exists in its pod.
fn convergence(stage: &Stage, interface: &str) -> Duration {
    let spec = json!({"selector": select("near"), "interfaceName": interface, "master": "vicbr1", "cidr": "192.168.114.0/24"});
    let veth = named("Veth", interface, &spec);
    let start = Instant::now();
    let (accepted, output) = feed(&["-n", &stage.victim.name, "create", "-f", "-"], &veth.to_string());
    assert!(accepted, "{output}");
    let has = || script(&stage.victim, "near", &format!("ip -o addr show dev {interface}"));
    eventually("the other tenant's interface", has, |shown| shown.contains("192.168.114."));
    let took = start.elapsed();
    stage.victim.kubectl(&["delete", "veth", interface, "--timeout=60s"]);
    took
}

#[test]
fn objects_of_maximal_size_do_not_delay_others() {
    let stage = stage();
    // Annotations may have 256 KiB together; the object's other fields have limits of their own.
    let big = |number: u32| {
        let mut bridge = object("Bridge", &json!({"name": format!("attbig{number}")}));
        bridge["metadata"]["annotations"] = json!({"note": "x".repeat(250 << 10)});
        bridge
    };
    let objects: Vec<Value> = (0..10).map(big).collect();
    let _stored: Vec<_> = objects.iter().map(|object| stage.create(object)).collect();
    let took = convergence(&stage, "vic1");
    assert!(took < CONVERGENCE, "{took:?}");
}

#[test]
fn object_that_changes_all_the_time_does_not_delay_others() {
    let stage = stage();
    let veth = object(
        "Veth",
        &json!({"selector": select("plain"), "interfaceName": "att0", "master": "attbr14", "mtu": 1400}),
    );
    let _veth = stage.create(&veth);
    let name = veth["metadata"]["name"].as_str().unwrap();
    let took = std::thread::scope(|scope| {
        let edits = scope.spawn(|| {
            for round in 0..60 {
                let patch = format!(r#"{{"spec":{{"mtu":{}}}}}"#, 1300 + round);
                stage.as_tenant(&["patch", "veth.podnetwork.opdev.io", name, "--type=merge", "-p", &patch]);
            }
        });
        let took = convergence(&stage, "vic2");
        edits.join().unwrap();
        took
    });
    assert!(took < CONVERGENCE, "{took:?}");
    stage.assert_connected();
}

#[test]
fn many_objects_do_not_delay_others() {
    let stage = stage();
    let bridge =
        |number: u32| named("Bridge", &format!("many-{number}"), &json!({"name": format!("attm{number}")}));
    let all: Vec<Value> = (0..100).map(bridge).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
    let args = [stage.tenant.as_str(), "create", "-f", "-"];
    let (accepted, output) = stage.attacker.feed(&args, &list.to_string());
    assert!(accepted, "{output}");
    let took = convergence(&stage, "vic3");
    run(&["-n", &stage.attacker.name, "delete", "bridges.podnetwork.opdev.io", "--all", "--timeout=120s"]);
    assert!(took < CONVERGENCE, "{took:?}");
}
