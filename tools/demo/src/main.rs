//! `cargo xtask demo`: Knit's main job in under a minute, without a cluster, and without root where user namespaces are
//! allowed. Everything happens in namespaces of the demo's own; nothing of it is left.

mod world;

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use knit_dev::packages::{self, Purpose};
use knit_dev::places;
use knit_dev::process;
use world::World;

/// The walkthrough's object: two networks for each pod that carries its label.
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

/// A change of the interface that the main CNI plugin made.
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

/// Builds Knit, then runs the demo in network, mount and process namespaces of its own.
fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return show();
    }
    packages::ensure(&[Purpose::Build, Purpose::Demo])?;
    let mut build = process::cargo();
    process::run(build.current_dir(places::workspace()).args(["build", "--locked", "--package", "knit"]))?;
    let mut inside = Command::new("unshare");
    if !process::is_root() {
        inside.args(["--user", "--map-root-user"]);
    }
    inside.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    let program = std::env::current_exe().context("cannot find this program on disk")?;
    let error = inside.arg(program).arg(INSIDE).exec();
    bail!("cannot create namespaces for the demo ({error}): run it as root, or allow user namespaces");
}

fn show() -> Result<()> {
    let mut world = World::new()?;
    world.title("Two pods, as the main CNI plugin leaves them: each with an eth0 on cni0");
    world.add_pods()?;
    let before = world.picture()?;
    world.run("knit sandbox list")?;
    world.in_pod("pod-a", "ip -br addr")?;
    let (a, _) = world.ping("pod-a", "10.85.0.12")?;
    world.check("pod-a reaches pod-b over the main network", a)?;

    world.title("A tenant writes an object. The pods run; nobody has a privilege");
    world.write("podconfig.yaml", PODCONFIG)?;
    world.fails_with("knit plan -f podconfig.yaml", 2)?;
    world.run("knit apply -f podconfig.yaml")?;
    world.run("knit get")?;
    world.in_pod("pod-a", "ip -br addr")?;
    world.in_pod("pod-b", "ip -br addr")?;
    world.run("ip -br addr show type bridge")?;
    walkthrough(&mut world)?;

    world.title("The new networks carry traffic, at once");
    for (from, to, what) in [
        ("pod-b", "192.168.100.2", "pod-b reaches pod-a on the first network"),
        ("pod-a", "192.168.99.3", "pod-a reaches pod-b on the second network"),
        ("pod-a", "192.168.100.1", "pod-a reaches the first bridge"),
        ("pod-b", "192.168.99.1", "pod-b reaches the second bridge"),
    ] {
        let (reached, time) = world.ping(from, to)?;
        world.check(&format!("{what}{time}"), reached)?;
    }

    world.title("A live change: the MTU of eth0, which someone else made");
    world.write("primary.yaml", PRIMARY)?;
    world.run("knit apply -f primary.yaml")?;
    let mtu = world.mtu("pod-a", "eth0")?;
    world.check("eth0 of pod-a has MTU 1400 now", mtu == 1400)?;
    world.run("knit delete primarynetwork small-packets")?;
    let mtu = world.mtu("pod-a", "eth0")?;
    world.check("the old value came back with the object's end", mtu == 1500)?;

    world.title("The object goes, and everything is as before");
    world.run("knit delete -f podconfig.yaml")?;
    world.run("knit status")?;
    let (reached, _) = world.ping("pod-a", "10.85.0.12")?;
    world.check("the main network works as ever", reached)?;
    let after = world.picture()?;
    world.check(
        "links, addresses, routes and rules of host and pods are those of the beginning",
        before == after,
    )?;
    world.end()
}

/// The facts of the walkthrough: names, addresses, bridges.
fn walkthrough(world: &mut World) -> Result<()> {
    for (pod, last) in [("pod-a", 2), ("pod-b", 3)] {
        let pid = world.pid(pod)?;
        let seen = world.quiet_in_pod(pod, "ip -br addr")?;
        for (prefix, range) in [("pc0", "192.168.100"), ("pc1", "192.168.99")] {
            let line = seen.lines().find(|line| line.starts_with(&format!("{prefix}{pid}@")));
            let line = line.with_context(|| format!("{pod} has no {prefix}{pid}"))?;
            ensure!(line.contains(&format!("{range}.{last}/24")), "{pod}: {line}");
        }
    }
    world.check(
        "interfaces are named after the object and the pod's process; addresses follow the bridge's",
        true,
    )
}
