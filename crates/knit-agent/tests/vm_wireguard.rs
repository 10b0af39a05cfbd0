//! WireGuard objects of a whole node, on a kernel that has it: keys that are made, shown, exchanged, and gone.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use knit_agent::Standalone;
use knit_crds::Object;
use knit_model::PrivateKey;
use knit_testbed::{Pod, Testbed, eventually};

const SECRET: &str = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
/// A tunnel begins a handshake once in five seconds.
const HANDSHAKES: Duration = Duration::from_secs(30);
const REDIRECTS: &str = "net/ipv4/conf/all/send_redirects";

fn objects(yaml: &str) -> Vec<Object> {
    Object::parse_all(yaml).unwrap()
}

fn tunnel(pod: &str, more: &str, address: &str, peers: &str) -> String {
    format!(
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: WireGuard\nmetadata: {{name: {pod}}}\n\
         spec: {{interfaceName: wg0, {more} addresses: [{address}], peers: [{peers}],\n  \
         selector: {{matchLabels: {{pod: {pod}}}}}}}\n"
    )
}

fn peer(key: &str, range: &str, endpoint: &str) -> String {
    format!("{{publicKey: {key}, allowedIPs: [{range}], endpoint: '{endpoint}'}}")
}

fn add_pod(node: &mut Standalone, pod: &Pod) {
    let labels = BTreeMap::from([("pod".to_owned(), pod.label().to_owned())]);
    node.add_sandbox("default", pod.label(), labels, pod.pid()).unwrap();
}

/// An object's line of the status, and its problem if it has one.
fn status(node: &Standalone, kind: &str, name: &str) -> (String, String) {
    let key = node.state().objects.keys().find(|key| key.kind == kind && key.name == name).unwrap();
    let value = node.object(key).unwrap().to_value();
    let line = &value["status"]["podConfigurations"][0]["configList"][0];
    let message = &value["status"]["conditions"][0]["message"];
    (line.as_str().unwrap_or_default().to_owned(), message.as_str().unwrap_or_default().to_owned())
}

fn public_key(node: &Standalone, name: &str) -> String {
    let (line, problem) = status(node, "WireGuard", name);
    let (_, rest) = line.split_once("publicKey:").unwrap_or_else(|| panic!("{line} {problem}"));
    rest.split([' ', '}']).next().unwrap().to_owned()
}

/// Everything below a folder but the folders of keys.
fn written(folder: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name();
        if entry.path().is_dir() && name != "keys" && name != "secrets" {
            all.extend(written(&entry.path()));
        } else if entry.path().is_file() {
            all.extend(fs::read(entry.path()).unwrap());
        }
    }
    all
}

#[test]
fn keys_are_made_on_the_node_or_taken_from_a_secret() {
    let testbed = Testbed::new("wgnode");
    let (a, b) = (testbed.pod("a"), testbed.pod("b"));
    // Something to send packets over, made by others.
    a.ip(&["link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.name()]);
    for (pod, address) in [(&a, "10.50.0.2/24"), (&b, "10.50.0.3/24")] {
        pod.ip(&["addr", "add", address, "dev", "eth0"]);
        pod.ip(&["link", "set", "eth0", "up"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut node = Standalone::open(folder.path()).unwrap();
    add_pod(&mut node, &a);
    add_pod(&mut node, &b);

    let from_secret = "privateKeySecret: {name: tunnel, key: private},";
    node.apply(objects(&tunnel("a", "", "10.56.0.1/24", "")), "test").unwrap();
    node.apply(objects(&tunnel("b", from_secret, "10.56.0.2/24", "")), "test").unwrap();
    let (_, problem) = status(&node, "WireGuard", "b");
    assert!(
        problem.contains("interface wg0: key private of Secret tunnel in namespace default is not there"),
        "{problem}"
    );
    assert!(!b.ip(&["-br", "link"]).contains("wg0"));

    let secret = folder.path().join("secrets/default/tunnel");
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("private"), SECRET).unwrap();
    node.repair().unwrap();
    let (key_a, key_b) = (public_key(&node, "a"), public_key(&node, "b"));
    assert_eq!(key_b, PrivateKey::parse(SECRET).unwrap().public().to_string());

    let to_b = peer(&key_b, "10.56.0.2/32", "10.50.0.3:51820");
    let to_a = peer(&key_a, "10.56.0.1/32", "10.50.0.2:51820");
    node.apply(objects(&tunnel("a", "", "10.56.0.1/24", &to_b)), "test").unwrap();
    node.apply(objects(&tunnel("b", from_secret, "10.56.0.2/24", &to_a)), "test").unwrap();
    eventually("the tunnel carries packets", HANDSHAKES, || a.ping("10.56.0.2").is_ok());
    assert_eq!(public_key(&node, "a"), key_a, "a key is made once");

    // The key that was made is where only root reads, and neither key is anywhere else.
    let made: Vec<_> =
        fs::read_dir(folder.path().join("keys")).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(made.len(), 1);
    assert_eq!(made[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(made[0].path()).unwrap();
    assert_eq!(PrivateKey::parse(&text).unwrap().public().to_string(), key_a);
    let all = String::from_utf8_lossy(&written(folder.path())).into_owned();
    assert!(all.contains(&key_a) && all.contains(&key_b));
    assert!(!all.contains(text.trim()) && !all.contains(SECRET));

    // A new process goes on with the same keys, and has nothing to do.
    drop(node);
    let mut node = Standalone::open(folder.path()).unwrap();
    assert!(node.repair().unwrap().is_empty());
    eventually("the tunnel carries packets", HANDSHAKES, || a.ping("10.56.0.2").is_ok());

    let keys: Vec<_> = node.state().objects.keys().cloned().collect();
    assert_eq!(a.sysctl(REDIRECTS).unwrap(), "0");
    node.delete(&keys, "test").unwrap();
    assert!(!a.ip(&["-br", "link"]).contains("wg0"));
    assert_eq!(a.sysctl(REDIRECTS).unwrap(), "1");
    assert_eq!(fs::read_dir(folder.path().join("keys")).unwrap().count(), 0);
}
