//! The CRDs on a real API server: accepted, explained, and rejecting invalid values with a message.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod support {
    #[allow(dead_code, reason = "shared by the cluster's tests")]
    pub mod kubectl;
}

use std::collections::BTreeSet;

use support::kubectl::{Namespace, install_kinds, kubectl};

/// A kind and a spec in each line; the tests of knit-crds check the same list.
const BAD: &str = include_str!("../../../crates/knit-crds/tests/samples/bad.txt");
/// Lines below this one are rejected by the agent only.
const AGENT_ONLY: &str = "# Checked by the agent only";
/// All documented objects.
const GOOD: [&str; 2] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/standalone"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/knit-crds/tests/samples"),
];

fn object(kind: &str, name: &str, spec: &str) -> String {
    let group = if kind == "PodConfig" { "podconfig" } else { "podnetwork" };
    format!(
        "---\napiVersion: {group}.opdev.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    )
}

fn podconfig(name: &str, entry: &str) -> String {
    object("PodConfig", name, &format!("{{networkAttachments: [{entry}]}}"))
}

#[test]
fn the_api_server_accepts_the_crds_and_explains_them() {
    install_kinds();
    let namespace = Namespace::new("crds");
    let good = "{name: pc0, linkType: veth, master: pcbr0, parent: pc0, cidr: 192.168.100.0/24}";
    let (accepted, output) = namespace.try_apply(&podconfig("good", good));
    assert!(accepted, "{output}");
    assert!(namespace.kubectl(&["get", "knit"]).contains("good"));
    assert!(kubectl(&["explain", "podconfig.spec.networkAttachments.cidr"]).contains("DESCRIPTION"));
}

/// The text with every namespace replaced by this one.
fn in_namespace(text: &str, namespace: &str) -> String {
    let mut parts = text.split("namespace: ");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '-');
        format!("{text}namespace: {namespace}{rest}")
    })
}

#[test]
fn the_api_server_accepts_every_documented_object() {
    install_kinds();
    let namespace = Namespace::new("good");
    for file in GOOD.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = in_namespace(&std::fs::read_to_string(&path).unwrap(), &namespace.name);
            let (accepted, output) = namespace.feed(&["create", "--dry-run=server", "-f", "-"], &text);
            assert!(accepted, "{}: {output}", path.display());
        }
    }
}

#[test]
fn the_api_server_rejects_every_bad_value_with_a_message() {
    install_kinds();
    let namespace = Namespace::new("bad");
    let (for_all, for_agent) = BAD.split_once(AGENT_ONLY).unwrap();
    let lines = |text: &'static str| -> Vec<&str> {
        text.lines().filter(|line| line.contains(" {") && !line.starts_with('#')).collect()
    };
    let (rejected, accepted_by_api) = (lines(for_all), lines(for_agent));
    assert!(
        rejected.len() > 150 && !accepted_by_api.is_empty(),
        "{} and {}",
        rejected.len(),
        accepted_by_api.len()
    );
    let all: Vec<&str> = rejected.iter().chain(&accepted_by_api).copied().collect();
    let objects: String = all
        .iter()
        .enumerate()
        .map(|(number, line)| {
            let (kind, spec) = line.split_once(' ').unwrap();
            object(kind, &format!("bad{number}"), spec)
        })
        .collect();
    // kubectl continues after a rejected object and reports each.
    let (_, output) = namespace.feed(&["create", "--dry-run=server", "-f", "-"], &objects);
    let accepted: BTreeSet<&str> = all
        .iter()
        .enumerate()
        .filter(|(number, _)| output.contains(&format!("/bad{number} created")))
        .map(|(_, line)| *line)
        .collect();
    assert_eq!(accepted, accepted_by_api.into_iter().collect(), "{output}");
    let messages = output.lines().filter(|line| line.contains("is invalid: ")).count();
    assert_eq!(messages, rejected.len(), "{output}");
    // A validation rule that fails to evaluate is a bug.
    for mistake in ["rule evaluation error", "failed rule", "no such overload"] {
        assert!(!output.contains(mistake), "{mistake}: {output}");
    }
}

#[test]
fn a_bad_value_is_reported_with_its_field_and_a_message() {
    install_kinds();
    let namespace = Namespace::new("messages");
    let spec = |count: usize| {
        let entries: Vec<String> = (0..count).map(|n| format!("{{name: n{n}, master: br0}}")).collect();
        format!("{{networkAttachments: [{}]}}", entries.join(", "))
    };
    let cases = [
        (
            object("Vlan", "x", "{interfaceName: v0, parent: up, id: 4095}"),
            "spec.id",
            "0 and 4095 are reserved",
        ),
        (object("Bridge", "x", "{name: br0, mtu: 67}"), "spec.mtu", "MTU must be between 68 and 65535 bytes"),
        (
            object("Bridge", "x", "{name: br0, mtu: 70000}"),
            "spec.mtu",
            "MTU must be between 68 and 65535 bytes",
        ),
        (object("Bridge", "x", "{name: br0, address: '01:00:5e:00:00:01'}"), "spec.address", "multicast"),
        (object("Bridge", "x", "{name: br0, cidr: 192.168.100.7/24}"), "spec.cidr", "no host bits"),
        (object("Bridge", "x", "{name: br0, cidr: '::ffff:10.0.0.0/120'}"), "spec.cidr", "write it as IPv4"),
        (object("Bridge", "x", "{name: br0, cidr: 'fd00::/127'}"), "spec.cidr", "need an address each"),
        (object("Bridge", "x", "{name: br0, cidr: '::/0'}"), "spec.cidr", "prefix length of 1 to 30"),
        (
            podconfig("x", "{name: farTooLongAName, master: br0}"),
            "networkAttachments[0].name",
            "1 to 7 bytes",
        ),
        (podconfig("x", "{name: a, master: b}, {name: a, master: c}"), "networkAttachments[1]", "Duplicate"),
        (object("PodConfig", "x", &spec(33)), "spec.networkAttachments", "at most 32 items"),
    ];
    for (manifest, field, expected) in cases {
        let (accepted, output) = namespace.try_apply(&manifest);
        assert!(!accepted, "{manifest} was accepted");
        assert!(output.contains(field) && output.contains(expected), "{manifest}: {output}");
    }
    assert!(namespace.try_apply(&object("PodConfig", "most", &spec(32))).0);
}

#[test]
fn a_bridges_name_is_immutable_and_its_other_fields_are_not() {
    install_kinds();
    let namespace = Namespace::new("change");
    namespace.apply(&object("Bridge", "b", "{name: br0, mtu: 1400}"));
    let (accepted, output) = namespace.try_apply(&object("Bridge", "b", "{name: br0, mtu: 1300}"));
    assert!(accepted, "{output}");
    let (accepted, output) = namespace.try_apply(&object("Bridge", "b", "{name: br1, mtu: 1300}"));
    assert!(!accepted && output.contains("name is immutable"), "{output}");
}
