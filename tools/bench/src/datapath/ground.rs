//! A scratch host with two pods, connected in one of the ways that are compared.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use knit_kernel::Netns;

use super::program::Attached;
use crate::kni::path_of;
use crate::wire::Wire;
use knit_dev::process;

/// What both pods' addresses are in.
const PODS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];
/// What pods take for their router where every pod has a route: no link has this address.
const ROUTER: &str = "169.254.1.1";
/// A table of routes beside the main one, and the priority of the rules that lead there.
const TABLE: u32 = 7500;
/// What a node has as soon as kube-proxy does: connections are followed, and may be translated.
const FOLLOWED: &str = "table inet measured {
    chain first { type nat hook prerouting priority dstnat; }
    chain between { type filter hook forward priority filter; ct state new counter; }
    chain last { type nat hook postrouting priority srcnat; }
}";

/// How packets go from pod to pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Both are ports of a bridge; netfilter sees nothing of it.
    Bridge,
    /// The same, and `br_netfilter` shows every packet to netfilter, which follows connections.
    BridgeFollowed,
    /// The host has a route to each pod and answers ARP for all others.
    Routed,
    /// The same, and netfilter follows connections.
    RoutedFollowed,
    /// The same, with the routes in a table of their own and a rule in front of the main one for each pod.
    RoutedByRule,
    /// A program at the host's end of a pod's veth puts packets into the other pod at once; netfilter follows connections
    /// and does not see these packets.
    Redirect,
    /// Knit's own program, which looks addresses and connections up, at both ends of a bridge whose packets netfilter sees.
    Knit,
    /// One veth pair with a pod at each end: nothing is in between.
    Direct,
}

impl Way {
    pub const ALL: [Self; 8] = [
        Self::Bridge,
        Self::BridgeFollowed,
        Self::Routed,
        Self::RoutedFollowed,
        Self::RoutedByRule,
        Self::Redirect,
        Self::Knit,
        Self::Direct,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::BridgeFollowed => "bridge, connections followed",
            Self::Routed => "routed veth",
            Self::RoutedFollowed => "routed veth, connections followed",
            Self::RoutedByRule => "routed veth by a rule, connections followed",
            Self::Redirect => "eBPF redirect to the peer, connections followed",
            Self::Knit => "Knit's eBPF program, connections followed",
            Self::Direct => "one veth pair, pod to pod",
        }
    }

    /// Whether it needs what a machine may well lack.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::Redirect | Self::Knit)
    }
}

/// A host and two pods; they go with this.
pub struct Ground {
    way: Way,
    host: Netns,
    pods: [Netns; 2],
    wire: Option<Wire>,
    program: Option<Attached>,
}

impl Ground {
    /// Lays a host and its pods out.
    pub fn lay(way: Way) -> Result<Self> {
        let pods = [Netns::unnamed()?, Netns::unnamed()?];
        let mut ground = Self { way, host: Netns::unnamed()?, pods, wire: None, program: None };
        match way {
            Way::Direct => ground.direct()?,
            Way::Routed | Way::RoutedFollowed | Way::RoutedByRule => ground.routed()?,
            Way::Bridge | Way::BridgeFollowed | Way::Redirect | Way::Knit => ground.bridged()?,
        }
        if !matches!(way, Way::Bridge | Way::Routed | Way::Direct) {
            ground.follow()?;
        }
        if way == Way::Redirect {
            ground.redirect()?;
        }
        if way == Way::Knit {
            ground.program = Some(Attached::new(&ground.host, ["h0", "h1"], &ground.pods, PODS)?);
        }
        ground.wire = Some(Wire::new(&ground.pods[1], &ground.pods[0], PODS[1].into())?);
        Ok(ground)
    }

    pub fn way(&self) -> Way {
        self.way
    }

    /// Whether packets went the way that was meant, where that can be seen.
    pub fn check(&self) -> Result<()> {
        self.program.as_ref().map_or(Ok(()), Attached::check)
    }

    pub fn wire(&self) -> &Wire {
        self.wire.as_ref().expect("a ground that is laid has a wire")
    }

    fn direct(&self) -> Result<()> {
        let far = path_of(&self.pods[1]);
        ip(&self.pods[0], &format!("link add eth0 type veth peer name eth0 netns {far}"))?;
        self.pods.iter().zip(PODS).try_for_each(|(pod, address)| {
            ip(pod, "link set eth0 up")?;
            ip(pod, &format!("addr add {address}/24 dev eth0"))
        })
    }

