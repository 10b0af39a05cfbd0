//! Testbeds on the real kernel: what they make works, and what they make goes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use knit_testbed::{Dump, Error, Namespace, Testbed, assert_same, eventually};

/// Two namespaces, connected, with addresses of both families.
fn pair(testbed: &Testbed) -> (Namespace, Namespace) {
    let (a, b) = (testbed.namespace("a"), testbed.namespace("b"));
    testbed.connect(&a, "eth0", &b, "eth0");
    for (namespace, number) in [(&a, 1), (&b, 2)] {
        namespace.address("eth0", &format!("10.0.0.{number}/24"));
        namespace.address("eth0", &format!("fd00::{number}/64"));
    }
    (a, b)
}

/// The message of a panic.
fn message(panic: Box<dyn std::any::Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => (*panic.downcast::<&str>().unwrap()).to_owned(),
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Runs one test of this file once more, as a child, with an environment variable that makes it misbehave.
fn run_as_child(wrapper: &[&str], test: &str, environment: &[(&str, &str)]) -> Output {
    let own = std::env::current_exe().unwrap();
    let mut words = wrapper.iter().map(AsRef::as_ref).chain([own.as_os_str()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["--exact", test, "--nocapture"]).env_remove("KNIT_TESTBED_KEEP");
    command.env(CHILD, "1").envs(environment.iter().copied()).output().unwrap()
}

const CHILD: &str = "KNIT_TESTBED_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn two_connected_namespaces_ping_each_other_in_both_families() {
    let testbed = Testbed::new("ping");
    let (a, b) = pair(&testbed);
    for target in ["10.0.0.2", "fd00::2"] {
        let rtt = a.ping(target).unwrap();
        assert!(rtt < Duration::from_secs(1), "{rtt:?}");
    }
    b.ping("10.0.0.1").unwrap();
    b.ip(&["link", "set", "eth0", "down"]);
    let error = a.ping("10.0.0.2").unwrap_err();
    assert!(matches!(error, Error::Unreached { protocol: "ping", .. }), "{error}");
}

#[test]
fn pods_on_a_bridge_talk_by_tcp_and_udp() {
    let testbed = Testbed::new("bridge");
    let host = testbed.host();
    let (a, b) = (testbed.pod("a"), testbed.pod("b"));
    testbed.bridge(&host, "br0");
    for (pod, port, number) in [(&a, "port-a", 1), (&b, "port-b", 2)] {
        testbed.connect(pod, "eth0", &host, port);
        host.enslave(port, "br0");
        pod.address("eth0", &format!("10.0.0.{number}/24"));
        pod.address("eth0", &format!("fd00::{number}/64"));
    }
    for address in ["10.0.0.2:0", "[fd00::2]:0"] {
        let (tcp, udp) = (b.tcp_echo(address), b.udp_echo(address));
        a.tcp_reaches(tcp.address()).unwrap();
        a.udp_reaches(udp.address()).unwrap();
        tcp.stop();
        udp.stop();
        a.tcp_reaches(tcp.address()).unwrap_err();
        a.udp_reaches(udp.address()).unwrap_err();
    }
}

#[test]
fn a_closure_and_a_command_run_inside() {
    let testbed = Testbed::new("inside");
    let namespace = testbed.namespace("a");
    let link = |path: &str| std::fs::read_link(path).unwrap();
    let inside = namespace.run(|| link("/proc/thread-self/ns/net"));
    assert_ne!(inside, link("/proc/self/ns/net"), "the closure ran in the machine's namespace");
    assert_eq!(link("/proc/thread-self/ns/net"), link("/proc/self/ns/net"), "this thread was moved");
    let seen = namespace.output("readlink", &["/proc/self/ns/net"]).unwrap();
    assert_eq!(Path::new(seen.trim()), inside);
    let flags = &namespace.ip_json(&["link", "show", "lo"])[0]["flags"];
    assert!(flags.as_array().unwrap().contains(&"UP".into()), "lo is not up: {flags}");
    let by_nsenter = Command::new("nsenter")
        .arg(format!("--net={}", namespace.path().display()))
        .args(["readlink", "/proc/self/ns/net"])
        .output()
        .unwrap();
    assert_eq!(Path::new(text(&by_nsenter).trim()), inside);
}

#[test]
fn a_panic_inside_goes_on_outside_with_its_message() {
    let testbed = Testbed::new("panic");
    let host = testbed.host();
    let panic = catch_unwind(AssertUnwindSafe(|| host.run(|| panic!("the bridge fell down")))).unwrap_err();
    assert_eq!(message(panic), "the bridge fell down");
}

#[test]
fn a_failing_tool_is_quoted() {
    let testbed = Testbed::new("quoted");
    let host = testbed.host();
    let panic = catch_unwind(AssertUnwindSafe(|| host.ip(&["link", "set", "nosuch0", "up"]))).unwrap_err();
    let message = message(panic);
    assert!(message.contains("`ip link set nosuch0 up` failed"), "{message}");
    assert!(message.contains("nosuch0\""), "without the tool's own words: {message}");
}

#[test]
fn sysctls_are_read_and_written_inside_only() {
    let testbed = Testbed::new("sysctl");
    let (a, b) = (testbed.namespace("a"), testbed.namespace("b"));
    let key = "net.ipv4.ip_default_ttl";
    a.set_sysctl(key, "77");
    assert_eq!(a.sysctl(key).unwrap(), "77");
    assert_ne!(b.sysctl(key).unwrap(), "77");
    assert!(matches!(a.sysctl("net.ipv4.no_such_thing"), Err(Error::Sysctl { .. })));
}

#[test]
fn parallel_testbeds_of_the_same_name_do_not_collide() {
    let threads: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(|| {
                let mut testbed = Testbed::new("same");
                let (a, _b) = pair(&testbed);
                a.ping("10.0.0.2").unwrap();
                let names: Vec<_> = testbed.namespaces().iter().map(|one| one.name().to_owned()).collect();
                testbed.close();
                testbed.assert_nothing_left();
                names
            })
        })
        .collect();
    let names: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), 6 * 3, "{names:?}");
}

