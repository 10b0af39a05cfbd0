//! The walkthrough: `podconfig-sample-a` on two running pods.

use crate::support::machine::{Machine, SAMPLE, addresses, assert_all_reach, has_link, link};
use serde_json::Value;

const LABEL: &str = "podconfig=podconfig-sample-a";
const TITLE: &str = "podconfig.podconfig.opdev.io/podconfig-sample-a";

#[test]
fn two_networks_on_two_running_pods_are_applied_and_rolled_back() {
    let machine = Machine::new("walkthrough");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    let foreign_state = machine.foreign_state();
    machine.add("a", &a, &[LABEL]);
    machine.add("b", &b, &[LABEL]);
    before.assert_unchanged();

    let printed = machine.apply(SAMPLE);
    assert_eq!(printed.ok(), format!("{TITLE} created\n"));
    assert_eq!(printed.err, "");
    assert_eq!(machine.foreign_state(), foreign_state);

    for (pod, last) in [(&a, 2), (&b, 3)] {
        for (prefix, bridge, network) in [("pc0", "pcbr0", "192.168.100"), ("pc1", "pcbr1", "192.168.99")] {
            let name = format!("{prefix}{}", pod.pid());
            let far = format!("h{name}");
            assert_eq!(addresses(pod, &name), [format!("{network}.{last}/24")]);
            assert_eq!(link(&machine.host, &far)["master"], bridge);
            assert_eq!(
                (&link(pod, &name)["mtu"], &link(&machine.host, &far)["mtu"]),
                (&1500.into(), &1500.into())
            );
            assert_eq!(addresses(&machine.host, bridge), [format!("{network}.1/24")]);
        }
        assert_eq!(addresses(pod, "eth0").len(), 1);
    }
    for network in ["192.168.100", "192.168.99"] {
        let [bridge, first, second] = [1, 2, 3].map(|last| format!("{network}.{last}"));
        assert_all_reach(&[(&machine.host, &bridge), (&a, &first), (&b, &second)]);
    }
    a.ping("10.128.2.181").unwrap();

    let object = machine.get("podconfig", "podconfig-sample-a");
    assert_eq!(object["status"]["phase"], "configured");
    let (first, second) = (a.pid(), b.pid());
    let line = |pid: u32, index: u32, network: u32, last: u32| {
        format!(
            "{{podVethName:pc{index}{pid} podIPAddr:192.168.{network}.{last}/24 peerVethName:hpc{index}{pid} bridge:pcbr{index}}}"
        )
    };
    assert_eq!(
        object["status"]["podConfigurations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| serde_json::json!({"podName": pod["podName"], "configList": pod["configList"]}))
            .collect::<serde_json::Value>(),
        serde_json::json!([
            {"podName": "a", "configList": [line(first, 0, 100, 2), line(first, 1, 99, 2)]},
            {"podName": "b", "configList": [line(second, 0, 100, 3), line(second, 1, 99, 3)]},
        ])
    );
    machine.assert_no_drift();

    assert_eq!(machine.delete(SAMPLE).ok(), format!("{TITLE} deleted\n"));
    assert_eq!(machine.foreign_state(), foreign_state);
    before.assert_unchanged();
    machine.assert_no_drift();
}

#[test]
fn a_shared_bridge_survives_the_deletion_of_one_object() {
    let machine = Machine::new("sharing");
    let both = [LABEL, "podconfig-b=yes"];
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &both);
    machine.add("b", &b, &both);
    let second =
        "{apiVersion: podconfig.opdev.io/v1alpha1, kind: PodConfig, metadata: {name: second}, spec: {
        selector: {matchLabels: {podconfig-b: 'yes'}},
        networkAttachments: [{name: q, linkType: veth, master: pcbr0, cidr: 192.168.100.0/24}]}}";
    machine.apply(SAMPLE).ok();
    machine.apply(second).ok();
    assert_eq!(addresses(&a, &format!("q{}", a.pid())), ["192.168.100.4/24"]);
    machine.delete(SAMPLE).ok();
    assert!(!has_link(&a, &format!("pc0{}", a.pid())) && !has_link(&machine.host, "pcbr1"));
    assert_all_reach(&[(&machine.host, "192.168.100.1"), (&a, "192.168.100.4"), (&b, "192.168.100.5")]);
    machine.delete(second).ok();
    before.assert_unchanged();
}

