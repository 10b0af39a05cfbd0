//! The server in both languages with a real agent: without privileges it leases an address to another pod. Needs root,
//! python3, setpriv, and `knit` in the directory of this program (`cargo build -p knit`).
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use knit_testbed::{Namespace, Testbed, eventually};
use tempfile::TempDir;

/// Also in the documentation of the kind.
const PYTHON: &str = include_str!("../responder.py");
const PAGE: &str = include_str!("../../../docs/kinds/podsocket.md");
const OBJECTS: &str = include_str!("../../standalone/podsocket.yaml");

/// A DHCP client: DISCOVER, then REQUEST.
const CLIENT: &str = r#"
import socket
dhcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
dhcp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
dhcp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lan0")
dhcp.bind(("0.0.0.0", 68))
dhcp.settimeout(5)
for kind, expected in ((1, 2), (3, 5)):
    head = b"\x01\x01\x06\x00knit" + bytes(4) + bytes(16) + b"\x02\x00\x00\x00\x00\x07" + bytes(10) + bytes(192)
    dhcp.sendto(head + b"\x63\x82\x53\x63\x37\x01\x03\x35\x01" + bytes([kind, 255]), ("255.255.255.255", 67))
    reply = dhcp.recv(1500)
    assert reply[4:8] == b"knit" and reply[28:34] == b"\x02\x00\x00\x00\x00\x07", reply
    assert reply[240:243] == b"\x35\x01" + bytes([expected]), reply
print("leased", socket.inet_ntoa(reply[16:20]), "by", socket.inet_ntoa(reply[20:24]))
"#;

struct Machine {
    host: Namespace,
    folder: TempDir,
    /// Dropped last.
    _testbed: Testbed,
}

/// A process that is killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_dhcp-responder")).with_file_name(name);
    assert!(program.exists(), "{} is missing: cargo build -p {name}", program.display());
    program
}

impl Machine {
    fn new(test: &str) -> Self {
        let testbed = Testbed::new(test);
        let host = testbed.host();
        Self { host, folder: TempDir::new().unwrap(), _testbed: testbed }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command(program("knit"));
        command.args(arguments).env("KNIT_STATE_DIR", self.path("state")).env("KNIT_METRICS_ADDR", "");
        command.env("KNIT_KNI_SOCKET", self.path("kni.sock")).env("KNIT_HEALTH_ADDR", "");
        command.env("KNIT_NETNS_DIR", self.path("netns")).stdin(Stdio::null());
        command
    }

    /// The output of a `knit` command.
    fn try_knit(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(arguments).output().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    #[track_caller]
    fn knit(&self, arguments: &[&str]) -> String {
        self.try_knit(arguments).unwrap_or_else(|text| panic!("{arguments:?}: {text}"))
    }

    fn start(&self, log: &str, arguments: &[&str]) -> Process {
        let file = std::fs::File::create(self.path(log)).unwrap();
        let mut command = self.command(arguments);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        Process(command.spawn().unwrap())
    }

    fn log(&self, log: &str) -> String {
        std::fs::read_to_string(self.path(log)).unwrap()
    }
}

fn leases_an_address(test: &str, server: &[&str]) {
    let machine = Machine::new(test);
    let _agent = machine.start("agent.log", &["agent"]);
    machine.knit(&["ready", "--wait", "30"]);
    let lan = "podnetwork.opdev.io/veth=lan";
    machine.knit(&["sandbox", "add", "server", "-l", lan, "-l", "podnetwork.opdev.io/podsocket=dhcp"]);
    machine.knit(&["sandbox", "add", "client", "-l", lan]);
    let objects = machine.path("objects.yaml");
    std::fs::write(&objects, OBJECTS).unwrap();
    machine.knit(&["apply", "-f", objects.to_str().unwrap()]);
    eventually("the sockets are offered", Duration::from_secs(10), || {
        machine.try_knit(&["get", "podsocket", "dhcp"]).is_ok_and(|text| text.contains("configured"))
    });
    let nobody =
        ["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--bounding-set=-all"];
    let command = [&["sandbox", "exec", "server", "--", "setpriv"][..], &nobody, server].concat();
    let arguments = ["dhcp", "server", "192.168.106.2", "192.168.106.9"];
    let responder = machine.start("dhcp.log", &[&command[..], &arguments].concat());
    eventually("it listens", Duration::from_secs(10), || machine.log("dhcp.log").contains("listening on"));
    let output = machine.knit(&["sandbox", "exec", "client", "--", "/usr/bin/python3", "-c", CLIENT]);
    assert_eq!(output, "leased 192.168.106.9 by 192.168.106.2\n", "{}", machine.log("dhcp.log"));
    // The process owns the port until it exits.
    let again = [&command[..], &arguments].concat();
    let output = machine.try_knit(&again).unwrap_err();
    assert!(output.contains("address in use by an earlier client"), "{output}");
    drop(responder);
    for name in ["server", "client"] {
        machine.knit(&["sandbox", "delete", name]);
    }
}

#[test]
fn a_server_in_rust_leases_an_address() {
    let program = program("dhcp-responder");
    leases_an_address("dhcp-rust", &[program.to_str().unwrap()]);
}

#[test]
fn a_server_in_python_leases_an_address_and_is_in_the_page() {
    assert!(PAGE.contains(PYTHON), "docs/kinds/podsocket.md does not have responder.py as it is");
    leases_an_address("dhcp-python", &["/usr/bin/python3", "-c", PYTHON]);
}