#[test]
fn a_label_can_be_used_once_in_a_testbed() {
    let testbed = Testbed::new("label");
    let _first = testbed.namespace("a");
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.namespace("a"))).unwrap_err();
    assert!(message(panic).contains("it has a namespace a already"));
}

#[test]
fn a_panicking_test_leaves_nothing() {
    let mut seen = None;
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let testbed = Testbed::new("fails");
        let pod = testbed.pod("a");
        let server = pod.tcp_echo("127.0.0.1:0");
        pod.tcp_reaches(server.address()).unwrap();
        let paths: Vec<_> = testbed.namespaces().iter().map(|one| one.path().to_owned()).collect();
        assert!(paths.iter().all(|path| path.exists()) && is_alive(pod.pid()), "nothing to take away");
        seen = Some((paths, pod.clone()));
        panic!("on purpose");
    }));
    assert_eq!(message(panic.unwrap_err()), "on purpose");
    let (paths, pod) = seen.unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(paths.iter().all(|path| !mounts.contains(&*path.to_string_lossy())), "{mounts}");
    assert!(!is_alive(pod.pid()), "the pod's process lives on");
    assert!(matches!(pod.sysctl("net.ipv4.ip_forward"), Err(Error::Closed { .. })));
}

#[test]
fn a_pod_is_found_by_its_pid() {
    let testbed = Testbed::new("pod");
    let pod = testbed.pod("a");
    let by_pid = std::fs::read_link(format!("/proc/{}/ns/net", pod.pid())).unwrap();
    let inside = pod.run(|| std::fs::read_link("/proc/thread-self/ns/net").unwrap());
    assert_eq!(by_pid, inside);
    assert_eq!(pod.processes(), [(pod.pid(), "sleep infinity".to_owned())]);
}

#[test]
fn background_processes_and_their_children_are_stopped() {
    let mut testbed = Testbed::new("background");
    let host = testbed.host();
    let script = "echo started; sleep 1000 & setsid sleep 1000 & wait";
    let shell = host.spawn(host.command("sh").args(["-c", script]));
    eventually("the shell has two children", Duration::from_secs(10), || {
        host.processes().iter().filter(|(_, command)| command == "sleep 1000").count() == 2
    });
    assert_eq!(shell.output(), "started\n");
    assert!(shell.is_running());
    let pids: Vec<_> = host.processes().iter().map(|(pid, _)| *pid).collect();
    testbed.close();
    testbed.assert_nothing_left();
    assert!(!shell.is_running());
    assert!(!pids.iter().any(|pid| is_running(*pid)), "{pids:?}");
}

#[test]
fn a_dump_does_not_change_by_itself() {
    let testbed = Testbed::new("still");
    let (a, b) = pair(&testbed);
    let before = Dump::take(&a);
    // Learned neighbours, link-local addresses and counters all come with this.
    a.ping("10.0.0.2").unwrap();
    a.ping("fd00::2").unwrap();
    eventually("the link-local address is there", Duration::from_secs(5), || {
        let text = b.ip(&["-6", "address", "show", "dev", "eth0", "scope", "link"]);
        text.contains("fe80::") && !text.contains("tentative")
    });
    before.assert_unchanged(&a);
    assert_same!(before, Dump::take(&a));
}