#[test]
fn removing_a_label_removes_only_its_interfaces() {
    let machine = Machine::new("label");
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let of_a = machine.snapshot(&[&a]);
    machine.add("a", &a, &[LABEL]);
    machine.add("b", &b, &[LABEL]);
    machine.apply(SAMPLE).ok();
    assert_eq!(machine.knit(&["sandbox", "label", "a", "podconfig-"]).ok(), "sandbox/a labeled\n");
    assert!(
        !has_link(&a, &format!("pc0{}", a.pid())) && !has_link(&machine.host, &format!("hpc0{}", a.pid()))
    );
    b.ping("192.168.100.1").unwrap();
    assert_eq!(machine.get("podconfig", "podconfig-sample-a")["status"]["pods"], 1);
    // With its label back, the pod gets the same address.
    machine.knit(&["sandbox", "label", "a", LABEL]).ok();
    assert_eq!(addresses(&b, &format!("pc0{}", b.pid())), ["192.168.100.3/24"]);
    assert_eq!(addresses(&a, &format!("pc0{}", a.pid())), ["192.168.100.2/24"]);
    b.ping("192.168.100.2").unwrap();
    machine.knit(&["sandbox", "delete", "b"]).ok();
    machine.knit(&["sandbox", "delete", "a"]).ok();
    of_a.assert_unchanged();
}

#[test]
fn plan_changes_nothing_and_its_exit_code_reports_changes() {
    let machine = Machine::new("plan");
    let a = machine.registered_pod("a", 180, &[LABEL]);
    let before = machine.snapshot(&[&a]);
    let file = machine.file("sample.yaml", SAMPLE);
    let file = file.to_str().unwrap();
    let planned = machine.knit(&["plan", "-f", file]);
    assert_eq!(planned.code, Some(2), "{planned:?}");
    for expected in
        ["+ bridge pcbr0", &format!("+ veth pc0{}", a.pid()), "+ address 192.168.100.2/24", "to add"]
    {
        assert!(planned.out.contains(expected), "{expected} in {}", planned.out);
    }
    let json: Value = serde_json::from_str(&machine.knit(&["plan", "-f", file, "-o", "json"]).out).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4, "two bridges, the packet filter and a pod: {json}");
    assert_eq!(
        machine.knit(&["apply", "-f", file, "--dry-run"]).ok(),
        format!("{TITLE} created (dry run)\n")
    );
    assert_eq!(machine.knit(&["get"]).ok(), "no objects\n");
    before.assert_unchanged();

    machine.knit(&["apply", "-f", file]).ok();
    let applied = machine.snapshot(&[&a]);
    let planned = machine.knit(&["plan", "-f", file]);
    assert_eq!((planned.code, planned.out.as_str()), (Some(0), "no changes\n"));
    assert_eq!(machine.knit(&["apply", "-f", file]).ok(), format!("{TITLE} unchanged\n"));
    let removing = machine.knit(&["delete", "-f", file, "--dry-run"]);
    assert!(removing.ok().contains("- bridge pcbr0"), "{removing:?}");
    applied.assert_unchanged();
}

#[test]
fn objects_of_one_directory_are_planned_together() {
    let machine = Machine::new("folder");
    let a = machine.registered_pod("a", 180, &[LABEL, "podnetwork.opdev.io/primarynetwork=mtu"]);
    let folder = machine.state().with_file_name("objects");
    crate::support::machine::write(&folder, "1.yaml", SAMPLE);
    let mtu = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: PrimaryNetwork, metadata: {name: mtu}, spec: {mtu: 1300}}";
    crate::support::machine::write(&folder, "2.yaml", mtu);
    crate::support::machine::write(&folder, "notes.txt", "not an object");
    let folder = folder.to_str().unwrap();
    let planned = machine.knit(&["plan", "-f", folder]).out;
    assert_eq!(planned.matches(&format!("+ veth pc0{}", a.pid())).count(), 1, "{planned}");
    assert_eq!(planned.matches("mtu: 1450 -> 1300").count(), 1, "{planned}");
    machine.knit(&["apply", "-f", folder]).ok();
    assert_eq!(machine.knit(&["plan", "-f", folder]).code, Some(0));
}

#[test]
fn undo_rolls_back_one_change_at_a_time() {
    let machine = Machine::new("undo");
    let a = machine.registered_pod("a", 180, &[LABEL]);
    let before = machine.snapshot(&[&a]);
    machine.apply(SAMPLE).ok();
    let first = machine.snapshot(&[&a]);
    machine.apply(&SAMPLE.replace("192.168.99.0/24", "192.168.98.0/24,fd00:98::/64")).ok();
    assert_eq!(addresses(&a, &format!("pc1{}", a.pid())), ["192.168.98.2/24", "fd00:98::2/64"]);
    a.ping("fd00:98::1").unwrap();
    machine.delete(SAMPLE).ok();
    before.assert_unchanged();
    assert!(machine.knit(&["undo"]).ok().starts_with("rolled back: delete -\n"));
    a.ping("192.168.98.1").unwrap();
    machine.knit(&["undo"]).ok();
    first.assert_unchanged();
    a.ping("192.168.99.1").unwrap();
    machine.knit(&["undo"]).ok();
    before.assert_unchanged();
    assert_eq!(machine.knit(&["undo"]).error(), "knit: there is nothing to undo\n");
}
