//! Standalone commands: output formats, invalid input and sandboxes.

use std::time::Duration;

use crate::support::machine::{Machine, SAMPLE, has_link, link};
use knit_testbed::eventually;
use serde_json::Value;

const LABEL: &str = "podconfig=podconfig-sample-a";

#[test]
fn get_describe_and_status_agree_in_all_formats() {
    let machine = Machine::new("get");
    let a = machine.registered_pod("a", 180, &[LABEL]);
    machine.apply(SAMPLE).ok();
    let line = format!(
        "{{podVethName:pc0{pid} podIPAddr:192.168.100.2/24 peerVethName:hpc0{pid} bridge:pcbr0}}",
        pid = a.pid()
    );
    let yaml = machine.knit(&["get", "podconfigs", "podconfig-sample-a", "-o", "yaml"]).ok();
    assert!(yaml.contains("phase: configured") && yaml.contains(&line), "{yaml}");
    // The output of `get` is valid input of `apply`.
    assert!(machine.apply(&yaml).ok().ends_with("podconfig-sample-a unchanged\n"));
    let json = machine.get("pcfg", "podconfig-sample-a");
    assert_eq!(json["spec"]["networkAttachments"][1]["cidr"], "192.168.99.0/24");
    assert_eq!(json["status"]["conditions"][0]["status"], "True");
    let table = machine.knit(&["get", "podconfig"]).ok();
    assert!(table.starts_with("NAMESPACE") && table.contains("podconfig/podconfig-sample-a"), "{table}");
    assert!(table.contains("configured"), "{table}");
    let wide = machine.knit(&["get", "podconfig", "-o", "wide"]).ok();
    assert!(wide.lines().next().unwrap().len() >= table.lines().next().unwrap().len(), "{wide}");
    assert_eq!(machine.knit(&["get", "-n", "elsewhere"]).ok(), "no objects\n");
    let described = machine.knit(&["describe", "podconfig", "podconfig-sample-a"]).ok();
    for expected in ["Name:       podconfig-sample-a", "Namespace:  default", "phase: configured", &line] {
        assert!(described.contains(expected), "{expected} in {described}");
    }
    let status = machine.knit(&["status"]).ok();
    for expected in ["1 object, 1 sandbox", "192.168.100.1/24", "192.168.99.2/24", &format!("pc0{}", a.pid())]
    {
        assert!(status.contains(expected), "{expected} in {status}");
    }
    let status: Value = serde_json::from_str(&machine.knit(&["status", "-o", "json"]).ok()).unwrap();
    assert_eq!(status["units"].as_array().unwrap().len(), 4, "two bridges, a pod and the packet filter");
    assert_eq!(machine.knit(&["get", "podconfig", "nobody"]).error(), "knit: podconfig nobody not found\n");
    assert!(machine.knit(&["get", "podkonfig"]).error().contains("unknown kind `podkonfig`; the kinds are"));
}

#[test]
fn invalid_objects_change_nothing_and_all_errors_are_reported() {
    let machine = Machine::new("bad");
    let a = machine.registered_pod("a", 180, &[LABEL]);
    let before = machine.snapshot(&[&a]);
    let bad = r#"
apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata: {name: good}
spec: {selector: {matchLabels: {podconfig: podconfig-sample-a}}, networkAttachments: [{name: g, master: gbr, cidr: 10.7.0.0/24}]}
---
apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata: {name: bad}
spec:
  networkAttachments:
    - {name: muchtoolong, linkType: veth, master: "a/b", cidr: "192.168.100.5/24"}
    - {name: pc1, linkType: macvlan, cidr: "192.168.99.0/33"}
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: {name: worse}
spec: {name: lo, mtu: 67, address: "01:00:5e:00:00:01", cidr: "127.0.0.0/8"}
"#;
    let printed = machine.apply(bad).error();
    for field in [
        "spec.networkAttachments[0].name:",
        "spec.networkAttachments[0].master:",
        "spec.networkAttachments[0].cidr:",
        "spec.networkAttachments[1].parent:",
        "spec.networkAttachments[1].cidr:",
        "podconfig/bad in default",
        "bridge/worse in default",
        "spec.mtu:",
        "spec.address:",
    ] {
        assert!(printed.contains(field), "{field} in {printed}");
    }
    assert_eq!(machine.knit(&["get"]).ok(), "no objects\n");
    before.assert_unchanged();

    let kind = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bidge, metadata: {name: x}, spec: {}}";
    assert!(machine.apply(kind).error().contains("Bidge"));
    let field = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {name: x}, spec: {name: x0, mut: 1400}}";
    let printed = machine.apply(field).error();
    assert!(printed.contains("spec.mut") && printed.contains("mtu"), "{printed}");
    let known = machine.apply(&SAMPLE.replacen("linkType: veth", "linkType: vlam", 1)).error();
    assert!(known.contains("spec.networkAttachments[0].linkType: must be one of veth, macvlan"), "{known}");
    let reserved = machine.apply(&SAMPLE.replace("192.168.99.0/24", "169.254.0.0/16")).error();
    assert!(
        reserved.contains("spec.networkAttachments[1].cidr") && reserved.contains("link-local"),
        "{reserved}"
    );
    assert!(machine.apply("kind: [").error().contains("standard input"));
    assert!(machine.knit(&["apply", "-f", "/nowhere.yaml"]).error().contains("cannot read /nowhere.yaml"));
    before.assert_unchanged();
}

