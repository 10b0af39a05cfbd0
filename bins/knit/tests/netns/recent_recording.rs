//! The recording of the last minutes: in support bundles, replayable, without secrets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::agent::{Machine, attach, folder, netns};
use knit_testbed::eventually;

const BRIDGE: &str = "apiVersion: podnetwork.opdev.io/v1alpha1
kind: Bridge
metadata: { name: extra }
spec: { name: extra0, cidr: 10.99.0.0/24 }
";

/// The private key in a Secret.
const SECRET_KEY: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";

/// Two tunnels of the pod: one with a key that Knit generates, one with a key from a Secret.
const TUNNELS: &str = "apiVersion: podnetwork.opdev.io/v1alpha1
kind: WireGuard
metadata: { name: generated }
spec:
  selector: { matchLabels: { app: web } }
  interfaceName: wg0
---
apiVersion: podnetwork.opdev.io/v1alpha1
kind: WireGuard
metadata: { name: secret }
spec:
  selector: { matchLabels: { app: web } }
  interfaceName: wg1
  privateKeySecret: { name: tunnel, key: private }
";

/// The output of `knit` with these arguments, and its exit code.
fn knit(machine: &Machine, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = machine.host.command(env!("CARGO_BIN_EXE_knit"));
    command.args(arguments).env("KNIT_KNI_SOCKET", machine.path("kni.sock"));
    let output = command.env("KNIT_STATE_DIR", machine.path("state")).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Collects a bundle. Returns it, and the directory that it is unpacked to.
fn bundle(machine: &Machine, name: &str) -> (String, PathBuf) {
    let file = machine.path(&format!("{name}.tar.gz")).display().to_string();
    let (code, printed) = knit(machine, &["support-bundle", &file]);
    assert_eq!(code, Some(0), "{printed}");
    let unpacked = folder(&machine.path(name));
    machine.host.output("tar", &["-xzf", &file, "-C", unpacked.to_str().unwrap()]).unwrap();
    (file, unpacked)
}

/// Whether a file below the directory contains the text.
fn contains(machine: &Machine, directory: &Path, text: &str) -> bool {
    machine.host.output("grep", &["-rF", text, directory.to_str().unwrap()]).is_ok()
}

#[test]
fn the_last_minutes_in_a_support_bundle_replay_to_the_same_decisions() {
    let machine = Machine::new("agent-recent");
    let pod = machine.testbed.pod("one");
    let agent = machine.agent();
    let mut request = attach("s1", &netns(&pod));
    request.sandbox.as_mut().unwrap().annotations = [("note".to_owned(), "hush-hush".to_owned())].into();
    agent.try_attach(request).unwrap();
    std::fs::write(machine.path("objects").join("bridge.yaml"), BRIDGE).unwrap();
    let has = || machine.host.output("ip", &["link", "show", "dev", "extra0"]).is_ok();
    eventually("the bridge is there", Duration::from_secs(10), has);
    agent.crash();
    let current = machine.path("state").join("recording/current.jsonl");
    assert!(std::fs::read_to_string(&current).unwrap().contains("hush-hush"), "what was sent is recorded");
    // The agent was killed while it wrote.
    let text = std::fs::read(&current).unwrap();
    std::fs::write(&current, &text[..text.len() - 20]).unwrap();
    let agent = machine.agent();
    agent.detach("s1", &[]);
    agent.attach("s2", &pod);
    let (file, unpacked) = bundle(&machine, "bundle");
    let segment = unpacked.join("recording/current.jsonl").display().to_string();
    for recording in [&file, &segment] {
        let (code, printed) = knit(&machine, &["replay", recording]);
        assert_eq!(code, Some(0), "{printed}");
        for expected in [
            "2 attachRequested",
            "1 detachRequested",
            "2 restarted",
            "reached its limit: 1",
            " 0 inputs with different decisions",
        ] {
            assert!(printed.contains(expected), "{expected}: {printed}");
        }
    }
    assert!(!contains(&machine, &unpacked, "hush-hush"), "annotations are redacted");
    assert!(contains(&machine, &unpacked.join("recording"), "\"note\":\"(redacted)\""));
    // A decision that differs is found in a bundle, too.
    let text = std::fs::read_to_string(&segment).unwrap();
    std::fs::write(&segment, text.replace("10.99.0.0/24", "10.97.0.0/24")).unwrap();
    let (code, printed) = knit(&machine, &["replay", &segment]);
    assert_eq!(code, Some(2), "{printed}");
    assert_eq!(agent.stop(), Some(0));
    machine.agent_with(&["--recent-recording-megabytes", "0"], &[]);
    assert!(!current.exists(), "nothing is recorded, and nothing remains");
    let (file, _) = bundle(&machine, "without");
    let (code, printed) = knit(&machine, &["replay", &file]);
    assert!(code == Some(1) && printed.contains("not a support bundle with a recording"), "{printed}");
}

#[test]
fn a_support_bundle_has_no_private_keys() {
    let machine = Machine::new("agent-keys");
    let pod = machine.testbed.pod("one");
    let secret = machine.path("state").join("secrets/default/tunnel");
    std::fs::create_dir_all(&secret).unwrap();
    std::fs::write(secret.join("private"), SECRET_KEY).unwrap();
    let agent = machine.agent();
    let mut request = attach("s1", &netns(&pod));
    let sandbox = request.sandbox.as_mut().unwrap();
    sandbox.labels = [("app".to_owned(), "web".to_owned())].into();
    sandbox.namespace = "default".to_owned();
    agent.try_attach(request).unwrap();
    std::fs::write(machine.path("objects").join("tunnels.yaml"), TUNNELS).unwrap();
    // The key is generated before the link is created. Without kernel support for WireGuard it is removed again.
    let mut generated = None;
    eventually("a key is generated", Duration::from_secs(20), || {
        let keys = std::fs::read_dir(machine.path("state").join("keys")).into_iter().flatten().flatten();
        generated =
            keys.filter_map(|key| std::fs::read_to_string(key.path()).ok()).find(|key| key.len() >= 44);
        generated.is_some()
    });
    let generated = generated.unwrap().trim().to_owned();
    let recording = machine.path("state").join("recording");
    // The public key of the Secret's private key: the engine decided with it.
    let public = knit_model::PrivateKey::parse(SECRET_KEY).unwrap().public().to_string();
    eventually("the key of the Secret is in use", Duration::from_secs(20), || {
        contains(&machine, &recording, &public)
    });
    let (file, unpacked) = bundle(&machine, "bundle");
    assert!(contains(&machine, &unpacked.join("recording"), &public));
    for key in [SECRET_KEY, &generated] {
        assert!(!contains(&machine, &unpacked, key), "a private key is in the bundle");
    }
    let (code, printed) = knit(&machine, &["replay", &file]);
    assert_eq!(code, Some(0), "{printed}");
}
