//! Invalid values are rejected with the path of the field, all at once.

use std::fmt::Write;

use knit_crds::Object;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;

/// A kind and a spec in each line. `xtask/tests/cluster_crds.rs` sends the same list to an API server.
const BAD: &str = include_str!("../samples/bad.txt");

fn object(kind: &str, name: &str, spec: &str) -> Result<Object, String> {
    let version = Object::find_kind(kind).unwrap().api_version();
    let yaml = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n");
    Object::parse(&yaml).map_err(|errors| errors.to_string())
}

#[test]
fn every_invalid_value_has_its_message() {
    let mut output = String::new();
    for line in BAD.lines().filter(|line| !line.starts_with('#')) {
        let (kind, spec) = line.split_once(' ').unwrap();
        let object = object(kind, "x", spec).unwrap_or_else(|error| panic!("{kind} {spec}: {error}"));
        let problems = match object.intents(Dialect::File) {
            Ok(_) => panic!("{kind} {spec} was accepted"),
            Err(problems) => problems,
        };
        writeln!(output, "{kind} {spec}").unwrap();
        for line in problems.to_string().lines() {
            writeln!(output, "    {line}").unwrap();
        }
    }
    insta::assert_snapshot!(output);
}

#[test]
fn one_object_has_at_most_32_interfaces() {
    let spec = |count: usize| {
        let entries: Vec<String> = (0..count).map(|n| format!("{{name: n{n}, master: br0}}")).collect();
        format!("{{networkAttachments: [{}]}}", entries.join(", "))
    };
    let intents = |count| object("PodConfig", "x", &spec(count)).unwrap().intents(Dialect::File);
    assert_eq!(intents(32).unwrap().intents.len(), 32);
    assert_eq!(
        intents(33).unwrap_err().to_string(),
        "spec.networkAttachments: must have at most 32 interfaces, got 33"
    );
}

#[test]
fn a_name_longer_than_a_label_value_needs_a_selector() {
    let long = "a".repeat(64);
    let spec = "{interfaceName: n1, master: br0}";
    assert_eq!(
        object("Veth", &long, spec).unwrap().intents(Dialect::File).unwrap_err().to_string(),
        "metadata.name: must be at most 63 characters to be a value of the label podnetwork.opdev.io/veth, got 64: set spec.selector"
    );
    let selected = "{interfaceName: n1, master: br0, selector: {matchLabels: {a: b}}}";
    assert!(object("Veth", &long, selected).unwrap().intents(Dialect::File).is_ok());
}

#[test]
fn an_unknown_link_type_is_rejected_with_the_known_ones() {
    // An object from an API server with newer definitions is still parsed.
    let mut value =
        object("PodConfig", "x", "{networkAttachments: [{name: pc0, master: br0}]}").unwrap().to_value();
    value["spec"]["networkAttachments"][0]["linkType"] = "nosuch".into();
    let object: knit_crds::kinds::PodConfig = serde_json::from_value(value).unwrap();
    let problems = knit_crds::ResourceKind::intents(&object, Dialect::Kubernetes).unwrap_err();
    let problems = problems.to_string();
    assert!(problems.starts_with("spec.networkAttachments[0].linkType: must be one of veth, "), "{problems}");
    assert!(problems.contains(", vxlan, ") && problems.ends_with(", got `nosuch`"), "{problems}");
}

#[test]
fn duplicate_interface_names_are_a_conflict() {
    let spec = "{networkAttachments: [{name: pc0, master: br0}, {name: pc0, master: br1}]}";
    let problems = object("PodConfig", "x", spec).unwrap().intents(Dialect::File).unwrap_err();
    assert_eq!(problems.0[0].reason, Reason::Conflict);
}

#[test]
fn the_name_of_a_bridge_is_immutable() {
    let bridge = |name: &str| object("Bridge", "x", &format!("{{name: {name}}}")).unwrap();
    assert!(bridge("br0").check_change(&bridge("br0")).is_empty());
    assert_eq!(
        bridge("br1").check_change(&bridge("br0")).to_string(),
        "spec.name: name is immutable: create another Bridge"
    );
}
