//! The objects of the pages about kinds that this machine's kernel may lack, as they are printed there: pods reach what
//! they should through each of them, and nothing of it is left. (Pages of the other kinds are run with all their commands,
//! by `netns_docs` of the binary.)
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::process::Command;

use knit_agent::Standalone;
use knit_crds::Object;
use knit_engine::ObjectKey;
use knit_model::report::Phase;
use knit_testbed::{Dump, Testbed};

/// One example of a page, for pods `a` and `b`.
struct Example {
    /// The labels that its pods have, `key=value`.
    a: &'static [&'static str],
    b: &'static [&'static str],
    /// The kernel's word, and the interface in `a`.
    kind: &'static str,
    link: &'static str,
    /// What `ping` is told in `a` to reach.
    reach: &'static [&'static str],
}

const fn both(
    labels: &'static [&'static str],
    kind: &'static str,
    link: &'static str,
    reach: &'static [&'static str],
) -> Example {
    Example { a: labels, b: labels, kind, link, reach }
}

const fn alone(
    labels: &'static [&'static str],
    kind: &'static str,
    link: &'static str,
    reach: &'static [&'static str],
) -> Example {
    Example { a: labels, b: &[], kind, link, reach }
}

const fn tunnel(kind: &'static str, link: &'static str, reach: &'static [&'static str]) -> Example {
    Example { a: &["app=site", "site=a"], b: &["app=site", "site=b"], kind, link, reach }
}

/// Each page, and its examples in order.
const PAGES: &[(&str, &[Example])] = &[
    (
        include_str!("../../../docs/kinds/dummy.md"),
        &[alone(&["podnetwork.opdev.io/dummy=own"], "dummy", "own0", &["10.9.0.1"])],
    ),
    (
        include_str!("../../../docs/kinds/vlan.md"),
        &[both(&["podnetwork.opdev.io/vlan=office"], "vlan", "vl100", &["10.60.0.3"])],
    ),
    (
        include_str!("../../../docs/kinds/ipvlan.md"),
        &[both(&["podnetwork.opdev.io/ipvlan=lan"], "ipvlan", "lan0", &["10.61.0.3"])],
    ),
    (
        include_str!("../../../docs/kinds/vrf.md"),
        &[both(
            &["podnetwork.opdev.io/vrf=red", "podnetwork.opdev.io/veth=red"],
            "vrf",
            "red",
            &["-I", "red", "10.62.0.3"],
        )],
    ),
    (
        include_str!("../../../docs/kinds/tap.md"),
        &[alone(&["podnetwork.opdev.io/tap=vm"], "tun", "tap0", &["10.80.0.1"])],
    ),
    (
        include_str!("../../../docs/kinds/wireguard.md"),
        &[alone(&["podnetwork.opdev.io/wireguard=safe"], "wireguard", "wg0", &["10.70.0.1"])],
    ),
    (include_str!("../../../docs/kinds/geneve.md"), &[tunnel("geneve", "gnv1", &["10.70.0.2"])]),
    (
        include_str!("../../../docs/kinds/gre.md"),
        &[tunnel("gre", "gre1", &["10.70.0.2"]), tunnel("ip6gretap", "tap1", &["10.71.0.2"])],
    ),
    (
        include_str!("../../../docs/kinds/iptunnel.md"),
        &[tunnel("ipip", "tun1", &["10.70.0.2"]), tunnel("sit", "six1", &["fd70::2"])],
    ),
];

/// Loading these makes devices in every namespace, which must not look like Knit's.
const MODULES: [&str; 6] = ["geneve", "ip_gre", "ip6_gre", "ipip", "sit", "ip6_tunnel"];

fn yaml_of(page: &str) -> Vec<&str> {
    page.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(text, _)| text).collect()
}

fn apply(node: &mut Standalone, text: &str) -> Vec<ObjectKey> {
    let changes = node.apply(Object::parse_all(text).unwrap(), "a test").unwrap();
    for change in &changes {
        let report = node.state().report(&change.key).unwrap();
        let key = &change.key;
        assert_eq!((report.phase, report.problems.as_slice()), (Phase::Configured, &[][..]), "{key}");
        assert_eq!(report.warnings, Vec::<String>::new(), "{key}");
    }
    changes.into_iter().map(|change| change.key).collect()
}

#[test]
fn the_pages_examples_work() {
    let done = Command::new("modprobe").arg("-a").args(MODULES).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let testbed = Testbed::new("pages");
    let (host, folder) = (testbed.host(), tempfile::tempdir().unwrap());
    // The NIC that some pages speak of.
    testbed.connect(&host, "nic0", &testbed.namespace("outside"), "far0");
    let pods = ["a", "b"].map(|name| testbed.pod(name));
    let dumps = || [&host, pods[0].namespace(), pods[1].namespace()].map(Dump::take);
    let before = dumps();
    for (page, examples) in PAGES {
        let found = yaml_of(page);
        assert_eq!(found.len(), examples.len(), "{page}");
        for (text, Example { a, b, kind, link, reach }) in found.into_iter().zip(*examples) {
            let keys = host.run(|| {
                let mut node = Standalone::open(folder.path()).unwrap();
                for ((name, labels), pod) in [("a", a), ("b", b)].into_iter().zip(&pods) {
                    let labels = labels.iter().map(|label| label.split_once('=').unwrap());
                    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                    node.add_sandbox("default", name, labels, pod.pid()).unwrap();
                }
                apply(&mut node, text)
            });
            let inside = pods[0].namespace();
            let shown = inside.ip_json(&["-d", "link", "show", link]);
            assert_eq!(shown[0]["linkinfo"]["info_kind"], *kind, "{shown}");
            inside.output("ping", &[&["-c1", "-W5"], *reach].concat()).unwrap();
            host.run(|| {
                let mut node = Standalone::open(folder.path()).unwrap();
                node.delete(&keys, "a test").unwrap();
                ["a", "b"].into_iter().for_each(|name| node.delete_sandbox("default", name).unwrap());
            });
            for (before, after) in before.iter().zip(dumps()) {
                let difference = before.difference(&after);
                assert!(difference.is_empty(), "{kind}: {difference}");
            }
        }
    }
}
