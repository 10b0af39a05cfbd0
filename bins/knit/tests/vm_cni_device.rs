//! A real PCI device in a CNI call: its NIC is moved to the container and back, also if the netns of the container is
//! deleted first. A program of its own, because it changes the NICs of the guest.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[path = "../netns/support/agent.rs"]
    #[allow(dead_code, reason = "shared with other test programs")]
    pub mod agent;
    #[allow(dead_code, reason = "shared with other test programs")]
    pub mod cable;
    #[path = "../netns/support/cni.rs"]
    #[allow(dead_code, reason = "shared with other test programs")]
    pub mod cni;
}

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use knit_testbed::eventually;
use serde_json::json;
use support::cable::{self, FAR, ok};
use support::cni::CniCall;

/// Long, because the guest is emulated.
const TIMEOUT: Duration = Duration::from_secs(60);
const UPLINK: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Uplink
metadata: { name: wire }
spec: { link: eth0, namespaces: [shop], kinds: [host-device] }
";

/// The agent of the guest. Dropping it kills it.
struct Agent(Child);

impl Agent {
    fn start(folder: &Path) -> Self {
        let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let mut command = Command::new("knit");
        command.args(["agent", "--sandbox-check-seconds", "1"]);
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
        // While no agent runs, STATUS repeats the last answer.
        let socket = folder.join("cni.sock");
        eventually("the agent listens", TIMEOUT, || UnixStream::connect(&socket).is_ok());
        let status = CniCall::on(socket, "STATUS", "", "");
        eventually("the node is ready", TIMEOUT, || status.outcome().success);
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
fn a_pci_device_is_moved_to_the_container_and_back() {
    let before = cable::lay();
    // The parent of the NIC is the virtio device, and its parent is the PCI device.
    let virtio = fs::canonicalize("/sys/class/net/eth0/device").unwrap();
    let id = virtio.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(Path::new("/sys/bus/pci/devices").join(&id).exists(), "{id}");
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("objects")).unwrap();
    fs::write(folder.path().join("objects/uplink.yaml"), UPLINK).unwrap();
    let agent = Agent::start(folder.path());
    ok("ip netns add pod");
    let mut add = CniCall::on(folder.path().join("cni.sock"), "ADD", "c1", "/run/netns/pod")
        .with("runtimeConfig", json!({ "deviceID": id, "ips": ["10.90.0.2/24"] }));
    add.interface = "wire0".to_owned();
    add.args = "K8S_POD_NAMESPACE=other;K8S_POD_NAME=web".to_owned();
    let (code, message) = add.failed();
    assert!(
        code == 7 && message.contains("NIC eth0 must not be moved into pods of namespace other"),
        "{message}"
    );
    assert_eq!(cable::nic().as_ref(), Some(&before));

    add.args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web".to_owned();
    let result = add.succeeded();
    let made = &result["interfaces"][0];
    assert_eq!((&made["name"], &made["pciID"]), (&json!("wire0"), &json!(id)), "{result}");
    assert_eq!(cable::nic(), None);
    ok(&format!("ip netns exec pod ping -c 1 -W 5 {FAR}"));
    // After a restart the agent knows which container has the NIC.
    drop(agent);
    let agent = Agent::start(folder.path());
    CniCall { command: "CHECK", ..add.clone().with("prevResult", result) }.succeeded();
    let del = || CniCall { command: "DEL", started_at: knit_cni::boot_time_nanos(), ..add.clone() };
    del().succeeded();
    assert_eq!(cable::nic().as_ref(), Some(&before), "{}", ok("ip -d link"));

    // The netns is deleted first: the kernel moves the NIC back under its name in the container.
    CniCall { started_at: knit_cni::boot_time_nanos(), ..add.clone() }.succeeded();
    ok("ip netns del pod");
    eventually("the NIC is as it was", TIMEOUT, || cable::nic().as_ref() == Some(&before));
    del().succeeded();
    drop(agent);
    assert_eq!(cable::nic().as_ref(), Some(&before), "{}", ok("ip -d link"));
}
