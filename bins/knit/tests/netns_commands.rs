//! Commands around the walkthrough: what people read, what they mistype, and pods by hand. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod machine;
}

use std::time::Duration;

use knit_testbed::eventually;
use serde_json::Value;
use support::machine::{Machine, SAMPLE, has_link, link};

const LABEL: &str = "podconfig=podconfig-sample-a";

#[test]
fn get_describe_and_status_show_the_same_in_every_form() {
    let machine = Machine::new("get");
    let a = machine.known_pod("a", 180, &[LABEL]);
    machine.apply(SAMPLE).ok();
    let line = format!(
        "{{podVethName:pc0{pid} podIPAddr:192.168.100.2/24 peerVethName:hpc0{pid} bridge:pcbr0}}",
        pid = a.pid()
    );
    let yaml = machine.knit(&["get", "podconfigs", "podconfig-sample-a", "-o", "yaml"]).ok();
    assert!(yaml.contains("phase: configured") && yaml.contains(&line), "{yaml}");
    // What it prints is what it reads.
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
    for words in ["Name:       podconfig-sample-a", "Namespace:  default", "phase: configured", &line] {
        assert!(described.contains(words), "{words} in {described}");
    }
    let status = machine.knit(&["status"]).ok();
    for words in ["1 object, 1 sandbox", "192.168.100.1/24", "192.168.99.2/24", &format!("pc0{}", a.pid())] {
        assert!(status.contains(words), "{words} in {status}");
    }
    let status: Value = serde_json::from_str(&machine.knit(&["status", "-o", "json"]).ok()).unwrap();
    assert_eq!(status["units"].as_array().unwrap().len(), 3);
    assert_eq!(
        machine.knit(&["get", "podconfig", "nobody"]).refused(),
        "knit: there is no podconfig nobody\n"
    );
    assert!(
        machine.knit(&["get", "podkonfig"]).refused().contains("there is no kind `podkonfig`; there are")
    );
}

#[test]
fn bad_objects_change_nothing_and_all_their_mistakes_are_named() {
    let machine = Machine::new("bad");
    let a = machine.known_pod("a", 180, &[LABEL]);
    let untouched = machine.untouched(&[&a]);
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
    let said = machine.apply(bad).refused();
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
        assert!(said.contains(field), "{field} in {said}");
    }
    assert_eq!(machine.knit(&["get"]).ok(), "no objects\n");
    untouched.assert_again();

    let kind = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bidge, metadata: {name: x}, spec: {}}";
    assert!(machine.apply(kind).refused().contains("Bidge"));
    let field = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Bridge, metadata: {name: x}, spec: {name: x0, mut: 1400}}";
    let said = machine.apply(field).refused();
    assert!(said.contains("spec.mut") && said.contains("mtu"), "{said}");
    let known = machine.apply(&SAMPLE.replacen("linkType: veth", "linkType: vlam", 1)).refused();
    assert!(
        known.contains("spec.networkAttachments[0].linkType: `vlam` is not one of veth, macvlan"),
        "{known}"
    );
    let reserved = machine.apply(&SAMPLE.replace("192.168.99.0/24", "169.254.0.0/16")).refused();
    assert!(
        reserved.contains("spec.networkAttachments[1].cidr") && reserved.contains("link-local"),
        "{reserved}"
    );
    assert!(machine.apply("kind: [").refused().contains("standard input"));
    assert!(machine.knit(&["apply", "-f", "/nowhere.yaml"]).refused().contains("cannot read /nowhere.yaml"));
    untouched.assert_again();
}