/// What a dump shows of one change, and that undoing it gives the same dump again.
fn assert_shows(namespace: &Namespace, change: impl Fn(), undo: impl Fn(), expected: &[&str]) {
    let before = Dump::take(namespace);
    change();
    let difference = before.difference(&Dump::take(namespace));
    let lines: Vec<_> = difference.lines().filter(|line| line.starts_with("  ")).collect();
    assert_eq!(lines.len(), expected.len(), "{difference}");
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
    undo();
    before.assert_unchanged(namespace);
}

#[test]
fn a_dump_shows_exactly_what_was_changed() {
    let testbed = Testbed::new("change");
    let (a, _b) = pair(&testbed);
    let ip = |line: &str| {
        a.ip(&line.split(' ').collect::<Vec<_>>());
    };
    let nft = |line: &str| {
        a.output("nft", &[line]).unwrap();
    };
    let key = "net.ipv4.conf.eth0.arp_ignore";
    assert_shows(
        &a,
        || a.set_sysctl(key, "1"),
        || a.set_sysctl(key, "0"),
        &["- net/ipv4/conf/eth0/arp_ignore = 0", "+ net/ipv4/conf/eth0/arp_ignore = 1"],
    );
    assert_shows(
        &a,
        || ip("route add 10.9.0.0/16 via 10.0.0.2 table 77 proto 217"),
        || ip("route del 10.9.0.0/16 table 77"),
        &["+ table 77: 10.9.0.0/16 dev eth0 gateway 10.0.0.2 protocol 217"],
    );
    // The second address of a subnet brings itself and its local route.
    assert_shows(
        &a,
        || ip("address add 10.0.0.7/24 dev eth0"),
        || ip("address del 10.0.0.7/24 dev eth0"),
        &["+ eth0: 10.0.0.7/24", "+ table local: 10.0.0.7"],
    );
    assert_shows(
        &a,
        || ip("rule add pref 100 from 10.0.0.1 lookup 77"),
        || ip("rule del pref 100"),
        &["+ inet: priority 100"],
    );
    assert_shows(
        &a,
        || ip("neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev eth0 nud permanent"),
        || ip("neigh del 10.0.0.9 dev eth0"),
        &["+ dev eth0 dst 10.0.0.9"],
    );
    assert_shows(
        &a,
        || nft("add table inet knit { chain c { type filter hook input priority 0; counter accept; }; }"),
        || nft("delete table inet knit"),
        &["+ table inet knit", "+ table inet knit > chain c", "hook input", "counter accept"],
    );
    assert_shows(
        &a,
        || drop(a.output("tc", &["qdisc", "add", "dev", "eth0", "clsact"]).unwrap()),
        || drop(a.output("tc", &["qdisc", "del", "dev", "eth0", "clsact"]).unwrap()),
        &["+ dev eth0 handle ffff: kind clsact"],
    );
    assert_shows(
        &a,
        || ip("link set eth0 mtu 1400"),
        || ip("link set eth0 mtu 1500"),
        &[
            "- eth0: info_kind veth",
            "+ eth0: info_kind veth",
            "- net/ipv6/conf/eth0/mtu = 1500",
            "+ net/ipv6/conf/eth0/mtu = 1400",
        ],
    );
}

#[test]
fn a_new_link_is_a_few_lines_in_a_difference() {
    let testbed = Testbed::new("newlink");
    let host = testbed.host();
    let before = Dump::take(&host);
    testbed.bridge(&host, "br7");
    let difference = before.difference(&Dump::take(&host));
    assert!(difference.contains("+ br7: info_kind bridge"), "{difference}");
    assert!(difference.contains("further lines"), "{difference}");
    assert!(difference.lines().count() < 20, "{difference}");
    host.ip(&["link", "del", "br7"]);
    before.assert_unchanged(&host);
}

#[test]
fn a_forgotten_descriptor_is_found_by_assert_nothing_left() {
    let mut testbed = Testbed::new("forgets");
    let descriptor = std::mem::ManuallyDrop::new(testbed.namespace("a").descriptor());
    testbed.close();
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.assert_nothing_left())).unwrap_err();
    let message = message(panic);
    assert!(message.contains("-a: this test process has it open as descriptor"), "{message}");
    drop(std::mem::ManuallyDrop::into_inner(descriptor));
}