#[test]
fn values_that_are_invalid_on_the_node_are_reported_in_the_status() {
    let machine = Machine::new("judged");
    let a = machine.registered_pod("a", 180, &["x=y"]);
    let before = machine.snapshot(&[&a]);
    let veth = |name: &str, rest: &str| {
        format!(
            "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {{name: {name}}}, \
             spec: {{selector: {{matchLabels: {{x: 'y'}}}}, {rest}}}}}"
        )
    };
    for (rest, expected) in [
        ("interfaceName: n1, master: b1, cidr: 10.128.2.0/24", "overlaps the node's range 10.128.2.0/23"),
        (
            "interfaceName: n1, master: cni0, cidr: 10.3.0.0/24",
            "bridge cni0: the name is reserved for links of the host",
        ),
        ("interfaceName: n1, master: b1, network: nowhere", "there is no VirtualNetwork nowhere"),
    ] {
        let yaml = veth("bad", rest);
        let printed = machine.apply(&yaml).error();
        assert!(printed.contains(expected), "{expected} in {printed}");
        let status = machine.knit(&["status"]);
        assert!(status.code == Some(1) && status.out.contains(expected), "{expected} in {status:?}");
        machine.delete(&yaml).ok();
        before.assert_unchanged();
    }
    // Two objects with the same name: the first keeps working, the second reports the conflict and is applied later.
    let (first, second) = (
        veth("first", "interfaceName: n1, master: b1, cidr: 10.3.0.0/24"),
        veth("second", "interfaceName: n1, master: b2, cidr: 10.4.0.0/30"),
    );
    machine.apply(&first).ok();
    let printed = machine.apply(&second).error();
    assert!(
        printed.contains("interface n1 of pod default/a is already requested by veth/first in default"),
        "{printed}"
    );
    a.ping("10.3.0.1").unwrap();
    machine.delete(&first).ok();
    a.ping("10.4.0.1").unwrap();
    // An exhausted pool allocates nothing.
    let b = machine.registered_pod("b", 181, &["x=y"]);
    let printed = machine.knit(&["status"]);
    assert!(printed.code == Some(1) && printed.out.contains("10.4.0.0/30 is exhausted"), "{printed:?}");
    assert!(!has_link(&b, "n1"));
    a.ping("10.4.0.1").unwrap();
}

