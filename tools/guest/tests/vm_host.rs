//! `cargo xtask vm run`: output, exit codes and errors of programs in the guest.
//!
//! The program is busybox, which the guest contains; its shell runs `/usr/sbin/ip` only by the full path.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const BUSYBOX: &str = "/bin/busybox";

fn guest(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_knit-guest"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a shell script in the guest. The kernel is downloaded before, so that its progress is not in the output.
fn in_guest(options: &[&str], script: &str) -> Output {
    let listed = guest(&["modules"]).output().expect("knit-guest is built with its tests");
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    guest(&["run"])
        .args(options)
        .args(["--", BUSYBOX, "sh", "-c", script])
        .output()
        .expect("knit-guest is built with its tests")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn assert_succeeds(output: &Output) {
    assert!(
        output.status.success(),
        "{}\nstandard output:\n{}standard error:\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// Whether a QEMU with this console in its command line runs.
fn qemu_runs(console: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").filter_map(Result::ok);
    processes.into_iter().any(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        text(&line).contains(console)
    })
}

/// The path of the console in an error message.
fn console_path(message: &str) -> &str {
    message
        .lines()
        .find_map(|line| line.trim().strip_prefix("console log: "))
        .expect("the error names the console log")
}

#[test]
fn output_and_exit_code_are_passed_on_unchanged() {
    let script = "printf 'out \\000\\001\\377 no newline'; printf 'err\\n\\n' >&2; exit 7";
    let output = in_guest(&[], script);
    assert_eq!(output.stdout, b"out \0\x01\xff no newline");
    assert_eq!(text(&output.stderr), "err\n\n");
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn large_output_arrives_completely() {
    // About three megabytes on each stream, more than any buffer on the way.
    let script = "seq 1 400000; seq 400000 -1 1 >/dev/stderr";
    let output = in_guest(&[], script);
    assert_eq!(output.status.code(), Some(0));
    let up: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    let down: String = (1..=400_000).rev().map(|number| format!("{number}\n")).collect();
    assert!(output.stdout == up.as_bytes(), "standard output has {} bytes", output.stdout.len());
    assert!(output.stderr == down.as_bytes(), "standard error has {} bytes", output.stderr.len());
}

#[test]
fn output_is_passed_on_while_the_program_runs() {
    use std::io::Read;
    let script = "echo first; sleep 30";
    assert_succeeds(&guest(&["modules"]).output().unwrap());
    let mut command = guest(&["run", "--timeout", "60", "--", BUSYBOX, "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    let mut first = [0; 6];
    let read = child.stdout.take().unwrap().read_exact(&mut first);
    let (took, still_runs) = (start.elapsed(), child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    read.unwrap();
    assert_eq!(&first, b"first\n");
    assert!(still_runs, "the command ended before its program");
    assert!(took < Duration::from_secs(25), "the first line took {took:?}");
}

#[test]
fn environment_files_and_arguments_reach_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text");
    std::fs::write(&file, "from the host").unwrap();
    let mapping = format!("{}:/data/deep/text", file.display());
    let script = "echo \"$GREETING\"; cat /data/deep/text; echo; id -u; read line || echo nothing to read";
    let output = in_guest(&["--env", "GREETING=it's $HOME", "--file", &mapping], script);
    assert_succeeds(&output);
    assert_eq!(text(&output.stdout), "it's $HOME\nfrom the host\n0\nnothing to read\n");
}

#[test]
fn links_and_devices_of_the_archive_are_unpacked() {
    let output =
        in_guest(&[], "readlink /usr/bin/sh; readlink /bin; stat -c '%F %t %T' /dev/null; stat -c %F /proc");
    assert_succeeds(&output);
    assert_eq!(text(&output.stdout), "dash\nusr/bin\ncharacter special file 1 3\ndirectory\n");
}

#[test]
fn a_program_past_its_time_limit_is_killed() {
    let start = Instant::now();
    let output = in_guest(&["--timeout", "20"], "echo started; sleep 1000");
    let took = start.elapsed();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(text(&output.stdout), "started\n");
    assert!(message.contains("busybox did not end within 20.0 s, so the guest was killed"), "{message}");
    assert!(took < Duration::from_secs(60), "it took {took:?}");
    assert!(!qemu_runs(console_path(&message)), "its qemu still runs");
}

#[test]
fn a_kernel_panic_is_reported_at_once() {
    let start = Instant::now();
    let output = in_guest(&[], "echo before; sleep 1; echo c >/proc/sysrq-trigger; sleep 1000");
    let took = start.elapsed();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(text(&output.stdout), "before\n");
    assert!(
        message.contains("the guest's kernel panicked while it ran busybox: sysrq triggered crash"),
        "{message}"
    );
    assert!(message.contains("sysrq: Trigger a crash"), "the console's end is missing: {message}");
    assert!(took < Duration::from_secs(60), "it took {took:?}");
    let log = std::fs::read_to_string(console_path(&message)).unwrap();
    assert!(log.contains("Kernel panic - not syncing"));
}

#[test]
fn a_guest_that_powers_off_is_reported() {
    let output = in_guest(&[], "poweroff -f; sleep 1000");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("the guest went down before busybox ended"), "{message}");
}

#[test]
fn no_guest_outlives_its_command() {
    let mut command = guest(&["run", "--timeout", "100", "--", BUSYBOX, "sh", "-c", "echo up; sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let qemu: u32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let runs = || text(&std::fs::read(format!("/proc/{qemu}/cmdline")).unwrap_or_default()).contains("qemu");
    while runs() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!runs(), "qemu {qemu} still runs");
}

#[test]
fn a_signal_gives_the_exit_code_of_a_shell() {
    let output = in_guest(&[], "kill -9 $$");
    assert_eq!(output.status.code(), Some(137), "{}", text(&output.stderr));
}

#[test]
fn a_background_process_does_not_keep_the_guest_running() {
    let output = in_guest(&["--timeout", "60"], "sleep 1000 & echo done");
    assert_succeeds(&output);
    assert_eq!(text(&output.stdout), "done\n");
}

#[test]
fn a_dynamic_program_is_rejected() {
    let output = guest(&["run", "--", "/usr/bin/env"]).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("/usr/bin/env is not static"), "{message}");
    assert!(message.contains("target-feature=+crt-static"), "{message}");
}

#[test]
fn links_that_the_host_kernel_lacks_can_be_created() {
    let script = "set -e
        PATH=/usr/sbin:/usr/bin; ip=/usr/sbin/ip
        $ip link add d0 type dummy
        $ip link set d0 up
        $ip link add link d0 name v0 type vlan id 7
        $ip link add link d0 name i0 type ipvlan mode l2
        $ip link add d1 type dummy
        $ip link add link d1 name m0 type macvlan mode bridge
        $ip link add vrf0 type vrf table 10
        $ip link add wg0 type wireguard
        $ip link add gen0 type geneve id 7 remote 192.0.2.1
        $ip link add x0 type vxlan id 7 dstport 4789 dev d0
        $ip link add gre1 type gre local 192.0.2.1 remote 192.0.2.2
        $ip link add gre6 type ip6gre local 2001:db8::1 remote 2001:db8::2
        $ip link add tun1 type ipip local 192.0.2.1 remote 192.0.2.2
        $ip link add sit1 type sit local 192.0.2.1 remote 192.0.2.2
        $ip link add bond1 type bond
        $ip link add br0 type bridge vlan_filtering 1
        for link in d0 v0 i0 m0 vrf0 wg0 gen0 x0 gre1 gre6 tun1 sit1 bond1 br0; do
            $ip -d link show dev $link >/dev/null; echo $link
        done";
    let output = in_guest(&[], script);
    assert_succeeds(&output);
    assert_eq!(text(&output.stdout).split_whitespace().count(), 14);
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn nftables_qdiscs_and_namespaces_work() {
    let script = r#"set -e
        /usr/sbin/ip netns add red
        /usr/sbin/ip link add va type veth peer name vb netns red
        /usr/sbin/ip addr add 192.0.2.1/24 dev va; /usr/sbin/ip link set va up
        /usr/sbin/ip -n red addr add 192.0.2.2/24 dev vb; /usr/sbin/ip -n red link set vb up
        /usr/sbin/tc qdisc add dev va root netem delay 1ms
        /usr/sbin/ip netns exec red /usr/sbin/tc qdisc add dev vb root fq
        /usr/sbin/nft 'add table inet t
            add chain inet t nat { type nat hook postrouting priority 100; }
            add rule inet t nat oifname "va" counter masquerade
            add chain inet t in { type filter hook input priority 0; }
            add rule inet t in ct state established,related counter accept
            add rule inet t in fib saddr type local reject'
        /usr/bin/ping -c 1 -W 5 192.0.2.2 >/dev/null
        /usr/bin/nsenter --net=/run/netns/red /usr/sbin/ip -o addr show dev vb | grep -q 192.0.2.2
        /usr/bin/unshare -Urmn /bin/dash -c 'mount -t sysfs none /sys && ls /sys/class/net'
        lsmod | grep -c '^mpls_router '"#;
    let output = in_guest(&["--module", "mpls_router"], script);
    assert_succeeds(&output);
    assert_eq!(text(&output.stdout), "lo\n1\n");
}
