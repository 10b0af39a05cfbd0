//! The two NICs of the guest, connected by a cable: `eth0` of the node, and `eth1` in another netns.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The address at the other end of the cable.
pub const FAR: &str = "10.90.0.9";

/// Runs a program. Returns whether it succeeded, and its output.
pub fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[track_caller]
pub fn ok(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let (is_good, text) = run(words[0], &words[1..]);
    assert!(is_good, "{line}: {text}");
    text
}

/// The settings of the NIC on the host; `None` if it is not there.
pub fn nic() -> Option<String> {
    let (is_there, text) = run("ip", &["-j", "-d", "link", "show", "dev", "eth0"]);
    let all: Value = serde_json::from_str(&text).ok().filter(|_| is_there)?;
    let fields =
        ["ifname", "address", "mtu", "txqlen", "group", "ifalias", "altnames", "promiscuity", "flags"];
    let lines: Vec<String> = fields.iter().map(|field| format!("{field} {}", all[0][field])).collect();
    // The carrier is reported with a delay.
    Some(lines.join("\n").replace("\"NO-CARRIER\",", ""))
}

/// Sets up the other NIC at the far end, gives the NIC of the node unusual settings, and returns them.
pub fn lay() -> String {
    // Changes real NICs: only in the guest.
    assert!(Path::new("/knit/command").exists(), "run this by `cargo xtask test vm`");
    ok("ip netns add far");
    ok("ip link set eth1 netns far");
    ok(&format!("ip -n far address add {FAR}/24 dev eth1"));
    ok("ip -n far link set eth1 up");
    ok("ip link set eth0 mtu 1400 txqueuelen 77 group 5 alias trunk");
    ok("ip link set eth0 up");
    let before = nic().unwrap();
    assert!(before.contains("52:54:00:00:00:00"), "{before}");
    before
}
