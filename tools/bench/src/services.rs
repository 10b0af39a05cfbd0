//! `bench services`: the translation of Services by Knit's agent compared with kube-proxy in nftables mode.
//!
//! One API server with its store, and a node for each program, with a client pod and two backends. On Knit's node the agent is
//! also the pods' network; on the other one Debian's bridge plugin is. No kubelets and controllers run: the benchmark writes
//! Services and EndpointSlices itself. The programs are started as processes of the nodes, and only those that are
//! being measured run.

mod change;
mod connect;
pub mod node;
mod objects;
mod programming;
mod proxy;

use std::fs;
use std::ops::Range;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::attach::{measure, raise_descriptor_limit};
use crate::cleanup::Cleanup;
use crate::cluster_process;
use crate::scale::cluster;
use change::Measurement;
use knit_dev::packages::{self, Purpose};
use knit_report::{MIN_ROUNDS, Report};
use knit_soak::harness::{KnitCluster, wait_until};
use knit_testcluster::go_tools::Module;
use knit_testcluster::{Profile, binaries};
use node::ServiceNode;
use objects::{ENDPOINTS, FILLERS_PER_PROBE, MAX_FILLERS, Service};
use proxy::{KNIT_NODE, KUBE_PROXY_NODE, Kind, Proxies};

/// The cluster's name, distinct from those of other test clusters.
const CLUSTER: &str = "services";
/// How long the agent may take until it has installed the CNI plugin.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `bench services`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of changes of an EndpointSlice for each program; a p99 of fewer than 200 is not meaningful
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(200..))]
    rounds: u32,
    /// A short trial run: 200 Services, few rounds, medians only; also with an unoptimised build
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
}

/// How much is measured.
#[derive(Clone, Debug)]
struct Scale {
    /// The numbers of Services, ascending.
    sizes: &'static [usize],
    /// The one with which programming and changes are measured.
    full: usize,
    /// The number of changes.
    rounds: usize,
    /// The number of handshakes for each path.
    handshakes: usize,
    /// How often all Services are programmed.
    repeats: usize,
    /// The number of measurements of the request rate for each path.
    slices: usize,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether nothing is measured in earnest.
    pub fn is_trial(&self) -> bool {
        self.quick
    }

    fn scale(&self) -> Scale {
        if self.quick {
            let sizes = &[10, 200];
            return Scale { sizes, full: 200, rounds: 10, handshakes: 200, repeats: 1, slices: 2 };
        }
        let (sizes, rounds) = (&[10, 1_000, 10_000, MAX_FILLERS], self.rounds as usize);
        Scale { sizes, full: 10_000, rounds, handshakes: 2_000, repeats: 3, slices: 10 }
    }
}

/// A measured node, and the Services that lead to its pods.
struct Side {
    node: ServiceNode,
    /// Services to wait for: when they answer, all others are programmed as well.
    probes: Vec<Service>,
    /// The Service that handshakes and requests go through.
    connect: Service,
    /// The Service whose endpoint changes.
    change: Service,
}

/// Both nodes.
struct Sides {
    knit: Side,
    kube_proxy: Side,
}

/// Starts the cluster, measures and removes it, also after an error or signal.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Bench, Purpose::Cluster])?;
    raise_descriptor_limit()?;
    let scale = options.scale();
    let cleanup = Cleanup::new()?;
    // A trial with an unoptimised benchmark has an unoptimised agent.
    let profile = if cfg!(debug_assertions) { Profile::Dev } else { Profile::Release };
    let built = binaries::build(profile)?;
    cluster_process::start(CLUSTER, &["--nodes", "2", "--network", "none"], &cleanup)?;
    let knit = KnitCluster::open(CLUSTER)?;
    knit_testcluster::stop_kubelets(knit.cluster())?;
    measure("install Knit's kinds", || cluster::install_kinds(&knit))?;
    objects::create_namespace(&knit)?;
    let binaries = knit_testcluster::copy_binaries(knit.cluster(), &built)?;
    let proxies = Proxies { knit: &knit, binaries, cleanup: &cleanup };
    let mut report = Report::default();
    report.note_machine("at the start")?;
    report.note(format!("kube-proxy {}", Module::Kubernetes.version()?));
    if options.is_trial() {
        report.note("a trial: the numbers are not meaningful".to_owned());
    }
    let mut sides = measure("start the pods", || start_pods(&proxies))?;
    let mut services = 0;
    for size in scale.sizes {
        measure(&format!("create Services up to {size}"), || {
            objects::create(&knit, sides.add_services(services..*size, scale.full))
        })?;
        services = *size;
        if services == scale.full {
            measure_full(&mut report, &proxies, &sides, &scale)?;
        }
        measure(&format!("connections, {services} Services"), || {
            measure_connections(&mut report, &proxies, &sides, &scale, services)
        })?;
    }
    let sizes: Vec<_> = scale.sizes.iter().map(|size| suffix(*size)).collect();
    connect::compare_growth(&mut report, &sizes)?;
    report.note(cluster::control_plane_memory(&knit)?);
    report.note_machine("at the end")?;
    Ok(report)
}