    fn bridged(&self) -> Result<()> {
        ip(&self.host, "link add br0 type bridge")?;
        ip(&self.host, "link set br0 up")?;
        // The kernel's own default is to show bridged packets to netfilter.
        let shown = if matches!(self.way, Way::BridgeFollowed | Way::Knit) { "1" } else { "0" };
        // A kernel without it never shows them.
        let _ = set(&self.host, "bridge/bridge-nf-call-iptables", shown);
        for (number, (pod, address)) in self.pods.iter().zip(PODS).enumerate() {
            self.veth(number, pod)?;
            ip(&self.host, &format!("link set h{number} master br0 up"))?;
            ip(pod, "link set eth0 up")?;
            ip(pod, &format!("addr add {address}/24 dev eth0"))?;
        }
        Ok(())
    }

    fn routed(&self) -> Result<()> {
        set(&self.host, "ipv4/ip_forward", "1")?;
        for (number, (pod, address)) in self.pods.iter().zip(PODS).enumerate() {
            self.veth(number, pod)?;
            ip(&self.host, &format!("link set h{number} up"))?;
            set(&self.host, &format!("ipv4/conf/h{number}/proxy_arp"), "1")?;
            // Otherwise the host waits up to a second before it answers for another.
            set(&self.host, &format!("ipv4/neigh/h{number}/proxy_delay"), "0")?;
            if self.way == Way::RoutedByRule {
                ip(&self.host, &format!("rule add to {address} lookup {TABLE} priority {TABLE}"))?;
                ip(&self.host, &format!("route add {address}/32 dev h{number} table {TABLE}"))?;
            } else {
                ip(&self.host, &format!("route add {address}/32 dev h{number}"))?;
            }
            ip(pod, "link set eth0 up")?;
            ip(pod, &format!("addr add {address}/32 dev eth0"))?;
            ip(pod, &format!("route add {ROUTER}/32 dev eth0"))?;
            ip(pod, &format!("route add default via {ROUTER} dev eth0"))?;
        }
        // It answers for whom it has a route to by another link.
        ip(&self.host, "link set lo up")?;
        ip(&self.host, "route add default dev lo")
    }

    fn veth(&self, number: usize, pod: &Netns) -> Result<()> {
        let far = path_of(pod);
        ip(&self.host, &format!("link add h{number} type veth peer name eth0 netns {far}"))
    }

    fn follow(&self) -> Result<()> {
        let mut nft = Command::new("nft");
        nft.arg(FOLLOWED);
        self.host.enter(|| process::output(&mut nft))?.map(drop)
    }

    /// Whatever leaves a pod is put into the other one: the least that such a program can do.
    fn redirect(&self) -> Result<()> {
        let folder = tempfile::tempdir().context("no temporary folder")?;
        for (number, other) in [(0, 1), (1, 0)] {
            let index = self.host.enter(|| nix::net::if_::if_nametoindex(format!("h{other}").as_str()))??;
            let object = folder.path().join(format!("{number}.o"));
            compile(&object, index)?;
            tc(&self.host, &format!("qdisc add dev h{number} clsact"))?;
            let object = object.display();
            tc(&self.host, &format!("filter add dev h{number} ingress bpf da obj {object} sec classifier"))?;
        }
        Ok(())
    }
}

/// `bpf_redirect_peer` is helper number 155 of the kernel.
fn compile(object: &Path, index: u32) -> Result<()> {
    let program = format!(
        "define i32 @redirect(ptr %packet) section \"classifier\" {{\n  \
         %verdict = call i64 inttoptr (i64 155 to ptr)(i32 {index}, i64 0)\n  \
         %short = trunc i64 %verdict to i32\n  ret i32 %short\n}}\n"
    );
    let source = object.with_extension("ll");
    std::fs::write(&source, program)?;
    let mut llc = Command::new("llc");
    llc.args(["-opaque-pointers", "-march=bpf", "-filetype=obj", "-o"]).arg(object).arg(&source);
    process::output(&mut llc).map(drop)
}

fn ip(netns: &Netns, words: &str) -> Result<()> {
    run(netns, "ip", words)
}

fn tc(netns: &Netns, words: &str) -> Result<()> {
    run(netns, "tc", words)
}

fn run(netns: &Netns, program: &str, words: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(words.split(' ')).stderr(Stdio::piped());
    netns.enter(|| process::output(&mut command))?.map(drop)
}

/// Sets a sysctl of the namespace; the file is that of whoever opens it.
fn set(netns: &Netns, name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    netns.enter(|| std::fs::write(&path, value))?.with_context(|| format!("cannot set {path}"))
}