#[test]
fn sandboxes_are_added_entered_and_deleted() {
    let machine = Machine::new("sandboxes");
    let before = machine.snapshot(&[]);
    for name in ["a", "b"] {
        machine.knit(&["sandbox", "add", name, "-l", LABEL]).ok();
    }
    let again = machine.knit(&["sandbox", "add", "a"]).error();
    assert_eq!(again, "knit: sandbox a in namespace default already exists\n");
    machine.apply(SAMPLE).ok();
    let list: Value = serde_json::from_str(&machine.knit(&["sandbox", "list", "-o", "json"]).ok()).unwrap();
    let pid = list[0]["pid"].as_u64().unwrap();
    assert_eq!(list[0]["interfaces"], serde_json::json!([format!("pc0{pid}"), format!("pc1{pid}")]));
    let inside = machine.knit(&["sandbox", "exec", "a", "--", "ping", "-c1", "-w5", "192.168.100.3"]);
    assert!(inside.ok().contains("1 received"), "{inside:?}");
    assert_eq!(machine.knit(&["sandbox", "exec", "a", "--", "false"]).code, Some(1));
    for name in ["a", "b"] {
        assert_eq!(machine.knit(&["sandbox", "delete", name]).ok(), format!("sandbox/{name} deleted\n"));
    }
    for sandbox in list.as_array().unwrap() {
        let comm = format!("/proc/{}/ns/net", sandbox["pid"]);
        eventually("the holder exits", Duration::from_secs(10), || std::fs::read_link(&comm).is_err());
    }
    before.assert_unchanged();
    let gone = machine.knit(&["sandbox", "delete", "a"]).error();
    assert!(gone.contains("sandbox a in namespace default not found"), "{gone}");
}

#[test]
fn a_deleted_foreign_sandbox_is_restored() {
    let machine = Machine::new("letgo");
    let a = machine.pod("a", 180);
    let before = machine.snapshot(&[&a]);
    machine.add("a", &a, &[LABEL, "podnetwork.opdev.io/primarynetwork=p"]);
    machine.apply(SAMPLE).ok();
    machine.apply("{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: p}, spec: {mtu: 1300}}").ok();
    assert_eq!(link(&a, "eth0")["mtu"], 1300);
    machine.knit(&["sandbox", "delete", "a"]).ok();
    assert!(a.holder().is_running());
    before.assert_unchanged();
    machine.assert_no_drift();
}

#[test]
fn a_sandbox_in_a_user_namespace_is_supported() {
    let machine = Machine::new("userns");
    let mut held = machine.host.command("unshare");
    held.args(["--user", "--map-root-user", "--net", "sleep", "infinity"]);
    let held = machine.host.spawn(&mut held);
    let pid = held.pid().to_string();
    eventually("it has its namespaces", Duration::from_secs(10), || {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|cmdline| cmdline.starts_with(b"sleep"))
    });
    let user = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).unwrap();
    assert_ne!(user(&pid), user("self"));
    machine.knit(&["sandbox", "add", "a", "--pid", &pid, "-l", LABEL]).ok();
    machine.apply(SAMPLE).ok();
    let links = machine.knit(&["sandbox", "exec", "a", "--", "ip", "-br", "addr"]).ok();
    assert!(links.contains("192.168.100.2/24") && links.contains("192.168.99.2/24"), "{links}");
    machine.delete(SAMPLE).ok();
    let links = machine.knit(&["sandbox", "exec", "a", "--", "ip", "-br", "link"]).ok();
    assert_eq!(links.lines().count(), 1, "only lo: {links}");
    machine.knit(&["sandbox", "delete", "a"]).ok();
    held.stop().unwrap();
    machine.assert_no_drift();
}

#[test]
fn a_terminated_sandbox_leaves_nothing_on_the_host() {
    let machine = Machine::new("ends");
    let before = machine.snapshot(&[]);
    let a = machine.testbed.pod("a");
    machine.add("a", &a, &[LABEL]);
    machine.apply(SAMPLE).ok();
    // The testbed holds the netns: only the process is gone.
    a.holder().stop().unwrap();
    let printed = machine.knit(&["status"]);
    assert!(
        printed.err.contains("sandbox default/a: its namespace is gone, removed from the state"),
        "{printed:?}"
    );
    machine.delete(SAMPLE).ok();
    before.assert_unchanged();
    machine.assert_no_drift();
}

#[test]
fn a_process_without_its_own_netns_is_rejected() {
    let machine = Machine::new("nopod");
    let on_host = machine.host.spawn(machine.host.command("sleep").arg("infinity"));
    eventually("it is on the host", Duration::from_secs(10), || {
        machine.host.processes().iter().any(|(pid, _)| *pid == on_host.pid())
    });
    let printed = machine.knit(&["sandbox", "add", "a", "--pid", &on_host.pid().to_string()]).error();
    assert!(printed.contains("is the host's network namespace"), "{printed}");
    assert!(!machine.knit(&["sandbox", "add", "a", "--pid", "4194305"]).error().is_empty());
    assert!(machine.knit(&["sandbox", "list"]).ok().starts_with("no sandboxes"));
}
