//! The guest's two NICs, each at one end of a cable: `eth0` is the node's, `eth1` is in a namespace of its own.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The address at the other end of the cable.
pub const FAR: &str = "10.90.0.9";

/// Runs a program, and says whether it ended well and what it printed.
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

/// What `ip` says of the NIC at home, but for what comes and goes; `None` if it is not there.
pub fn nic() -> Option<String> {
    let (is_there, text) = run("ip", &["-j", "-d", "link", "show", "dev", "eth0"]);
    let all: Value = serde_json::from_str(&text).ok().filter(|_| is_there)?;
    let fields =
        ["ifname", "address", "mtu", "txqlen", "group", "ifalias", "altnames", "promiscuity", "flags"];
    let told: Vec<String> = fields.iter().map(|field| format!("{field} {}", all[0][field])).collect();
    // A carrier is told a moment after the link went up.
    Some(told.join("\n").replace("\"NO-CARRIER\",", ""))
}

/// Puts the other NIC at the far end, gives the node's own values that nobody guesses, and says how it is.
pub fn lay() -> String {
    // It takes the machine's own NICs: never those of the machine that runs the tests.
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