#[test]
fn a_forgotten_testbed_is_found_by_assert_nothing_left() {
    let mut testbed = Testbed::new("open");
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.assert_nothing_left())).unwrap_err();
    assert!(message(panic).contains("was not closed"));
    testbed.close();
    testbed.assert_nothing_left();
}

#[test]
fn a_file_of_the_testbed_that_came_back_is_found_by_assert_nothing_left() {
    let mut testbed = Testbed::new("file");
    let path = testbed.host().path().with_extension("again");
    testbed.close();
    std::fs::write(&path, "").unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| testbed.assert_nothing_left()));
    std::fs::remove_file(&path).unwrap();
    assert!(message(panic.unwrap_err()).contains("-host.again"));
}

#[test]
fn a_link_that_escaped_to_the_machine_is_found_by_assert_nothing_left() {
    let add = ["link", "add", "br7", "type", "bridge"];
    if is_child() {
        let mut testbed = Testbed::new("escape");
        testbed.bridge(&testbed.host(), "br7");
        assert!(Command::new("ip").args(add).status().unwrap().success());
        testbed.close();
        testbed.assert_nothing_left();
        return;
    }
    // The child has a namespace of its own for a machine, so that even this test leaves the real one alone.
    let test = "a_link_that_escaped_to_the_machine_is_found_by_assert_nothing_left";
    let output = run_as_child(&["unshare", "--net"], test, &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("link br7 in the machine's own namespace"), "{text}");
}

#[test]
fn a_failing_test_prints_the_commands_to_look_inside() {
    if is_child() {
        let testbed = Testbed::new("shown");
        let (a, _b) = pair(&testbed);
        let shell = a.spawn(a.command("sh").args(["-c", "echo I was here; exec sleep 1000"]));
        eventually("it prints", Duration::from_secs(10), || !shell.output().is_empty());
        panic!("on purpose");
    }
    let output = run_as_child(&[], "a_failing_test_prints_the_commands_to_look_inside", &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    let command = "look inside: ip netns exec knit-shown-";
    let command_elsewhere = "look inside: nsenter --net=";
    assert!(text.contains(command) || text.contains(command_elsewhere), "{text}");
    for part in ["10.0.0.1/24", "fd00::1/64", "table local", "I was here", "KNIT_TESTBED_KEEP=1"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn a_failing_test_keeps_its_world_when_asked_and_says_how_to_remove_it() {
    if is_child() {
        let testbed = Testbed::new("kept");
        let _pod = testbed.pod("a");
        panic!("on purpose");
    }
    let test = "a_failing_test_keeps_its_world_when_asked_and_says_how_to_remove_it";
    let text = text(&run_as_child(&[], test, &[("KNIT_TESTBED_KEEP", "1")]));
    let (_, after) = text.split_once("When you are done:\n").unwrap_or_else(|| panic!("{text}"));
    let commands: Vec<_> = after.lines().take_while(|line| line.starts_with("  ")).map(str::trim).collect();
    assert_eq!(commands.len(), 3, "{text}");
    let pid: u32 = commands[0].strip_prefix("kill ").unwrap().parse().unwrap();
    let was_alive = is_alive(pid);
    let looks = text.lines().filter_map(|line| line.split_once("look inside: "));
    let looked: Vec<_> = looks.map(|(_, command)| shell(&format!("{command} -c 'ip -br link'"))).collect();
    // The very commands that were printed take it all away.
    let removed: Vec<_> = commands.iter().map(|command| shell(command)).collect();
    assert!(was_alive, "the pod's process was not kept");
    assert_eq!(looked.len(), 2, "{text}");
    for output in &looked {
        assert!(self::text(output).contains("LOOPBACK"), "{output:?}");
    }
    assert!(removed.iter().all(|output| output.status.success()), "{removed:?}");
    eventually("the kept process is gone", Duration::from_secs(10), || !is_running(pid));
}

/// Alive and not a zombie: nobody reaps the child of a test that ended in a pid namespace without an init.
fn is_running(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn shell(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().unwrap()
}

#[test]
fn without_the_right_to_make_namespaces_a_test_fails_and_says_what_to_do() {
    if is_child() {
        Testbed::new("forbidden");
        return;
    }
    // A user namespace without a mapping has no capabilities after exec.
    let test = "without_the_right_to_make_namespaces_a_test_fails_and_says_what_to_do";
    let output = run_as_child(&["unshare", "--user"], test, &[]);
    let text = text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("may not make network namespaces"), "{text}");
    assert!(text.contains("run as root, or `cargo xtask test netns`"), "{text}");
    assert!(text.contains("test result: FAILED"), "{text}");
}
