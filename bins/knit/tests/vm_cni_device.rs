//! A real PCI device that a container runtime names in CNI: its NIC becomes the container's interface, and comes home also
//! when the container's namespace ends before anyone says so. In the guest, whose NICs are on a PCI bus.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod cni;
    pub mod wire;
}

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use knit_testbed::eventually;
use serde_json::json;
use support::cni::Call;
use support::wire::{self, FAR, ok};

/// An emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);
const UPLINK: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Uplink
metadata: { name: wire }
spec: { link: eth0, namespaces: [shop], kinds: [host-device] }
";

/// An agent of the guest itself. It ends with this.
struct Agent(Child);

impl Agent {
    fn start(folder: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let mut command = Command::new("knit");
        command.args(["agent", "--census-seconds", "1"]);
        for (flag, name) in [
            ("--state-dir", "state"),
            ("--kni-socket", "kni.sock"),
            ("--netns-dir", "netns"),
            ("--standalone", "objects"),
        ] {
            command.arg(flag).arg(folder.join(name));
        }
        command.envs([("KNIT_METRICS_ADDR", ""), ("KNIT_HEALTH_ADDR", "")]);
        let agent = Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let status = Call::on(folder.join("cni.sock"), "STATUS", "", "");
        eventually("the node is ready", PATIENCE, || status.outcome().success);
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pci_device_becomes_an_interface_and_comes_home() {
    let before = wire::lay();
    // The NIC's parent is the virtio device, and that one's the PCI device.
    let virtio = fs::canonicalize("/sys/class/net/eth0/device").unwrap();
    let id = virtio.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(Path::new("/sys/bus/pci/devices").join(&id).exists(), "{id}");
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("objects")).unwrap();
    fs::write(folder.path().join("objects/uplink.yaml"), UPLINK).unwrap();
    let agent = Agent::start(folder.path());
    ok("ip netns add pod");
    let mut add = Call::on(folder.path().join("cni.sock"), "ADD", "c1", "/run/netns/pod")
        .with("runtimeConfig", json!({ "deviceID": id, "ips": ["10.90.0.2/24"] }));
    add.interface = "wire0".to_owned();
    add.args = "K8S_POD_NAMESPACE=other;K8S_POD_NAME=web".to_owned();
    let (code, message) = add.failed();
    assert!(
        code == 7 && message.contains("NIC eth0 is not to be lent to pods of namespace other"),
        "{message}"
    );
    assert_eq!(wire::nic().as_ref(), Some(&before));

    add.args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web".to_owned();
    let result = add.done();
    let made = &result["interfaces"][0];
    assert_eq!((&made["name"], &made["pciID"]), (&json!("wire0"), &json!(id)), "{result}");
    assert_eq!(wire::nic(), None);
    ok(&format!("ip netns exec pod ping -c 1 -W 5 {FAR}"));
    // Another agent does not see the NIC on the host, and knows whose it is.
    drop(agent);
    let agent = Agent::start(folder.path());
    Call { command: "CHECK", ..add.clone().with("prevResult", result) }.done();
    let del = || Call { command: "DEL", began: knit_cni::since_boot(), ..add.clone() };
    del().done();
    assert_eq!(wire::nic().as_ref(), Some(&before), "{}", ok("ip -d link"));

    // The namespace ends first: the kernel brings the NIC home under the name that it had inside.
    Call { began: knit_cni::since_boot(), ..add.clone() }.done();
    ok("ip netns del pod");
    eventually("the NIC is as it was", PATIENCE, || wire::nic().as_ref() == Some(&before));
    del().done();
    drop(agent);
    assert_eq!(wire::nic().as_ref(), Some(&before), "{}", ok("ip -d link"));
}
