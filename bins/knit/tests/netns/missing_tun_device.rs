//! An agent without access to /dev/net/tun.

use std::process::Command;
use std::time::Duration;

use crate::support::agent::{Machine, folder};
use crate::support::machine::CommandOutput;
use knit_testbed::eventually;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

/// A tap and an interface of another kind for the same pod.
const OBJECTS: &str = "{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Tap, metadata: {name: vm}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: tap0, owner: 4242}}
---
{apiVersion: podnetwork.opdev.io/v1alpha1, kind: Veth, metadata: {name: net}, spec: {
    selector: {matchLabels: {app: x}}, interfaceName: net1, master: br1, cidr: 10.1.0.0/24}}";

#[test]
fn a_missing_or_denied_tun_device_is_reported_once_and_other_interfaces_are_created() {
    for (number, (is_missing, expected)) in [
        (true, "this kernel has no tap (/dev/net/tun does not exist"),
        (false, "no permission to open /dev/net/tun"),
    ]
    .into_iter()
    .enumerate()
    {
        let machine = Machine::new(&format!("devices-{number}"));
        let pod = machine.testbed.pod("one");
        let devices = folder(&machine.path("devices"));
        let create = || mknod(&devices.join("tun"), SFlag::S_IFCHR, Mode::all(), makedev(10, 200)).unwrap();
        let confinement = machine.confinement().with_programs();
        let confinement = if is_missing {
            confinement.bind(&devices, "/dev/net")
        } else {
            create();
            confinement.bind_nodev(&devices, "/dev/net")
        };
        let agent = machine.confined_agent(&confinement, &["--resync-seconds", "1"], &[]);
        let knit = |arguments: &[&str]| {
            let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
            command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock"));
            CommandOutput::of(command, "")
        };
        knit(&["sandbox", "add", "one", "--pid", &pod.pid().to_string(), "-l", "app=x"]).ok();
        std::fs::write(machine.path("objects/all.yaml"), OBJECTS).unwrap();
        let reaches = || pod.namespace().output("ping", &["-n", "-c", "1", "-W", "1", "10.1.0.1"]).is_ok();
        eventually("the other interface is there", Duration::from_secs(10), reaches);
        let described = || knit(&["describe", "tap", "vm"]).out;
        eventually("the status is updated", Duration::from_secs(10), || described().contains(expected));
        assert!(described().contains("KernelUnsupported"), "{}", described());

        // The agent compares and retries every second.
        std::thread::sleep(Duration::from_millis(3_500));
        let log = machine.log();
        assert_eq!(log.matches(expected).count(), 1, "{log}");
        assert!(!log.contains("drift repaired"), "{log}");
        assert!(described().contains(expected), "{}", described());

        // Drift in the meantime is repaired and reported.
        pod.ip(&["address", "flush", "dev", "net1"]);
        eventually("the address is back", Duration::from_secs(10), reaches);
        eventually("it is reported", Duration::from_secs(5), || machine.log().contains("drift repaired"));

        if is_missing {
            create();
        } else {
            let inside = format!("--mount=/proc/{}/ns/mnt", agent.pid());
            let remount = ["mount", "-o", "remount,bind,dev", "/dev/net"];
            assert!(Command::new("nsenter").arg(inside).args(remount).status().unwrap().success());
        }
        eventually("the tap is created", Duration::from_secs(10), || {
            pod.namespace()
                .output("ip", &["-d", "link", "show", "tap0"])
                .is_ok_and(|it| it.contains("user 4242"))
        });
        eventually("the status is updated", Duration::from_secs(5), || {
            !described().contains("KernelUnsupported")
        });
        std::fs::remove_file(machine.path("objects/all.yaml")).unwrap();
        eventually("all is removed", Duration::from_secs(10), || !pod.ip(&["-br", "link"]).contains("tap0"));
        knit(&["sandbox", "delete", "one"]).ok();
        agent.stop();
    }
}
