//! HostDevice: a NIC of the node, moved to one pod at a time.

use super::{assert_configured, object};
use crate::support::machine::{Machine, has_link, link};

const LABEL: &str = "podnetwork.opdev.io/hostdevice=nic";

#[test]
fn host_device() {
    let machine = Machine::new("hostdev");
    // The NIC of the node, and its peer.
    let outside = machine.testbed.namespace("outside");
    machine.testbed.connect(&machine.host, "nic0", &outside, "far0");
    outside.address("far0", "10.2.0.200/24");
    machine.host.ip(&["link", "set", "nic0", "mtu", "1400"]);
    let (a, b) = (machine.pod("a", 180), machine.pod("b", 181));
    let before = machine.snapshot(&[&a, &b]);
    machine.add("a", &a, &[LABEL]);
    machine.add("b", &b, &[]);
    let spec = "interfaceName: wire0, parent: fast, addresses: ['10.2.0.2/24']";
    let printed = machine.apply(&object("HostDevice", "nic", spec)).error();
    assert!(printed.contains("there is no Uplink fast: a host-device is the NIC of one"), "{printed}");
    // An Uplink for other kinds is not enough.
    machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [default]")).ok();
    let printed = machine.apply(&object("HostDevice", "nic", spec)).error();
    assert!(printed.contains("uplink fast is not open to host-device links"), "{printed}");
    before.assert_unchanged();

    machine.apply(&object("Uplink", "fast", "link: nic0, namespaces: [default], kinds: [host-device]")).ok();
    assert_configured(&machine, "HostDevice", "nic", spec);
    assert!(!has_link(&machine.host, "nic0"));
    a.ping("10.2.0.200").unwrap();
    let shown = machine.get("hostdevice", "nic");
    assert_eq!(
        shown["status"]["podConfigurations"][0]["configList"][0],
        "{podLinkName:wire0 linkType:host-device podIPAddr:10.2.0.2/24 mtu:1400}"
    );
    let (mac, born) = (link(&a, "wire0")["address"].clone(), link(&a, "wire0")["ifindex"].clone());
    assert_configured(
        &machine,
        "HostDevice",
        "nic",
        &format!("{spec}, mtu: 1300, hardwareAddr: '02:00:00:00:00:0a'"),
    );
    assert_eq!((&link(&a, "wire0")["mtu"], &link(&a, "wire0")["ifindex"]), (&1300.into(), &born));
    assert_configured(&machine, "HostDevice", "nic", spec);
    assert_eq!((&link(&a, "wire0")["mtu"], &link(&a, "wire0")["address"]), (&1400.into(), &mac));

    // The second matching pod waits until the first releases the NIC.
    machine.knit(&["sandbox", "label", "b", LABEL]);
    let printed = machine.knit(&["status"]);
    assert!(printed.out.contains("NIC nic0 of uplink fast is already moved"), "{printed:?}");
    assert!(has_link(&a, "wire0") && !has_link(&b, "wire0"));
    machine.knit(&["sandbox", "label", "a", "podnetwork.opdev.io/hostdevice-"]);
    machine.apply(&object("HostDevice", "nic", spec)).ok();
    assert!(!has_link(&a, "wire0") && has_link(&b, "wire0"));
    b.ping("10.2.0.200").unwrap();

    // The NIC is moved out by hand, as by the kernel when a netns is deleted: it is restored and moved again.
    let host = machine.host.path().file_name().unwrap().to_str().unwrap();
    b.ip(&["link", "set", "wire0", "netns", host]);
    machine.knit(&[
        "apply",
        "-f",
        machine.file("o.yaml", &object("HostDevice", "nic", spec)).to_str().unwrap(),
    ]);
    machine.apply(&object("HostDevice", "nic", spec)).ok();
    b.ping("10.2.0.200").unwrap();
    // A NIC with an address of the node is not moved.
    machine.knit(&["delete", "hostdevice", "nic"]).ok();
    before.assert_unchanged();
    machine.host.ip(&["address", "add", "10.2.0.1/24", "dev", "nic0"]);
    let printed = machine.apply(&object("HostDevice", "nic", spec)).error();
    assert!(
        printed.contains("NIC nic0 has the host's address 10.2.0.1/24, which would be lost"),
        "{printed}"
    );
    machine.host.ip(&["address", "del", "10.2.0.1/24", "dev", "nic0"]);
    machine.apply(&object("HostDevice", "nic", spec)).ok();
    // The uplink is closed: the NIC is moved back.
    machine.knit(&["delete", "uplink", "fast"]).ok();
    assert!(has_link(&machine.host, "nic0") && !has_link(&b, "wire0"));
    machine.knit(&["delete", "hostdevice", "nic"]).ok();
    before.assert_unchanged();
    machine.assert_no_drift();
}