#[test]
fn values_that_only_the_node_can_judge_are_refused_in_the_status() {
    let machine = Machine::new("judged");
    let a = machine.known_pod("a", 180, &["x=y"]);
    let untouched = machine.untouched(&[&a]);
    let veth = |name: &str, rest: &str| {
        format!(
            "{{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {{name: {name}}}, \
             spec: {{selector: {{matchLabels: {{x: 'y'}}}}, {rest}}}}}"
        )
    };
    for (rest, words) in [
        ("interfaceName: n1, master: b1, cidr: 10.128.2.0/24", "overlaps the node's range 10.128.2.0/23"),
        ("interfaceName: n1, master: cni0, cidr: 10.3.0.0/24", "cni0 exists, and Knit did not make it"),
        ("interfaceName: n1, master: b1, network: nowhere", "there is no VirtualNetwork nowhere"),
    ] {
        let yaml = veth("bad", rest);
        let said = machine.apply(&yaml).refused();
        assert!(said.contains(words), "{words} in {said}");
        let status = machine.knit(&["status"]);
        assert!(status.code == Some(1) && status.out.contains(words), "{words} in {status:?}");
        machine.delete(&yaml).ok();
        untouched.assert_again();
    }
    // Two ask for the same name: the first keeps working, the second says so, and gets its turn.
    let (first, second) = (
        veth("first", "interfaceName: n1, master: b1, cidr: 10.3.0.0/24"),
        veth("second", "interfaceName: n1, master: b2, cidr: 10.4.0.0/30"),
    );
    machine.apply(&first).ok();
    let said = machine.apply(&second).refused();
    assert!(
        said.contains("interface n1 of pod default/a is asked for already by veth/first in default"),
        "{said}"
    );
    a.ping("10.3.0.1").unwrap();
    machine.delete(&first).ok();
    a.ping("10.4.0.1").unwrap();
    // A pool that is used up gives nothing away.
    let b = machine.known_pod("b", 181, &["x=y"]);
    let said = machine.knit(&["status"]);
    assert!(said.code == Some(1) && said.out.contains("10.4.0.0/30 is exhausted"), "{said:?}");
    assert!(!has_link(&b, "n1"));
    a.ping("10.4.0.1").unwrap();
}

#[test]
fn pods_are_made_entered_and_ended() {
    let machine = Machine::new("sandboxes");
    let untouched = machine.untouched(&[]);
    for name in ["a", "b"] {
        machine.knit(&["sandbox", "add", name, "-l", LABEL]).ok();
    }
    let again = machine.knit(&["sandbox", "add", "a"]).refused();
    assert_eq!(again, "knit: there is a sandbox a in namespace default already\n");
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
        eventually("the holder ends", Duration::from_secs(10), || std::fs::read_link(&comm).is_err());
    }
    untouched.assert_again();
    let gone = machine.knit(&["sandbox", "delete", "a"]).refused();
    assert!(gone.contains("there is no sandbox a in namespace default"), "{gone}");
}

#[test]
fn a_pod_of_others_goes_on_as_it_was_when_it_is_let_go() {
    let machine = Machine::new("letgo");
    let a = machine.pod("a", 180);
    let untouched = machine.untouched(&[&a]);
    machine.add("a", &a, &[LABEL, "podnetwork.opdev.io/primarynetwork=p"]);
    machine.apply(SAMPLE).ok();
    machine.apply("{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: p}, spec: {mtu: 1300}}").ok();
    assert_eq!(link(&a, "eth0")["mtu"], 1300);
    machine.knit(&["sandbox", "delete", "a"]).ok();
    assert!(a.holder().is_running());
    untouched.assert_again();
    machine.assert_at_rest();
}

#[test]
fn a_pod_with_a_user_namespace_of_its_own_is_served_like_any_other() {
    let machine = Machine::new("userns");
    let mut held = machine.host.command("unshare");
    held.args(["--user", "--map-root-user", "--net", "sleep", "infinity"]);
    let held = machine.host.spawn(&mut held);
    let pid = held.pid().to_string();
    eventually("it has its namespaces", Duration::from_secs(10), || {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(b"sleep"))
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
    machine.assert_at_rest();
}

#[test]
fn a_pod_that_ends_leaves_nothing_on_the_host() {
    let machine = Machine::new("ends");
    let untouched = machine.untouched(&[]);
    let a = machine.testbed.pod("a");
    machine.add("a", &a, &[LABEL]);
    machine.apply(SAMPLE).ok();
    // Its namespace lives on, because the testbed holds it: only the process is gone.
    a.holder().stop().unwrap();
    let said = machine.knit(&["status"]);
    assert!(said.err.contains("sandbox default/a: its namespace is gone, so it is forgotten"), "{said:?}");
    machine.delete(SAMPLE).ok();
    untouched.assert_again();
    machine.assert_at_rest();
}

#[test]
fn what_is_no_pods_namespace_is_refused_at_once() {
    let machine = Machine::new("nopod");
    let on_host = machine.host.spawn(machine.host.command("sleep").arg("infinity"));
    eventually("it is on the host", Duration::from_secs(10), || {
        machine.host.processes().iter().any(|(pid, _)| *pid == on_host.pid())
    });
    let said = machine.knit(&["sandbox", "add", "a", "--pid", &on_host.pid().to_string()]).refused();
    assert!(said.contains("is the host's own"), "{said}");
    assert!(!machine.knit(&["sandbox", "add", "a", "--pid", "4194305"]).refused().is_empty());
    assert!(machine.knit(&["sandbox", "list"]).ok().starts_with("no sandboxes"));
}
