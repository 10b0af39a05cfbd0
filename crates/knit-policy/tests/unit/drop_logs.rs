//! Logs of dropped packets.

use std::collections::BTreeSet;

use knit_policy::{DropLogTarget, LOG_DROPS_ANNOTATION, Labels, PolicyId, PolicyIndex, logs_drops};
use serde_json::json;

use crate::objects::namespaces;
use crate::support::{TestPod, apply, apply_cluster, tables_with_logs, tcp};

fn pod(number: u8, namespace: &str, name: &str) -> TestPod {
    let labels = vec![("app".to_owned(), name.to_owned())];
    TestPod { namespace: namespace.to_owned(), name: name.to_owned(), labels, number, web: None }
}

#[test]
fn only_requested_drops_are_logged_with_the_name_of_the_policy() {
    let pods = [pod(1, "blue", "web"), pod(2, "blue", "db"), pod(3, "red", "other")];
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces(&["red"]));
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    let db = json!({"matchLabels": {"app": "db"}});
    apply(
        &mut index,
        "blue",
        "db",
        &json!({"podSelector": db, "ingress": [{"from": [{"podSelector": {}}]}]}),
    );
    apply(&mut index, "blue", "also-db", &json!({"podSelector": db}));
    let subject = json!({"pods": {"namespaceSelector": {}, "podSelector": db}});
    let egress = json!([{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}]);
    let spec = json!({"tier": "Admin", "priority": 1, "subject": subject, "egress": egress});
    apply_cluster(&mut index, "out", &spec);
    let mut prefixes = |targets: &[DropLogTarget]| {
        let targets: BTreeSet<DropLogTarget> = targets.iter().cloned().collect();
        let tables = tables_with_logs(&mut index, &pods, &targets);
        assert!(!tables.accept(&tcp(pods[2].v4(), pods[1].v4(), 80)));
        assert!(tables.accept(&tcp(pods[0].v4(), pods[1].v4(), 80)));
        let mut prefixes = tables.log_prefixes();
        prefixes.sort();
        prefixes
    };
    let namespace = |name: &str| DropLogTarget::Namespace(name.to_owned());
    let policy = |name: &str| DropLogTarget::Policy(PolicyId::namespaced("blue", name));
    assert_eq!(prefixes(&[]), [""; 0]);
    assert_eq!(prefixes(&[policy("none"), namespace("green")]), [""; 0]);
    assert_eq!(prefixes(&[policy("db")]), ["knit drop NetworkPolicy blue/db ingress: "]);
    let both = [policy("db"), policy("also-db")];
    assert_eq!(prefixes(&both), ["knit drop NetworkPolicy blue/also-db ingress: "]);
    let out = "knit drop ClusterNetworkPolicy out egress: ";
    assert_eq!(prefixes(&[DropLogTarget::Policy(PolicyId::of_cluster("out"))]), [out]);
    let of_namespace = [out, "knit drop NetworkPolicy blue/also-db ingress: "];
    assert_eq!(prefixes(&[namespace("blue")]), of_namespace);
    assert_eq!(prefixes(&[namespace("red")]), ["knit drop isolated namespace red: "]);
}

#[test]
fn long_names_are_shortened_to_what_the_kernel_accepts() {
    let pods = [pod(1, "blue", "web")];
    let mut index = PolicyIndex::default();
    index.set_namespaces(namespaces(&[]));
    index.set_pods(pods.iter().map(|pod| (pod.key(), pod.pod())));
    let name = "a".repeat(253);
    apply(&mut index, "blue", &name, &json!({"podSelector": {}}));
    let targets = [DropLogTarget::Policy(PolicyId::namespaced("blue", &name))].into();
    let prefixes = tables_with_logs(&mut index, &pods, &targets).log_prefixes();
    assert_eq!(prefixes.iter().map(String::len).collect::<Vec<_>>(), [127]);
}

#[test]
fn the_annotation_has_one_value() {
    let of = |value: &str| logs_drops(&Labels::from([(LOG_DROPS_ANNOTATION.to_owned(), value.to_owned())]));
    assert_eq!(["true", "True", "", "false"].map(of), [true, false, false, false]);
    assert!(!logs_drops(&Labels::new()));
}
