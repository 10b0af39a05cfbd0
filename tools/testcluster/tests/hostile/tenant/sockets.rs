//! Sockets and rights that only an admin grants.

use serde_json::json;

use crate::hostile::frames::{UDP, packet, udp};
use crate::hostile::objects::{object, select};
use crate::hostile::stage::{FRAMES, Stage, assert_denied, stage};
use crate::hostile::wire::PORT;
use crate::support::programs::script;

#[track_caller]
fn assert_socket_denied(socket: serde_json::Value) {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "sockets": [socket]});
    let denied = "raw and packet sockets are not granted to namespace";
    assert_denied(stage.try_create(&stage.tenant, &object("PodSocket", &spec)), denied);
}

#[test]
fn podsocket_with_a_raw_socket() {
    assert_socket_denied(json!({"name": "raw", "type": "raw", "protocol": "icmp"}));
}

#[test]
fn podsocket_with_a_packet_socket() {
    assert_socket_denied(json!({"name": "raw", "type": "packet", "protocol": "all", "interface": "eth0"}));
}

#[test]
fn podsocket_that_is_changed_to_a_raw_socket() {
    let stage = stage();
    let spec = json!({"selector": select("plain"), "sockets": [{"name": "web", "type": "tcp", "port": 82}]});
    let mut socket = object("PodSocket", &spec);
    let _socket = stage.create(&socket);
    socket["spec"]["sockets"][0] = json!({"name": "web", "type": "raw", "protocol": "icmp"});
    let args = [stage.tenant.as_str(), "apply", "-f", "-"];
    let changed = stage.attacker.feed(&args, &socket.to_string());
    assert_denied(changed, "raw and packet sockets are not granted to namespace");
}

#[test]
fn podsocket_of_another_tenants_pod() {
    let stage = stage();
    let connect = format!("{FRAMES} connect knit/sockets/web");
    let own = script(&stage.victim, "near", &connect);
    assert!(own.contains("connected to"), "the other tenant's pod is offered it: {own}");
    for pod in ["plain", "admin"] {
        let output = script(&stage.attacker, pod, &connect);
        assert!(output.contains("cannot connect"), "{output}");
        let names = script(&stage.attacker, pod, "cat /proc/net/unix");
        assert!(!names.contains("knit/sockets/web"), "{names}");
    }
}

#[track_caller]
fn assert_label_denied(label: &str) {
    let stage = stage();
    let labelled = stage.as_tenant(&["label", "namespace", &stage.attacker.name, label]);
    assert_denied(labelled, "forbidden");
}

#[test]
fn label_for_raw_sockets_on_the_tenants_namespace() {
    assert_label_denied("podnetwork.opdev.io/raw-sockets=allowed");
}

#[test]
fn label_for_spoofing_on_the_tenants_namespace() {
    assert_label_denied("knit.opdev.io/anti-spoofing=off");
}

#[test]
fn label_for_masquerading_on_the_tenants_namespace() {
    assert_label_denied("knit.opdev.io/masquerade=off");
}

#[test]
fn label_for_pod_security_on_the_tenants_namespace() {
    assert_label_denied("pod-security.kubernetes.io/enforce=privileged");
}

/// Asserts that a pod with the namespace's labels and annotations is still guarded.
#[track_caller]
fn assert_still_guarded(stage: &Stage, verb: &str) {
    let marks = ["knit.opdev.io/anti-spoofing=off", "podnetwork.opdev.io/raw-sockets=allowed"];
    let (accepted, output) = stage.as_tenant(&[&[verb, "--overwrite", "pod", "plain"][..], &marks].concat());
    assert!(accepted, "{output}");
    stage.assert_dropped(&stage.plain, |to, note| {
        let payload = udp(PORT, PORT, note.as_bytes());
        let source = "203.0.113.9".parse().unwrap();
        vec![packet((stage.plain.mac, stage.next_hop(to)), (source, to.ipv4), UDP, &payload)]
    });
}

#[test]
fn labels_of_namespaces_on_a_pod() {
    assert_still_guarded(&stage(), "label");
}

#[test]
fn annotations_of_namespaces_on_a_pod() {
    assert_still_guarded(&stage(), "annotate");
}
