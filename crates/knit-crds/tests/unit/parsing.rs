//! Parsing: valid documents, and errors with line and field.

use knit_crds::Object;

use crate::SAMPLES;

const BROKEN: &[(&str, &str)] = &[
    ("no YAML", "a: [1\nb: 2\n"),
    ("no object", "- a\n- b\n"),
    ("no kind", "apiVersion: v1\nmetadata: {name: x}\n"),
    ("another kind", "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n"),
    (
        "another version",
        "apiVersion: podnetwork.opdev.io/v1\nkind: Bridge\nmetadata: {name: x}\nspec: {name: br0}\n",
    ),
    ("no name", "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\nmetadata: {}\nspec: {name: br0}\n"),
    (
        "a bad name",
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\nmetadata: {name: A_b}\nspec: {name: br0}\n",
    ),
    ("no spec", "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\nmetadata: {name: x}\n"),
    (
        "several errors",
        "apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata:
  name: x
  lables: {a: b}
  labels: {a: 1}
spec:
  networkAttachments:
    - name: pc0
      lnkType: veth
      master: 7
    - linkType: nosuch
      vlan: 7
  selector: all
",
    ),
    (
        "wrong types",
        "apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: {name: x}
spec: {name: br0, mtu: '1500', promisc: 1, ageing: 1.5, cidr: [10.0.0.0/24]}
",
    ),
    (
        "the same key twice",
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\nkind: Veth\nmetadata: {name: x}\n",
    ),
];

/// A message with `...` for the known kinds and link types, to which a new kind adds.
fn without_lists(line: &str) -> String {
    let kinds: Vec<&str> = Object::kinds().iter().map(|info| info.kind.as_str()).collect();
    let line = line.replace(&kinds.join(", "), "...");
    match line
        .split_once("must be one of veth, ")
        .and_then(|(start, rest)| Some((start, rest.split_once(", got")?)))
    {
        Some((start, (_, end))) => format!("{start}must be one of veth, ..., got{end}"),
        None => line,
    }
}

#[test]
fn errors_have_line_and_field() {
    let mut output = String::new();
    for (title, yaml) in BROKEN {
        let errors = Object::parse(yaml).map(|object| object.kind()).unwrap_err();
        output.push_str(&format!("{title}\n"));
        for line in errors.to_string().lines() {
            output.push_str(&format!("    {}\n", without_lists(line)));
        }
    }
    insta::assert_snapshot!(output);
}

#[test]
fn errors_of_all_documents_are_reported_with_their_lines() {
    let yaml = "---\n# nothing here\n---\nkind: Pod\n---\nkind: Node\n";
    let errors = Object::parse_all(yaml).unwrap_err();
    let lines: Vec<u64> = errors.0.iter().map(|error| error.location.line).collect();
    assert_eq!(lines, [4, 6]);
}

#[test]
fn objects_survive_a_yaml_round_trip() {
    for (name, yaml) in SAMPLES {
        for object in Object::parse_all(yaml).unwrap() {
            let again = Object::parse(&object.to_yaml()).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(again, object, "{name}");
        }
    }
}

#[test]
fn json_and_lists_are_parsed() {
    let objects = Object::parse_all(SAMPLES[1].1).unwrap();
    let items: Vec<serde_json::Value> = objects.iter().map(Object::to_value).collect();
    let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": items });
    for text in [list.to_string(), serde_json::to_string_pretty(&list).unwrap()] {
        assert_eq!(Object::parse_all(&text).unwrap(), objects);
    }
}

#[test]
fn a_null_field_equals_an_absent_field() {
    let yaml = |mtu: &str| {
        format!(
            "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Bridge\nmetadata: {{name: x}}\nspec: {{name: br0{mtu}}}\n"
        )
    };
    assert_eq!(Object::parse(&yaml(", mtu: null")).unwrap(), Object::parse(&yaml("")).unwrap());
}

#[test]
fn parse_requires_exactly_one_object() {
    assert!(Object::parse("").unwrap_err().to_string().contains("must contain exactly one object, got 0"));
    assert!(Object::parse(SAMPLES[1].1).unwrap_err().to_string().contains("got 2"));
}

#[test]
fn an_object_whose_name_has_no_value_is_rejected() {
    let text = "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: Veth\nmetadata:\n  name:\nspec: {interfaceName: net1}\n";
    for name in ["", " ~", " null"] {
        let errors = Object::parse(&text.replace("name:\n", &format!("name:{name}\n"))).unwrap_err();
        assert_eq!(errors.0[0].field, "metadata.name", "{errors}");
    }
}
