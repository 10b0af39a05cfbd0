//! Bad values are refused in words, with the path of the field, all at once.

use std::fmt::Write;

use knit_crds::Object;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;

/// A kind and a spec in each line. The same list is put before an API server by `xtask/tests/cluster_crds.rs`.
const BAD: &str = include_str!("../samples/bad.txt");

fn object(kind: &str, name: &str, spec: &str) -> Result<Object, String> {
    let version = Object::find_kind(kind).unwrap().api_version();
    let yaml = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n");
    Object::parse(&yaml).map_err(|errors| errors.to_string())
}

#[test]
fn every_bad_value_has_its_sentence() {
    let mut page = String::new();
    for line in BAD.lines().filter(|line| !line.starts_with('#')) {
        let (kind, spec) = line.split_once(' ').unwrap();
        let object = object(kind, "x", spec).unwrap_or_else(|error| panic!("{kind} {spec}: {error}"));
        let problems = match object.intents(Dialect::File) {
            Ok(_) => panic!("{kind} {spec} was taken"),
            Err(problems) => problems,
        };
        writeln!(page, "{kind} {spec}").unwrap();
        for line in problems.to_string().lines() {
            writeln!(page, "    {line}").unwrap();
        }
    }
    insta::assert_snapshot!(page);
}

#[test]
fn one_object_makes_at_most_32_interfaces() {
    let spec = |count: usize| {
        let entries: Vec<String> = (0..count).map(|n| format!("{{name: n{n}, master: br0}}")).collect();
        format!("{{networkAttachments: [{}]}}", entries.join(", "))
    };
    let intents = |count| object("PodConfig", "x", &spec(count)).unwrap().intents(Dialect::File);
    assert_eq!(intents(32).unwrap().intents.len(), 32);
    assert_eq!(
        intents(33).unwrap_err().to_string(),
        "spec.networkAttachments: 33 interfaces in one object, at most 32 are allowed"
    );
}

#[test]
fn a_name_that_is_no_label_value_needs_a_selector() {
    let long = "a".repeat(64);
    let spec = "{interfaceName: n1, master: br0}";
    assert_eq!(
        object("Veth", &long, spec).unwrap().intents(Dialect::File).unwrap_err().to_string(),
        "metadata.name: the name has 64 characters, but the label podnetwork.opdev.io/veth takes at most 63: use spec.selector"
    );
    let selected = "{interfaceName: n1, master: br0, selector: {matchLabels: {a: b}}}";
    assert!(object("Veth", &long, selected).unwrap().intents(Dialect::File).is_ok());
}

#[test]
fn a_link_type_from_a_newer_version_is_refused_with_the_known_ones() {
    // From an API server with newer definitions, the object is read all the same.
    let mut value =
        object("PodConfig", "x", "{networkAttachments: [{name: pc0, master: br0}]}").unwrap().to_value();
    value["spec"]["networkAttachments"][0]["linkType"] = "nosuch".into();
    let object: knit_crds::kinds::PodConfig = serde_json::from_value(value).unwrap();
    let problems = knit_crds::Kind::intents(&object, Dialect::Kubernetes).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "spec.networkAttachments[0].linkType: link type `nosuch` is not known here, it is one of veth, macvlan, ipvlan, vlan, \
         host-device, dummy, tap, vrf, vxlan, geneve, gre, gretap, ipip, sit, ip6tnl, wireguard"
    );
}

#[test]
fn the_same_name_twice_is_a_conflict() {
    let spec = "{networkAttachments: [{name: pc0, master: br0}, {name: pc0, master: br1}]}";
    let problems = object("PodConfig", "x", spec).unwrap().intents(Dialect::File).unwrap_err();
    assert_eq!(problems.0[0].reason, Reason::Conflict);
}

#[test]
fn a_bridge_keeps_its_name() {
    let bridge = |name: &str| object("Bridge", "x", &format!("{{name: {name}}}")).unwrap();
    assert!(bridge("br0").check_change(&bridge("br0")).is_empty());
    assert_eq!(
        bridge("br1").check_change(&bridge("br0")).to_string(),
        "spec.name: a bridge does not change its name: make another Bridge"
    );
}
