//! An agent that has not the device which taps are made with. Needs root.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod machine;
}

use std::process::Command;
use std::time::Duration;

use knit_testbed::eventually;
use support::agent::Machine;
use support::machine::Said;

/// A tap, and an interface of another kind for the same pod.
const OBJECTS: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Tap, metadata: {name: vm}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: tap0, owner: 4242}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: 10.1.0.0/24}}";

/// How the device is kept from the agent, what is said of it, and how it comes.
const WITHOUT: [(&str, &str, &str); 2] = [
    (
        "mount -t tmpfs tmpfs /dev/net",
        "this kernel has no tap (/dev/net/tun is not there",
        "mknod /dev/net/tun c 10 200",
    ),
    (
        "mount -t tmpfs -o nodev tmpfs /dev/net && mknod /dev/net/tun c 10 200",
        "/dev/net/tun may not be opened here",
        "mount -o remount,dev /dev/net",
    ),
];

#[test]
fn a_device_that_is_missing_or_refused_is_said_once_and_other_interfaces_come() {
    for (number, (mounts, words, comes)) in WITHOUT.into_iter().enumerate() {
        let machine = Machine::new(&format!("devices-{number}"));
        let pod = machine.testbed.pod("one");
        let agent = machine.agent_among(mounts, &["--resync-seconds", "1"]);
        let knit = |arguments: &[&str]| {
            let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
            command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock"));
            Said::of(command, "")
        };
        knit(&["sandbox", "add", "one", "--pid", &pod.pid().to_string(), "-l", "app=x"]).ok();
        std::fs::write(machine.path("objects/all.yaml"), OBJECTS).unwrap();
        let reaches = || pod.namespace().output("ping", &["-n", "-c", "1", "-W", "1", "10.1.0.1"]).is_ok();
        eventually("the other interface is there", Duration::from_secs(10), reaches);
        let described = || knit(&["describe", "tap", "vm"]).out;
        eventually("the object says it", Duration::from_secs(10), || described().contains(words));
        assert!(described().contains("KernelLacks"), "{}", described());

        // It is compared, and tried, each second.
        std::thread::sleep(Duration::from_millis(3_500));
        let log = machine.log();
        assert_eq!(log.matches(words).count(), 1, "{log}");
        assert!(!log.contains("is repaired"), "{log}");
        assert!(described().contains(words), "{}", described());

        // What someone changes by hand meanwhile is repaired, and said.
        pod.ip(&["address", "flush", "dev", "net1"]);
        eventually("the address is back", Duration::from_secs(10), reaches);
        eventually("it is said", Duration::from_secs(5), || machine.log().contains("is repaired"));

        let inside = format!("--mount=/proc/{}/ns/mnt", agent.pid());
        let come = Command::new("nsenter").args([inside.as_str(), "sh", "-c", comes]).status().unwrap();
        assert!(come.success());
        eventually("the tap comes", Duration::from_secs(10), || {
            pod.namespace()
                .output("ip", &["-d", "link", "show", "tap0"])
                .is_ok_and(|it| it.contains("user 4242"))
        });
        eventually("the object says so", Duration::from_secs(5), || !described().contains("KernelLacks"));
        std::fs::remove_file(machine.path("objects/all.yaml")).unwrap();
        eventually("all goes", Duration::from_secs(10), || !pod.ip(&["-br", "link"]).contains("tap0"));
        knit(&["sandbox", "delete", "one"]).ok();
        agent.stop();
    }
}
