//! PodRoute objects inside a VRF of the pod, on a kernel with VRFs: waiting, traffic, and a recreated VRF.

use std::collections::BTreeMap;

use knit_agent::Standalone;
use knit_engine::ObjectKey;
use knit_testbed::{Dump, Testbed};

use crate::support::test_host::{objects, problems};

fn object(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, spec: {{\
         selector: {{matchLabels: {{app: x}}}}, {spec}}}}}"
    )
}

fn apply(node: &mut Standalone, yaml: &str) {
    node.apply(objects(yaml), "test").unwrap();
}

fn delete(node: &mut Standalone, kind: &str, name: &str) {
    let key = ObjectKey { kind: kind.to_owned(), namespace: "default".to_owned(), name: name.to_owned() };
    node.delete(&[key], "test").unwrap();
}

#[test]
fn vrf_routes_forward_packets_of_its_ports() {
    let testbed = Testbed::new("vrfroute");
    testbed.host().run(|| {
        let (pod, router) = (testbed.pod("a"), testbed.namespace("router"));
        testbed.connect(&pod, "eth0", &router, "far0");
        pod.address("eth0", "10.9.0.2/24");
        // The router is reached through a macvlan in the VRF.
        router.ip(&["address", "add", "10.62.0.1/24", "dev", "far0"]);
        router.ip(&["address", "add", "10.99.0.1/32", "dev", "lo"]);
        router.ip(&["link", "set", "lo", "up"]);
        let folder = tempfile::tempdir().unwrap();
        let mut node = Standalone::open(folder.path()).unwrap();
        let labels = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
        node.add_sandbox("default", "a", labels, pod.pid()).unwrap();
        let clean = Dump::settled(pod.namespace());

        let routes = "vrf: red, routes: [{to: 10.99.0.0/16, via: 10.62.0.1}, {to: 10.98.0.0/16, type: blackhole}], \
                      sysctls: {net.ipv4.conf.mv0.rp_filter: '2'}";
        apply(&mut node, &object("PodRoute", "r", routes));
        let reported = problems(&node);
        assert!(reported.contains("pod default/a waits for VRF red, which does not exist"), "{reported}");
        let vrf = |table: u32| object("Vrf", "red", &format!("interfaceName: red, table: {table}"));
        apply(&mut node, &vrf(1010));
        let reported = problems(&node);
        assert!(reported.contains("waits for an interface whose subnet contains the gateway 10.62.0.1"), "{reported}");
        assert!(pod.ip(&["route", "show", "table", "1010"]).contains("blackhole 10.98.0.0/16"));
        let port = "interfaceName: mv0, parent: eth0, vrf: red, addresses: ['10.62.0.2/24']";
        apply(&mut node, &object("Macvlan", "mv", port));
        assert_eq!(problems(&node), "");
        let is_reachable =
            || pod.output("ping", &["-n", "-c", "1", "-i", "0.2", "-w", "5", "-I", "red", "10.99.0.1"]).is_ok();
        assert!(is_reachable());
        assert!(pod.output("ping", &["-n", "-c", "1", "-W", "1", "10.99.0.1"]).is_err(), "reachable in the VRF only");
        assert!(!pod.ip(&["route"]).contains("10.99"));

        // Another table: the VRF is recreated, and its routes are in the new table.
        apply(&mut node, &vrf(1011));
        assert_eq!(problems(&node), "");
        assert!(pod.ip(&["route", "show", "table", "1011"]).contains("10.99.0.0/16 via 10.62.0.1 dev mv0"));
        assert_eq!(pod.output("ip", &["route", "show", "table", "1010"]).unwrap_or_default().trim(), "");
        assert!(is_reachable());
        assert!(node.differences().unwrap().is_empty());

        // The route is deleted and restored with the port.
        delete(&mut node, "Macvlan", "mv");
        assert!(!pod.ip(&["route", "show", "table", "1011"]).contains("10.99"));
        apply(&mut node, &object("Macvlan", "mv", port));
        assert!(is_reachable());
        delete(&mut node, "PodRoute", "r");
        assert!(!is_reachable());
        delete(&mut node, "Macvlan", "mv");
        delete(&mut node, "Vrf", "red");
        clean.assert_unchanged(pod.namespace());
    });
}
