//! A real NIC in a pod that is killed: the kernel moves it back to the host, and Knit restores its settings.
//! A program of its own, because it changes the NICs of the guest.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

#[path = "support/cable.rs"]
mod cable;

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

const OBJECTS: &str = "
apiVersion: podnetwork.opdev.io/v1alpha1
kind: Uplink
metadata: { name: wire }
spec: { link: eth0, namespaces: [default], kinds: [host-device] }
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: HostDevice
metadata: { name: nic }
spec:
  interfaceName: wire0
  parent: wire
  addresses: [10.90.0.2/24]
  mtu: 1300
  hardwareAddr: '02:00:00:00:00:99'
  promisc: true
";

struct Guest {
    folder: tempfile::TempDir,
}

impl Guest {
    fn run(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(program);
        command.args(arguments).env("KNIT_STATE_DIR", self.folder.path().join("state"));
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let (is_good, text) = self.run(words[0], &words[1..]);
        assert!(is_good, "{line}: {text}");
        text
    }

    /// Adds a sandbox and moves the NIC to it. Returns the pid of the holder.
    fn lend(&self) -> String {
        let file = self.folder.path().join("objects.yaml");
        std::fs::write(&file, OBJECTS).unwrap();
        self.ok("knit sandbox add web -l podnetwork.opdev.io/hostdevice=nic");
        self.ok(&format!("knit apply -f {}", file.display()));
        assert_eq!(cable::nic(), None);
        self.ok("knit sandbox exec web -- ping -c 1 -W 5 10.90.0.9");
        let list: Value = serde_json::from_str(&self.ok("knit sandbox list -o json")).unwrap();
        list[0]["pid"].to_string()
    }

    /// Waits until the kernel has moved the marked link back, asynchronously after the deletion of the netns.
    fn wait_for_mark(&self) -> String {
        let limit = Instant::now() + Duration::from_secs(30);
        loop {
            let links = self.ok("ip -br link");
            let all = self.ok("ip link");
            if all.contains("altname knit-") {
                return links;
            }
            assert!(Instant::now() < limit, "{all}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_real_nic_is_restored_when_its_sandbox_terminates_first() {
    let before = cable::lay();
    let guest = Guest { folder: tempfile::tempdir().unwrap() };

    // Regular: moved back before the sandbox is deleted.
    guest.lend();
    guest.ok("knit sandbox delete web");
    assert_eq!(cable::nic().as_ref(), Some(&before));

    // Killed: the kernel moves the NIC back under its name in the pod. Knit detects that the sandbox is gone.
    let holder = guest.lend();
    guest.ok(&format!("kill -9 {holder}"));
    assert!(guest.wait_for_mark().lines().any(|line| line.starts_with("wire0 ")));
    let printed = guest.ok("knit status");
    assert!(printed.contains("its namespace is gone"), "{printed}");
    assert_eq!(cable::nic().as_ref(), Some(&before), "{}", guest.ok("ip -d link"));

    // Killed while the name is in use on the host, so that the kernel chooses one; and the state of Knit is lost.
    let holder = guest.lend();
    guest.ok("ip link add wire0 type bridge");
    guest.ok(&format!("kill -9 {holder}"));
    guest.wait_for_mark();
    std::fs::remove_dir_all(guest.folder.path().join("state")).unwrap();
    let printed = guest
        .ok(&format!("knit --take-over apply -f {}", guest.folder.path().join("objects.yaml").display()));
    assert!(printed.contains("removed stray links"), "{printed}");
    assert_eq!(cable::nic().as_ref(), Some(&before), "{}", guest.ok("ip -d link"));
    guest.ok("ip link del wire0");
    let (_, text) = guest.run("knit", &["status"]);
    assert!(!text.contains("nic0") && !text.contains("drift"), "{text}");
}
