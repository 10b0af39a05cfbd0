//! `cargo xtask demo`: Knit's main features in under a minute, without a cluster, and without root where user namespaces are
//! allowed. It runs in its own namespaces and leaves nothing behind.

mod environment;

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use environment::Environment;
use knit_dev::packages::{self, Purpose};
use knit_dev::places;
use knit_dev::process;

/// The walkthrough's object: two networks for each pod with its label.
const PODCONFIG: &str = "\
apiVersion: podconfig.opdev.io/v1alpha1
kind: PodConfig
metadata:
  name: podconfig-sample-a
spec:
  networkAttachments:
    - {name: pc0, linkType: veth, master: pcbr0, parent: pc0, cidr: 192.168.100.0/24}
    - {name: pc1, linkType: veth, master: pcbr1, parent: pc1, cidr: 192.168.99.0/24}
";

/// A change of the interface that the main CNI plugin created.
const PRIMARY: &str = "\
apiVersion: podnetwork.opdev.io/v1alpha1
kind: PrimaryNetwork
metadata:
  name: small-packets
spec:
  selector: {matchLabels: {podconfig: podconfig-sample-a}}
  mtu: 1400
";

/// The argument with which the demo starts itself inside its namespaces.
const INSIDE: &str = "--inside";

/// Builds Knit, then runs the demo in its own network, mount and PID namespaces.
fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return show();
    }
    packages::ensure_during(&[Purpose::Demo], build)?;
    let mut inside = Command::new("unshare");
    if !process::is_root() {
        inside.args(["--user", "--map-root-user"]);
    }
    inside.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let program = std::env::current_exe().context("cannot find this program on disk")?;
    let error = inside.arg(program).arg(INSIDE).exec();
    bail!("cannot create namespaces for the demo ({error}): run it as root, or allow user namespaces");
}

/// Builds Knit as fast as possible: without cluster support and the fast path, which also needs clang.
fn build() -> Result<()> {
    let mut cargo = process::cargo();
    cargo.current_dir(places::workspace());
    cargo.args(["build", "--locked", "--package", "knit", "--no-default-features"]);
    process::run(&mut cargo)
}

fn show() -> Result<()> {
    let mut demo = Environment::new()?;
    demo.title("Two pods after the main CNI plugin: each has an eth0 on cni0");
    demo.add_pods()?;
    let before = demo.snapshot()?;
    demo.run("knit sandbox list")?;
    demo.in_pod("pod-a", "ip -br addr")?;
    let (a, _) = demo.ping("pod-a", "10.85.0.12")?;
    demo.check("pod-a reaches pod-b over the main network", a)?;

    demo.title("An unprivileged tenant creates an object for running pods");
    demo.write("podconfig.yaml", PODCONFIG)?;
    demo.fails_with("knit plan -f podconfig.yaml", 2)?;
    demo.run("knit apply -f podconfig.yaml")?;
    demo.run("knit get")?;
    demo.in_pod("pod-a", "ip -br addr")?;
    demo.in_pod("pod-b", "ip -br addr")?;
    demo.run("ip -br addr show type bridge")?;
    walkthrough(&mut demo)?;

    demo.title("The new networks carry traffic at once");
    for (from, to, what) in [
        ("pod-b", "192.168.100.2", "pod-b reaches pod-a on the first network"),
        ("pod-a", "192.168.99.3", "pod-a reaches pod-b on the second network"),
        ("pod-a", "192.168.100.1", "pod-a reaches the first bridge"),
        ("pod-b", "192.168.99.1", "pod-b reaches the second bridge"),
    ] {
        let (reached, time) = demo.ping(from, to)?;
        demo.check(&format!("{what}{time}"), reached)?;
    }

    demo.title("A live change: the MTU of eth0, which another plugin created");
    demo.write("primary.yaml", PRIMARY)?;
    demo.run("knit apply -f primary.yaml")?;
    let mtu = demo.mtu("pod-a", "eth0")?;
    demo.check("eth0 of pod-a has MTU 1400", mtu == 1400)?;
    demo.run("knit delete primarynetwork small-packets")?;
    let mtu = demo.mtu("pod-a", "eth0")?;
    demo.check("deleting the object restores the old value", mtu == 1500)?;

    demo.title("Deleting the object restores everything");
    demo.run("knit delete -f podconfig.yaml")?;
    demo.run("knit status")?;
    let (reached, _) = demo.ping("pod-a", "10.85.0.12")?;
    demo.check("the main network still works", reached)?;
    let after = demo.snapshot()?;
    demo.check("links, addresses, routes and rules of host and pods are as before", before == after)?;
    demo.end()
}

/// Checks names, addresses and bridges of the walkthrough.
fn walkthrough(demo: &mut Environment) -> Result<()> {
    for (pod, last) in [("pod-a", 2), ("pod-b", 3)] {
        let pid = demo.pid(pod)?;
        let seen = demo.quiet_in_pod(pod, "ip -br addr")?;
        for (prefix, range) in [("pc0", "192.168.100"), ("pc1", "192.168.99")] {
            let line = seen.lines().find(|line| line.starts_with(&format!("{prefix}{pid}@")));
            let line = line.with_context(|| format!("{pod} has no {prefix}{pid}"))?;
            ensure!(line.contains(&format!("{range}.{last}/24")), "{pod}: {line}");
        }
    }
    demo.check(
        "interfaces are named after the object and the pod's process; addresses follow the bridge's",
        true,
    )
}
