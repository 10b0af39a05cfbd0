//! HostDevice: a NIC of the node, lent to one pod at a time.

use super::support::machine::{Machine, has_link, link};
use super::{object, stands};

const LABEL: &str = "podnetwork.opdev.io/hostdevice=nic";

#[test]
fn host_device() {
    let machine = Machine::new("hostdev");
    // The node's NIC, and what is on the other side of its cable.
    let outside = machine.testbed.namespace("outside");
    machine.testbed.connect(&machine.host, "nic0", &outside, "far0");
    outside.address("far0", "10.2.0.200/24");
    machine.host.ip(&["link", "set", "nic0", "mtu", "1400"]);
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let untouched = machine.untouched(&[&a, &b]);
    machine.add("a", &a, &[LABEL]);
    machine.add("b", &b, &[]);
    let spec = "interfaceName: wire0, parent: fast, addresses: ['10.2.0.2/24']";
    let said = machine.apply(&object("HostDevice", "nic", spec)).refused();
    assert!(said.contains("there is no Uplink fast: a host-device is the NIC of one"), "{said}");
    // That a NIC is open for links on it is not enough.
    machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [default]")).ok();
    let said = machine.apply(&object("HostDevice", "nic", spec)).refused();
    assert!(said.contains("uplink fast is not open to host-device links"), "{said}");
    untouched.assert_again();

    machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [default], kinds: [host-device]")).ok();
    stands(&machine, "HostDevice", "nic", spec);
    assert!(!has_link(&machine.host, "nic0"));
    a.ping("10.2.0.200").unwrap();
    let shown = machine.get("hostdevice", "nic");
    assert_eq!(
        shown["status"]["podConfigurations"][0]["configList"][0],
        "{podLinkName:wire0 linkType:host-device podIPAddr:10.2.0.2/24 mtu:1400}"
    );
    let (mac, born) = (link(&a, "wire0")["address"].clone(), link(&a, "wire0")["ifindex"].clone());
    stands(&machine, "HostDevice", "nic", &format!("{spec}, mtu: 1300, hardwareAddr: '02:00:00:00:00:0a'"));
    assert_eq!((&link(&a, "wire0")["mtu"], &link(&a, "wire0")["ifindex"]), (&1300.into(), &born));
    stands(&machine, "HostDevice", "nic", spec);
    assert_eq!((&link(&a, "wire0")["mtu"], &link(&a, "wire0")["address"]), (&1400.into(), &mac));

    // The second pod that matches is told who has it; it gets it when the first gives it back.
    machine.knit(&["sandbox", "label", "b", LABEL]);
    let said = machine.knit(&["status"]);
    assert!(said.out.contains("NIC nic0 of uplink fast is lent already"), "{said:?}");
    assert!(has_link(&a, "wire0") && !has_link(&b, "wire0"));
    machine.knit(&["sandbox", "label", "a", "podnetwork.opdev.io/hostdevice-"]);
    machine.apply(&object("HostDevice", "nic", spec)).ok();
    assert!(!has_link(&a, "wire0") && has_link(&b, "wire0"));
    b.ping("10.2.0.200").unwrap();

    // Someone takes it out by hand, as the kernel does when a namespace ends: it is put in order, and lent again.
    let host = machine.host.path().file_name().unwrap().to_str().unwrap();
    b.ip(&["link", "set", "wire0", "netns", host]);
    machine.knit(&[
        "apply",
        "-f",
        machine.file("o.yaml", &object("HostDevice", "nic", spec)).to_str().unwrap(),
    ]);
    machine.apply(&object("HostDevice", "nic", spec)).ok();
    b.ping("10.2.0.200").unwrap();
    // A NIC with an address of the node's stays where it is.
    machine.knit(&["delete", "hostdevice", "nic"]).ok();
    untouched.assert_again();
    machine.host.ip(&["address", "add", "10.2.0.1/24", "dev", "nic0"]);
    let said = machine.apply(&object("HostDevice", "nic", spec)).refused();
    assert!(said.contains("NIC nic0 has the host's address 10.2.0.1/24, which would be lost"), "{said}");
    machine.host.ip(&["address", "del", "10.2.0.1/24", "dev", "nic0"]);
    machine.apply(&object("HostDevice", "nic", spec)).ok();
    // The uplink is closed: the NIC goes home.
    machine.knit(&["delete", "uplink", "fast"]).ok();
    assert!(has_link(&machine.host, "nic0") && !has_link(&b, "wire0"));
    machine.knit(&["delete", "hostdevice", "nic"]).ok();
    untouched.assert_again();
    machine.assert_at_rest();
}
