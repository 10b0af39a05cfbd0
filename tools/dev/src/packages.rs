//! The Debian packages that Knit's commands need, by purpose.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::process;
use crate::progress::Step;

/// What a package is needed for. Each command asks for its own purposes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Building Knit, besides cargo.
    Build,
    /// The demo.
    Demo,
    /// Tests in network namespaces.
    Netns,
    /// The guest kernel.
    Vm,
    /// The test cluster and the programs inside its pods.
    Cluster,
    /// Peers that benchmarks compare with.
    Bench,
    /// A fresh Debian root.
    Fresh,
    /// Clients of the gRPC interface in other languages.
    Clients,
    /// Fuzzing.
    Fuzz,
}

impl Purpose {
    const ALL: [Self; 9] = [
        Self::Build,
        Self::Demo,
        Self::Netns,
        Self::Vm,
        Self::Cluster,
        Self::Bench,
        Self::Fresh,
        Self::Clients,
        Self::Fuzz,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Build => "building",
            Self::Demo => "demo",
            Self::Netns => "namespace tests",
            Self::Vm => "guest kernel",
            Self::Cluster => "test cluster",
            Self::Bench => "benchmarks",
            Self::Fresh => "fresh root",
            Self::Clients => "clients in other languages",
            Self::Fuzz => "fuzzing",
        }
    }

    /// Package and what Knit uses of it.
    fn packages(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Build => &[("clang", "compiles the eBPF program")],
            Self::Demo => &[
                ("iproute2", "ip: shows links, creates the pods' main network"),
                ("iputils-ping", "ping: traffic through the new networks"),
                ("util-linux", "unshare, nsenter"),
            ],
            Self::Netns => &[
                ("busybox-static", "a static program for tests of mount and pid namespaces"),
                ("containernetworking-plugins", "CNI plugins that Knit runs as a chain"),
                ("iproute2", "ip: looks at links, makes test topologies"),
                ("iputils-ping", "ping: traffic through what was made"),
                ("nftables", "nft: reads the rule sets that Knit made, and makes others' beside them"),
                ("procps", "sysctl: reads and changes settings as an admin does"),
                ("util-linux", "unshare, nsenter"),
            ],
            Self::Vm => &[
                ("qemu-system-x86", "runs the guest"),
                ("busybox-static", "the guest's first process"),
                ("kmod", "depmod: the order in which modules load"),
                ("dash", "the guest's shell"),
                ("iproute2", "ip, tc, bridge, ss in the guest"),
                ("iputils-ping", "ping in the guest"),
                ("nftables", "nft in the guest"),
                ("util-linux", "unshare, nsenter in the guest; setpriv, which ties it to its command"),
                ("mount", "mount, umount in the guest"),
            ],
            Self::Cluster => &[
                ("etcd-server", "the API server's store"),
                ("runc", "starts containers"),
                ("containernetworking-plugins", "the reference network"),
                ("iptables", "used by the reference network's portmap plugin"),
                ("nftables", "used by kube-proxy"),
                ("conntrack", "used by kube-proxy"),
                ("iproute2", "links and routes of the nodes"),
                ("openssl", "the cluster's keys and certificates"),
                ("util-linux", "unshare, nsenter, mount"),
                ("busybox-static", "tools in test images"),
                ("dash", "the shell in test images"),
                ("curl", "in test images"),
                ("wget", "in test images"),
                ("netcat-openbsd", "nc in test images"),
                ("bind9-dnsutils", "dig in test images"),
                ("iputils-ping", "ping in test images"),
            ],
            Self::Bench => {
                &[("containernetworking-plugins", "the peer of attach and detach"), ("iperf3", "throughput")]
            }
            Self::Fresh => &[("debootstrap", "unpacks a Debian root")],
            Self::Clients => &[
                ("python3", "a client in another language"),
                ("python3-venv", "a place of its own for that client's libraries"),
            ],
            Self::Fuzz => &[("g++", "compiles libFuzzer")],
        }
    }
}

