//! The objects of the tunnels' pages, as they are printed there: two pods reach each other through each of them, and
//! nothing of it is left.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::process::Command;

use knit_agent::Standalone;
use knit_crds::Object;
use knit_engine::ObjectKey;
use knit_model::report::Phase;
use knit_testbed::{Dump, Pod, Testbed};

/// For each example of a page: the kernel's word, the interface, and the address of pod `b` that pod `a` reaches.
type Expected = &'static [(&'static str, &'static str, &'static str)];

const PAGES: &[(&str, Expected)] = &[
    (include_str!("../../../docs/kinds/geneve.md"), &[("geneve", "gnv1", "10.70.0.2")]),
    (
        include_str!("../../../docs/kinds/gre.md"),
        &[("gre", "gre1", "10.70.0.2"), ("ip6gretap", "tap1", "10.71.0.2")],
    ),
    (
        include_str!("../../../docs/kinds/iptunnel.md"),
        &[("ipip", "tun1", "10.70.0.2"), ("sit", "six1", "fd70::2")],
    ),
];

/// Loading these makes devices in every namespace, which must not look like Knit's.
const MODULES: [&str; 6] = ["geneve", "ip_gre", "ip6_gre", "ipip", "sit", "ip6_tunnel"];

fn examples(page: &str) -> Vec<&str> {
    page.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(text, _)| text).collect()
}

fn apply(node: &mut Standalone, text: &str) -> Vec<ObjectKey> {
    let changes = node.apply(Object::parse_all(text).unwrap(), "a test").unwrap();
    for change in &changes {
        let report = node.state().report(&change.key).unwrap();
        assert_eq!(
            (report.phase, report.problems.as_slice()),
            (Phase::Configured, &[][..]),
            "{}",
            change.key
        );
        assert_eq!(report.warnings, Vec::<String>::new());
    }
    changes.into_iter().map(|change| change.key).collect()
}

#[test]
fn the_pages_examples_work() {
    let done = Command::new("modprobe").arg("-a").args(MODULES).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let testbed = Testbed::new("pages");
    let (host, folder) = (testbed.host(), tempfile::tempdir().unwrap());
    let pods = ["a", "b"].map(|name| testbed.pod(name));
    let dumps = || pods.each_ref().map(|pod: &Pod| Dump::take(pod.namespace()));
    let before = dumps();
    host.run(|| {
        let mut node = Standalone::open(folder.path()).unwrap();
        for (name, pod) in ["a", "b"].iter().zip(&pods) {
            let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let labels = [label("app", "site"), label("site", name)].into();
            node.add_sandbox("default", name, labels, pod.pid()).unwrap();
        }
    });
    for (page, expected) in PAGES {
        let found = examples(page);
        assert_eq!(found.len(), expected.len());
        for (text, (kind, link, reach)) in found.into_iter().zip(*expected) {
            let keys = host.run(|| apply(&mut Standalone::open(folder.path()).unwrap(), text));
            let shown = pods[0].namespace().ip_json(&["-d", "link", "show", link]);
            assert_eq!(shown[0]["linkinfo"]["info_kind"], *kind, "{shown}");
            pods[0].namespace().ping(reach).unwrap();
            host.run(|| Standalone::open(folder.path()).unwrap().delete(&keys, "a test").unwrap());
        }
    }
    for (before, after) in before.iter().zip(dumps()) {
        let difference = before.difference(&after);
        assert!(difference.is_empty(), "{difference}");
    }
}