/// Starts the pods. On Knit's node this needs the agent, which is stopped afterwards.
fn start_pods(proxies: &Proxies<'_>) -> Result<Sides> {
    let cluster = proxies.knit.cluster();
    let agent = proxies.start(Kind::Knit)?;
    let installed = cluster.node_folder(KNIT_NODE, "etc/cni/net.d/10-knit.conflist");
    wait_until("the agent installs its CNI plugin", INSTALL_TIMEOUT, || {
        agent.check_running()?;
        Ok(if fs::exists(&installed)? { Ok(()) } else { Err(format!("no {}", installed.display())) })
    })?;
    let knit = Side::start(proxies.knit, KNIT_NODE)?;
    drop(agent);
    knit_testcluster::install_reference_plugins(cluster, KUBE_PROXY_NODE)?;
    Ok(Sides { knit, kube_proxy: Side::start(proxies.knit, KUBE_PROXY_NODE)? })
}

/// Programming and changes, with one program at a time.
fn measure_full(report: &mut Report, proxies: &Proxies<'_>, sides: &Sides, scale: &Scale) -> Result<()> {
    let (full, suffix) = (scale.full, suffix(scale.full));
    measure(&format!("programming of {suffix}"), || {
        programming::measure(report, proxies, sides, scale.repeats, [full, full * ENDPOINTS])
    })?;
    for kind in [Kind::Knit, Kind::KubeProxy, Kind::KubeProxyAtOnce] {
        measure(&format!("changes of an EndpointSlice, {}", kind.label()), || {
            let side = sides.of(kind);
            let proxy = proxies.start(kind)?;
            proxy.wait_programmed(&side.node, &side.probes)?;
            proxy.settle()?;
            let (node, service) = (&side.node, &side.change);
            let measured = Measurement { knit: proxies.knit, kind, node, service, rounds: scale.rounds };
            measured.run(report, &suffix)
        })?;
    }
    change::compare(report, &suffix, scale.rounds >= MIN_ROUNDS)
}

/// Handshakes and requests. Both programs run, idle.
fn measure_connections(
    report: &mut Report,
    proxies: &Proxies<'_>,
    sides: &Sides,
    scale: &Scale,
    services: usize,
) -> Result<()> {
    let mut running = Vec::new();
    for kind in [Kind::Knit, Kind::KubeProxy] {
        let (proxy, side) = (proxies.start(kind)?, sides.of(kind));
        proxy.wait_programmed(&side.node, &side.probes)?;
        proxy.settle()?;
        running.push(proxy);
    }
    connect::handshakes(report, sides, scale.handshakes, &suffix(services))?;
    if services == scale.full {
        connect::requests(report, sides, scale.slices, &suffix(services))?;
    }
    running.iter().try_for_each(|proxy| proxy.check_running())
}

impl Side {
    fn start(knit: &KnitCluster, number: u8) -> Result<Self> {
        let node = ServiceNode::start(knit, number)?;
        let service = |what: &str, index| {
            Service::of_node(format!("{what}-node{number}"), number, index, node.backends[0].endpoint())
        };
        let (connect, change) = (service("connect", 0), service("change", 1));
        Ok(Self { connect, change, probes: Vec::new(), node })
    }

    /// Adds a probe that follows a filler.
    fn add_probe(&mut self, filler: usize) -> Service {
        // Two other Services of the node come first.
        let (number, index) = (self.node.number, self.probes.len() + 2);
        let endpoint = self.node.backends[0].endpoint();
        let probe = Service::of_node(format!("service-{filler:05}-node{number}"), number, index, endpoint);
        self.probes.push(probe.clone());
        probe
    }
}

impl Sides {
    fn of(&self, kind: Kind) -> &Side {
        match kind {
            Kind::Knit => &self.knit,
            Kind::KubeProxy | Kind::KubeProxyAtOnce => &self.kube_proxy,
        }
    }

    /// The next fillers, with probes between them and after the last one; before the first fillers, the Services of the nodes.
    /// From `full` on fillers have one endpoint only.
    fn add_services(&mut self, fillers: Range<usize>, full: usize) -> Vec<Service> {
        let mut all = Vec::new();
        if fillers.start == 0 {
            for side in [&self.knit, &self.kube_proxy] {
                all.extend([side.connect.clone(), side.change.clone()]);
            }
        }
        for number in fillers.clone() {
            all.push(Service::filler(number, if number < full { ENDPOINTS } else { 1 }));
            if (number + 1).is_multiple_of(FILLERS_PER_PROBE) || number + 1 == fillers.end {
                all.extend([&mut self.knit, &mut self.kube_proxy].map(|side| side.add_probe(number)));
            }
        }
        all
    }
}

fn suffix(services: usize) -> String {
    format!("{} Services", thousands(services))
}

/// A number below a million with a separator.
pub fn thousands(number: usize) -> String {
    let text = number.to_string();
    match text.len().checked_sub(3).map(|at| text.split_at(at)) {
        Some((thousands, rest)) if !thousands.is_empty() => format!("{thousands},{rest}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_a_separator() {
        assert_eq!([10, 200, 1_000, 100_000].map(thousands), ["10", "200", "1,000", "100,000"]);
    }
}