/// Prints a table of all packages; with `install` installs the missing ones.
pub fn command(install: bool) -> Result<()> {
    let mut missing = BTreeSet::new();
    println!("{:<28} {:<28} {:<10} USED FOR", "PURPOSE", "PACKAGE", "STATE");
    for purpose in Purpose::ALL {
        for (package, usage) in purpose.packages() {
            let installed = is_installed(package)?;
            if !installed {
                missing.insert(*package);
            }
            let state = if installed { "installed" } else { "missing" };
            println!("{:<28} {package:<28} {state:<10} {usage}", purpose.title());
        }
    }
    println!("\n{}", go_status());
    if missing.is_empty() {
        println!("Debian packages: all installed");
    } else if install {
        install_packages(&missing)?;
        println!("Debian packages: installed {}", join(&missing));
    } else {
        println!("Debian packages missing: {}", join(&missing));
        println!(
            "install them with `cargo xtask deps --install`, or: apt-get install --no-install-recommends {}",
            join(&missing)
        );
    }
    Ok(())
}

/// Makes sure that everything for these purposes is installed: installs it as root, says what to type otherwise.
pub fn ensure(purposes: &[Purpose]) -> Result<()> {
    let missing = missing(purposes)?;
    if missing.is_empty() { Ok(()) } else { install_packages(&missing) }
}

/// Like [`ensure`], while `work` runs, which writes to the terminal: the installation prints lines instead of a spinner.
pub fn ensure_during<T>(purposes: &[Purpose], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let missing = missing(purposes)?;
    if missing.is_empty() {
        return work();
    }
    eprintln!("installing in the background: {}", join(&missing));
    std::thread::scope(|scope| {
        let installation = scope.spawn(|| apt_get_install(&missing));
        let done = work()?;
        installation.join().map_err(|_| anyhow!("the installation of {} panicked", join(&missing)))??;
        Ok(done)
    })
}

/// The packages for these purposes that are not installed. Fails if there are any and this user cannot install them.
fn missing(purposes: &[Purpose]) -> Result<BTreeSet<&'static str>> {
    let mut missing = BTreeSet::new();
    for (package, _) in purposes.iter().flat_map(|purpose| purpose.packages()) {
        if !is_installed(package)? {
            missing.insert(*package);
        }
    }
    if !missing.is_empty() && !process::is_root() {
        bail!("missing Debian packages; as root: apt-get install --no-install-recommends {}", join(&missing));
    }
    Ok(missing)
}

/// The oldest Go that builds the pinned tools.
pub const GO_MINOR: u32 = 26;

/// Fails in words when there is no Go that builds the pinned tools.
pub fn ensure_go() -> Result<()> {
    match go_minor() {
        Some(minor) if minor >= GO_MINOR => Ok(()),
        Some(minor) => bail!(
            "Go 1.{GO_MINOR} or newer is needed to build the cluster's parts, this is 1.{minor}: see https://go.dev/dl"
        ),
        None => bail!(
            "Go 1.{GO_MINOR} or newer is needed to build the cluster's parts, and there is no `go` in PATH: see https://go.dev/dl"
        ),
    }
}

fn go_status() -> String {
    match go_minor() {
        Some(minor) if minor >= GO_MINOR => format!("Go: 1.{minor}, good (builds the cluster's parts)"),
        Some(minor) => format!(
            "Go: 1.{minor} is too old, 1.{GO_MINOR} or newer builds the cluster's parts: see https://go.dev/dl"
        ),
        None => {
            format!("Go: missing, 1.{GO_MINOR} or newer builds the cluster's parts: see https://go.dev/dl")
        }
    }
}

fn go_minor() -> Option<u32> {
    let text = process::output(Command::new("go").args(["env", "GOVERSION"])).ok()?;
    let rest = text.trim().strip_prefix("go1.")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

fn is_installed(package: &str) -> Result<bool> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f=${db:Status-Status}", package]);
    let done = query.output().context("cannot start `dpkg-query`: Knit's tests are made for Debian 12")?;
    Ok(done.status.success() && done.stdout == b"installed")
}

fn install_packages(packages: &BTreeSet<&str>) -> Result<()> {
    process::require_root("installing Debian packages")?;
    let step = Step::start(format!("install {}", join(packages)));
    apt_get_install(packages)?;
    step.done();
    Ok(())
}

fn apt_get_install(packages: &BTreeSet<&str>) -> Result<()> {
    process::output(Command::new("apt-get").args(["update", "-q"]))?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-q", "--no-install-recommends"]).args(packages);
    process::output(&mut install)?;
    Ok(())
}

fn join(packages: &BTreeSet<&str>) -> String {
    packages.iter().copied().collect::<Vec<_>>().join(" ")
}
