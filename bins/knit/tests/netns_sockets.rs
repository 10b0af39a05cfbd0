//! Sockets that a running agent hands to processes without privileges, on a real kernel. Needs root, python3 and setpriv.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

mod support {
    #[allow(dead_code, reason = "shared by several test programs")]
    pub mod agent;
}

use std::process::Output;
use std::time::Duration;

use knit_testbed::{Pod, eventually};
use support::agent::{Agent, Machine};

/// Asks for a socket as Knit's clients do, and uses it: prints what it is, or the refusal.
const CLIENT: &str = r#"
import os, socket, struct, sys
object, name = sys.argv[1], sys.argv[2]
knit = socket.socket(socket.AF_UNIX)
try:
    knit.connect("\0knit/sockets/" + object)
except ConnectionRefusedError:
    sys.exit("nobody offers")
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

/// Runs a program of a pod as nobody, without any capability and with no way to get one.
fn unprivileged(pod: &Pod, words: &[&str]) -> Output {
    let mut command = pod.namespace().command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    command.args(["--inh-caps=-all", "--bounding-set=-all", "/usr/bin/python3", "-c", CLIENT]);
    command.args(words).output().unwrap()
}

/// What a client says, good or bad.
fn asks(pod: &Pod, words: &[&str]) -> String {
    let output = unprivileged(pod, words);
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
    let mut request = support::agent::attach(id, &support::agent::netns(pod));
    let sandbox = request.sandbox.as_mut().unwrap();
    sandbox.labels = [("podnetwork.opdev.io/podsocket".to_owned(), label.to_owned())].into();
    agent.try_attach(request).unwrap();
}

fn until(pod: &Pod, words: &[&str], expected: &str) {
    let mut said = String::new();
    eventually(expected, Duration::from_secs(10), || {
        said = asks(pod, words);
        said.contains(expected)
    });
}

const PING: &str = "sockets: [{name: ping, type: raw, protocol: icmp}, {name: web, type: tcp, port: 80}, \
                    {name: dhcp, type: udp, port: 67, address: 0.0.0.0, interface: eth0}, \
                    {name: frames, type: packet, protocol: arp, interface: eth0}, \
                    {name: none, type: packet, protocol: all, interface: nosuch0}]";

#[test]
fn a_process_without_privileges_gets_the_sockets_of_its_own_pod_and_no_others() {
    let machine = Machine::new("agent-sockets");
    let (one, two) = (machine.testbed.pod("one"), machine.testbed.pod("two"));
    let agent = machine.agent();
    attach(&agent, "sb1", &one, "tools");
    attach(&agent, "sb2", &two, "others");
    assert_eq!(asks(&one, &["tools", "ping", "10.75.0.1"]), "nobody offers\n");
    write(&machine, "tools.yaml", &sockets("tools", PING));
    until(&one, &["tools", "ping", "10.75.0.1"], "ok ping 65534 0\necho from 10.75.0.1\n");
    assert_eq!(asks(&one, &["tools", "web"]), "ok web 65534 0\nport 80 listens\n");
    assert_eq!(asks(&one, &["tools", "dhcp"]), "ok dhcp 65534 0\nport 67 is bound\n");
    assert_eq!(asks(&one, &["tools", "frames"]), "ok frames 65534 0\nbound to eth0\n");

    // What cannot be is said in words.
    let said = asks(&one, &["tools", "nosuch"]);
    assert!(
        said.contains("refused: podsocket/tools in default has no socket `nosuch`, it has ping, web"),
        "{said}"
    );
    let said = asks(&one, &["tools", "none"]);
    assert!(said.contains("on nosuch0: the pod has no such interface"), "{said}");
    let said = asks(&one, &["tools", &"x".repeat(70)]);
    assert!(said.contains("at most 63 bytes"), "{said}");
    // A pod without the label sees no listener, and the node none either.
    assert_eq!(asks(&two, &["tools", "ping", "10.75.0.1"]), "nobody offers\n");

    // With the object the name goes; what was handed over before is the pod's.
    std::fs::remove_file(machine.path("objects").join("tools.yaml")).unwrap();
    until(&one, &["tools", "ping"], "nobody offers\n");
    agent.stop();
}

#[test]
fn a_restart_of_the_agent_offers_the_same_again_and_a_pod_that_goes_is_let_go() {
    let machine = Machine::new("agent-sockets-again");
    let one = machine.testbed.pod("one");
    write(&machine, "tools.yaml", &sockets("tools", PING));
    let agent = machine.agent();
    attach(&agent, "sb1", &one, "tools");
    until(&one, &["tools", "web"], "port 80 listens");
    agent.crash();
    assert_eq!(asks(&one, &["tools", "web"]), "nobody offers\n");
    let agent = machine.agent();
    until(&one, &["tools", "web"], "port 80 listens");
    agent.delete("sb1");
    until(&one, &["tools", "web"], "nobody offers\n");
    agent.stop();
}

#[test]
fn a_user_that_is_not_meant_is_refused_and_a_name_that_the_pod_took_is_told() {
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
    eventually("it is told", Duration::from_secs(10), || {
        machine.log().contains("a process of the pod listens at @knit/sockets/mine itself")
    });
    squatter.stop().unwrap();
    until(&one, &["mine", "web"], "refused: web is not for user 65534\n");
    agent.stop();
}
