//! A host namespace with two pods, connected in one of the compared topologies.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use knit_kernel::Netns;

use super::program::AttachedProgram;
use crate::kni::path_of;
use crate::tcp::TcpPath;
use knit_dev::process;

/// The addresses of the pods.
const PODS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];
/// The pods' next hop in routed topologies: no link has this address.
const ROUTER: &str = "169.254.1.1";
/// A routing table in addition to the main one, and the priority of the rules for it.
const TABLE: u32 = 7500;
/// Rules with conntrack and NAT hooks, as kube-proxy creates them.
const CONNTRACK_RULES: &str = "table inet measured {
    chain prerouting { type nat hook prerouting priority dstnat; }
    chain forward { type filter hook forward priority filter; ct state new counter; }
    chain postrouting { type nat hook postrouting priority srcnat; }
}";

/// How packets are forwarded between the pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyKind {
    /// Both are ports of a bridge without netfilter.
    Bridge,
    /// The same with `br_netfilter` and conntrack.
    BridgeConntrack,
    /// The host has a route to each pod and uses proxy ARP.
    Routed,
    /// The same with conntrack.
    RoutedConntrack,
    /// The same, with the routes in a separate table and a rule before the main table for each pod.
    RoutedByRule,
    /// An eBPF program at the host end of a pod's veth redirects packets into the other pod; the host has conntrack, which does
    /// not see these packets.
    Redirect,
    /// Knit's eBPF program, which looks up addresses and connections, at both ports of a bridge with netfilter.
    Knit,
    /// One veth pair with a pod at each end.
    Direct,
}

impl TopologyKind {
    pub const ALL: [Self; 8] = [
        Self::Bridge,
        Self::BridgeConntrack,
        Self::Routed,
        Self::RoutedConntrack,
        Self::RoutedByRule,
        Self::Redirect,
        Self::Knit,
        Self::Direct,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::BridgeConntrack => "bridge with conntrack",
            Self::Routed => "routed veth",
            Self::RoutedConntrack => "routed veth with conntrack",
            Self::RoutedByRule => "routed veth by rule with conntrack",
            Self::Redirect => "eBPF redirect to the peer with conntrack",
            Self::Knit => "Knit's eBPF program with conntrack",
            Self::Direct => "one veth pair, pod to pod",
        }
    }

    /// Whether it needs tools that a machine may lack.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::Redirect | Self::Knit)
    }
}

/// A host and two pods, removed when dropped.
pub struct Topology {
    kind: TopologyKind,
    host: Netns,
    pods: [Netns; 2],
    tcp: Option<TcpPath>,
    program: Option<AttachedProgram>,
}

impl Topology {
    /// Creates the host and its pods.
    pub fn create(kind: TopologyKind) -> Result<Self> {
        let pods = [Netns::unnamed()?, Netns::unnamed()?];
        let mut topology = Self { kind, host: Netns::unnamed()?, pods, tcp: None, program: None };
        match kind {
            TopologyKind::Direct => topology.direct()?,
            TopologyKind::Routed | TopologyKind::RoutedConntrack | TopologyKind::RoutedByRule => {
                topology.routed()?
            }
            TopologyKind::Bridge
            | TopologyKind::BridgeConntrack
            | TopologyKind::Redirect
            | TopologyKind::Knit => topology.bridged()?,
        }
        if !matches!(kind, TopologyKind::Bridge | TopologyKind::Routed | TopologyKind::Direct) {
            topology.enable_conntrack()?;
        }
        if kind == TopologyKind::Redirect {
            topology.redirect()?;
        }
        if kind == TopologyKind::Knit {
            topology.program =
                Some(AttachedProgram::new(&topology.host, ["h0", "h1"], &topology.pods, PODS)?);
        }
        topology.tcp = Some(TcpPath::new(&topology.pods[1], &topology.pods[0], PODS[1].into())?);
        Ok(topology)
    }

    pub fn kind(&self) -> TopologyKind {
        self.kind
    }

    /// Checks that packets took the expected path, where that can be observed.
    pub fn check(&self) -> Result<()> {
        self.program.as_ref().map_or(Ok(()), AttachedProgram::check)
    }

    pub fn tcp(&self) -> &TcpPath {
        self.tcp.as_ref().expect("`create` sets it")
    }

    fn direct(&self) -> Result<()> {
        let peer = path_of(&self.pods[1]);
        ip(&self.pods[0], &format!("link add eth0 type veth peer name eth0 netns {peer}"))?;
        self.pods.iter().zip(PODS).try_for_each(|(pod, address)| {
            ip(pod, "link set eth0 up")?;
            ip(pod, &format!("addr add {address}/24 dev eth0"))
        })
    }

    fn bridged(&self) -> Result<()> {
        ip(&self.host, "link add br0 type bridge")?;
        ip(&self.host, "link set br0 up")?;
        // By default the kernel passes bridged packets to netfilter.
        let value =
            if matches!(self.kind, TopologyKind::BridgeConntrack | TopologyKind::Knit) { "1" } else { "0" };
        // A kernel without this sysctl never does.
        let _ = set(&self.host, "bridge/bridge-nf-call-iptables", value);
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
            // By default proxy ARP delays its replies by up to a second.
            set(&self.host, &format!("ipv4/neigh/h{number}/proxy_delay"), "0")?;
            if self.kind == TopologyKind::RoutedByRule {
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
        // Proxy ARP needs a route to the requested address by another link.
        ip(&self.host, "link set lo up")?;
        ip(&self.host, "route add default dev lo")
    }

    fn veth(&self, number: usize, pod: &Netns) -> Result<()> {
        let peer = path_of(pod);
        ip(&self.host, &format!("link add h{number} type veth peer name eth0 netns {peer}"))
    }

    fn enable_conntrack(&self) -> Result<()> {
        let mut nft = Command::new("nft");
        nft.arg(CONNTRACK_RULES);
        self.host.enter(|| process::output(&mut nft))?.map(drop)
    }

    /// Redirects every packet of a pod into the other one: the minimum of such a program.
    fn redirect(&self) -> Result<()> {
        let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
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

/// `bpf_redirect_peer` is helper 155 of the kernel.
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

fn ip(netns: &Netns, args: &str) -> Result<()> {
    run(netns, "ip", args)
}

fn tc(netns: &Netns, args: &str) -> Result<()> {
    run(netns, "tc", args)
}

fn run(netns: &Netns, program: &str, args: &str) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args.split(' ')).stderr(Stdio::piped());
    netns.enter(|| process::output(&mut command))?.map(drop)
}

/// Sets a sysctl of the namespace, which is that of the thread that opens the file.
fn set(netns: &Netns, name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{name}");
    netns.enter(|| std::fs::write(&path, value))?.with_context(|| format!("cannot set {path}"))
}
