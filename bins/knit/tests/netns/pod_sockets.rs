//! Sockets that the agent passes to unprivileged processes. Needs python3 and setpriv.

use std::process::Output;
use std::time::Duration;

use crate::support::agent::{Agent, Machine};
use knit_testbed::{Pod, eventually};

/// Requests a socket like a client of Knit, uses it, and prints what it is or the error.
const CLIENT: &str = r#"
import os, socket, struct, sys
object, name = sys.argv[1], sys.argv[2]
knit = socket.socket(socket.AF_UNIX)
try:
    knit.connect("\0knit/sockets/" + object)
except ConnectionRefusedError:
    sys.exit("no sockets are offered")
knit.sendall(name.encode() + b"\n")
line, descriptors, _, _ = socket.recv_fds(knit, 1024, 1)
if not descriptors:
    sys.exit(line.decode().strip())
mine = socket.socket(fileno=descriptors[0])
mine.settimeout(5)
capabilities = [line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1]
print(line.decode().strip(), os.getuid(), int(capabilities, 16))
if mine.type == socket.SOCK_RAW and mine.family == socket.AF_INET:
    mine.sendto(struct.pack("!BBHHH", 8, 0, 0xf7ff - 7, 0, 7), (sys.argv[3], 0))
    while True:
        packet, (address, _) = mine.recvfrom(1500)
        if packet[20] == 0:
            print("echo from", address)
            break
elif mine.family == socket.AF_PACKET:
    print("bound to", mine.getsockname()[0])
else:
    listens = mine.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    print("port", mine.getsockname()[1], "listens" if listens else "is bound")
"#;

/// Runs a program in a pod as the user nobody, without capabilities and with no_new_privs.
fn unprivileged(pod: &Pod, arguments: &[&str]) -> Output {
    let mut command = pod.namespace().command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    command.args(["--inh-caps=-all", "--bounding-set=-all", "/usr/bin/python3", "-c", CLIENT]);
    command.args(arguments).output().unwrap()
}

/// The output of a client.
fn request_socket(pod: &Pod, arguments: &[&str]) -> String {
    let output = unprivileged(pod, arguments);
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn sockets(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: podnetwork.opdev.io/v1alpha1\nkind: PodSocket\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn write(machine: &Machine, name: &str, text: &str) {
    std::fs::create_dir_all(machine.path("objects")).unwrap();
    std::fs::write(machine.path("objects").join(name), text).unwrap();
}

/// Attaches a pod with a label.
fn attach(agent: &Agent<'_>, id: &str, pod: &Pod, label: &str) {
    let mut request = crate::support::agent::attach(id, &crate::support::agent::netns(pod));
    let sandbox = request.sandbox.as_mut().unwrap();
    sandbox.labels = [("podnetwork.opdev.io/podsocket".to_owned(), label.to_owned())].into();
    agent.try_attach(request).unwrap();
}

fn wait_for_output(pod: &Pod, arguments: &[&str], expected: &str) {
    let mut printed = String::new();
    eventually(expected, Duration::from_secs(10), || {
        printed = request_socket(pod, arguments);
        printed.contains(expected)
    });
}

const PING: &str = "sockets: [{name: ping, type: raw, protocol: icmp}, {name: web, type: tcp, port: 80}, \
                    {name: dhcp, type: udp, port: 67, address: 0.0.0.0, interface: eth0}, \
                    {name: frames, type: packet, protocol: arp, interface: eth0}, \
                    {name: none, type: packet, protocol: all, interface: nosuch0}]";

#[test]
fn an_unprivileged_process_gets_only_the_sockets_of_its_pod() {
    let machine = Machine::new("agent-sockets");
    let (one, two) = (machine.testbed.pod("one"), machine.testbed.pod("two"));
    let agent = machine.agent();
    attach(&agent, "sb1", &one, "tools");
    attach(&agent, "sb2", &two, "others");
    assert_eq!(request_socket(&one, &["tools", "ping", "10.75.0.1"]), "no sockets are offered\n");
    write(&machine, "tools.yaml", &sockets("tools", PING));
    wait_for_output(&one, &["tools", "ping", "10.75.0.1"], "ok ping 65534 0\necho from 10.75.0.1\n");
    assert_eq!(request_socket(&one, &["tools", "web"]), "ok web 65534 0\nport 80 listens\n");
    assert_eq!(request_socket(&one, &["tools", "dhcp"]), "ok dhcp 65534 0\nport 67 is bound\n");
    assert_eq!(request_socket(&one, &["tools", "frames"]), "ok frames 65534 0\nbound to eth0\n");

    // Invalid sockets are reported.
    let printed = request_socket(&one, &["tools", "nosuch"]);
    assert!(
        printed.contains("refused: podsocket/tools in default has no socket `nosuch`, only ping, web"),
        "{printed}"
    );
    let printed = request_socket(&one, &["tools", "none"]);
    assert!(printed.contains("on nosuch0: no such interface in the pod"), "{printed}");
    let printed = request_socket(&one, &["tools", &"x".repeat(70)]);
    assert!(printed.contains("at most 63 bytes"), "{printed}");
    // Neither a pod without the label nor the node has a listener.
    assert_eq!(request_socket(&two, &["tools", "ping", "10.75.0.1"]), "no sockets are offered\n");

    // Deleting the object removes the name; sockets that were passed before stay open.
    std::fs::remove_file(machine.path("objects").join("tools.yaml")).unwrap();
    wait_for_output(&one, &["tools", "ping"], "no sockets are offered\n");
    agent.stop();
}

#[test]
fn an_agent_restart_restores_sockets_and_a_deleted_pod_releases_them() {
    let machine = Machine::new("agent-sockets-again");
    let one = machine.testbed.pod("one");
    write(&machine, "tools.yaml", &sockets("tools", PING));
    let agent = machine.agent();
    attach(&agent, "sb1", &one, "tools");
    wait_for_output(&one, &["tools", "web"], "port 80 listens");
    agent.crash();
    assert_eq!(request_socket(&one, &["tools", "web"]), "no sockets are offered\n");
    let agent = machine.agent();
    wait_for_output(&one, &["tools", "web"], "port 80 listens");
    agent.delete("sb1");
    wait_for_output(&one, &["tools", "web"], "no sockets are offered\n");
    agent.stop();
}

#[test]
fn other_users_are_rejected_and_a_name_conflict_is_reported() {
    let machine = Machine::new("agent-sockets-users");
    let one = machine.testbed.pod("one");
    let agent = machine.agent_with(&["--resync-seconds", "1"], &[]);
    attach(&agent, "sb1", &one, "mine");
    let squat = "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind('\\0knit/sockets/mine')\ntime.sleep(60)";
    let squatter = one.namespace().spawn(one.namespace().command("/usr/bin/python3").args(["-c", squat]));
    eventually("the name is taken", Duration::from_secs(10), || {
        std::fs::read_to_string(format!("/proc/{}/net/unix", one.pid()))
            .unwrap()
            .contains("@knit/sockets/mine")
    });
    write(&machine, "mine.yaml", &sockets("mine", "uid: 4711, sockets: [{name: web, type: tcp, port: 80}]"));
    eventually("it is notified", Duration::from_secs(10), || {
        machine.log().contains("a process of the pod already listens on @knit/sockets/mine")
    });
    squatter.stop().unwrap();
    wait_for_output(&one, &["mine", "web"], "refused: user 65534 may not open web\n");
    agent.stop();
}
