//! `bench fleet`: many agents against one API server.
//!
//! The API server and its store are real. The agents run in one process: their clients, watches, event loops, journals and status writers
//! are those of the product; kernel and container runtime are simulated. Pods, and objects for some of them, come, change and go; then
//! everything is repeated beside foreign nodes, pods and objects.

mod driver;
mod hollow_proxy;
mod load;
pub mod pod_watch;
mod pod_watch_rows;
pub mod process;
mod protocol;
mod requests;
mod simulated_kernel;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::attach::{measure, raise_descriptor_limit};
use crate::cleanup::Cleanup;
use crate::cluster_process;
use crate::scale::changes::{self, MIX};
use crate::scale::manifests::{Create, Load};
use crate::scale::{api, cluster};
use driver::{Fleet, Usage};
use knit_dev::packages::{self, Purpose};
use knit_report::{Report, Samples};
use knit_soak::harness::KnitCluster;
use load::Step;
use protocol::FleetPod;
use requests::Requests;

/// The cluster's name, distinct from those of other test clusters.
const CLUSTER: &str = "fleet";
/// How long CPU time is measured while the agents are idle.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Foreign changes per second, and for how long.
const CHANGE_RATE: u32 = 20;
const CHANGE_TIME: Duration = Duration::from_secs(10);
/// Foreign pods and nodes for each foreign object.
const PODS_PER_OBJECT: usize = 2;
const OBJECTS_PER_NODE: usize = 5;

const KIB: f64 = 1024.0;

/// Arguments of `bench fleet`.
#[derive(Args)]
pub struct Options {
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Number of agents; a tenth and two fifths of them are measured first
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(10..=1_000))]
    agents: u16,
    /// Number of pods of each agent's node
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=250))]
    pods: u16,
    /// Number of Knit's objects in foreign namespaces, with twice as many foreign pods and a fifth as many nodes
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=40_000))]
    foreign: u32,
    /// How often objects are created, changed and deleted
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
}

impl Options {
    /// Whether rows are printed as JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    fn load(&self) -> Load {
        let objects = self.foreign as usize;
        Load { nodes: objects.div_ceil(OBJECTS_PER_NODE), pods: objects * PODS_PER_OBJECT, objects }
    }

    /// The numbers of agents: the smaller ones first.
    fn sizes(&self) -> [usize; 3] {
        let agents = usize::from(self.agents);
        [agents / 10, agents * 2 / 5, agents]
    }
}

/// One measured fleet.
struct Round<'a> {
    knit: &'a KnitCluster,
    cleanup: &'a Cleanup,
    agents: usize,
    pods: usize,
    rounds: usize,
    /// The end of the rows' names.
    suffix: String,
}

/// Starts the cluster, measures and removes it, also after an error or signal.
pub fn run(options: &Options) -> Result<Report> {
    packages::ensure(&[Purpose::Cluster])?;
    raise_descriptor_limit()?;
    let cleanup = Cleanup::new()?;
    let mut report = Report::default();
    cluster_process::start(CLUSTER, &["--nodes", "1", "--network", "none"], &cleanup)?;
    let knit = KnitCluster::open(CLUSTER)?;
    // A kubelet and the controllers would be further clients, and would evict pods of nodes without a kubelet.
    knit_testcluster::stop_kubelets(knit.cluster())?;
    measure("install Knit's kinds", || install(&knit))?;
    report.note_machine("at the start")?;
    let (mut nodes, load) = (0, options.load());
    let round = |agents: usize, suffix: String| Round {
        knit: &knit,
        cleanup: &cleanup,
        agents,
        pods: options.pods.into(),
        rounds: options.rounds.into(),
        suffix,
    };
    for agents in options.sizes() {
        create(&knit, "nodes", agents - nodes, move |number| load::create_node(nodes + number))?;
        nodes = agents;
        round(agents, format!("{agents} agents")).run(&mut report, None)?;
    }
    report.note(format!("{}; {}", cluster::add_nodes(&knit, load)?, cluster::fill(&knit, load)?));
    let agents = options.sizes()[1];
    let foreign = format!("{agents} agents, {} foreign objects", load.objects);
    round(agents, foreign).run(&mut report, Some(load))?;
    pod_watch_rows::run(&mut report, &knit, load, &cleanup)?;
    hollow_proxy::run(&mut report, &knit, load, &cleanup)?;
    report.note(cluster::control_plane_memory(&knit)?);
    report.note_machine("at the end")?;
    compare(&mut report, options)?;
    Ok(report)
}

/// Installs the definitions of Knit's kinds, and the namespace of the pods.
fn install(knit: &KnitCluster) -> Result<()> {
    cluster::install_kinds(knit)?;
    // The ServiceAccount needs its namespace.
    create(knit, "namespace", 1, load::create_namespace)?;
    create(knit, "service account", 1, |_| load::create_namespace(1))
}

fn create(
    knit: &KnitCluster,
    what: &str,
    number: usize,
    object: impl Fn(usize) -> Create + Send + Sync + 'static,
) -> Result<()> {
    api::create_all(knit, what, number, object).map(drop)
}

impl Round<'_> {
    fn name(&self, what: &str) -> String {
        format!("{what}, {}", self.suffix)
    }

    /// Adds a value per agent.
    fn per_agent(&self, report: &mut Report, what: &str, total: f64, unit: &'static str) {
        report.add_value(&self.name(what), total / self.agents as f64, unit, None);
    }

    /// Measures a fleet from its start to its end.
    fn run(&self, report: &mut Report, load: Option<Load>) -> Result<()> {
        let mut fleet = Fleet::start(self.knit, self.cleanup)?;
        measure(&self.name("start of the agents"), || self.start(report, &mut fleet))?;
        let pods = measure(&self.name("pods start"), || self.start_pods(report, &mut fleet))?;
        measure(&self.name("objects come, change and go"), || self.objects(report, &mut fleet, &pods))?;
        measure(&self.name("agents are idle"), || self.idle(report, &mut fleet))?;
        if let Some(load) = load {
            measure(&self.name("foreign changes"), || self.changes(report, &mut fleet, load))?;
        }
        measure(&self.name("pods end"), || self.stop_pods(report, &mut fleet, &pods))
    }

    fn start(&self, report: &mut Report, fleet: &mut Fleet) -> Result<()> {
        let (empty, requests) = (fleet.process.settle(0)?, Requests::count(self.knit)?);
        fleet.start_agents((0..self.agents).map(load::node).collect())?;
        let started = fleet.process.settle(self.agents)?;
        let requests = Requests::count(self.knit)?.since(requests);
        let all = requests.reads + requests.writes + requests.events;
        self.per_agent(report, "start: API requests of an agent", all, "requests");
        let received = (started.received - empty.received) as f64 / KIB;
        self.per_agent(report, "start: received by an agent", received, "KiB");
        self.per_agent(report, "start: CPU of an agent", milliseconds(started.cpu - empty.cpu), "ms");
        self.per_agent(report, "RssAnon of an agent without pods", started.memory - empty.memory, "MiB");
        report.add_value(&self.name("RssAnon of the process without agents"), empty.memory, "MiB", None);
        Ok(())
    }

    fn start_pods(&self, report: &mut Report, fleet: &mut Fleet) -> Result<Vec<FleetPod>> {
        let before = self.state(fleet)?;
        let pods = load::create_pods(self.knit, self.agents, self.pods)?;
        let addresses = fleet.start_pods(pods.clone())?;
        load::report_running(self.knit, &pods, &addresses)?;
        let after = self.state(fleet)?;
        self.per_pod(report, "start", &before, &after);
        let memory = after.usage.memory - before.usage.memory;
        report.add_value(&self.name("RssAnon of a pod"), memory * KIB / pods.len() as f64, "KiB", None);
        Ok(pods)
    }

    fn stop_pods(&self, report: &mut Report, fleet: &mut Fleet, pods: &[FleetPod]) -> Result<()> {
        let before = self.state(fleet)?;
        fleet.stop_pods(pods.iter().map(|pod| pod.uid.clone()).collect())?;
        load::delete_pods(self.knit, pods)?;
        let after = self.state(fleet)?;
        self.per_pod(report, "end", &before, &after);
        Ok(())
    }

    /// Rows of what the start or the end of a pod costs.
    fn per_pod(&self, report: &mut Report, what: &str, before: &State, after: &State) {
        let pods = (self.agents * self.pods) as f64;
        let requests = after.requests.since(before.requests);
        let (usage, old) = (&after.usage, &before.usage);
        let mut add = |value: &str, total: f64, unit| {
            report.add_value(&self.name(&format!("{what} of a pod: {value}")), total / pods, unit, None);
        };
        add("API writes", requests.writes, "requests");
        add("Events", requests.events, "requests");
        add("API reads", requests.reads, "requests");
        add("received", (usage.received - old.received) as f64 / KIB, "KiB");
        add("sent", (usage.sent - old.sent) as f64 / KIB, "KiB");
        let kernel = milliseconds(after.kernel_time - before.kernel_time);
        add("CPU without the simulated kernel", milliseconds(usage.cpu - old.cpu) - kernel, "ms");
        add("CPU of the simulated kernel", kernel, "ms");
    }

    /// Creates, changes and deletes objects that select one pod on each node.
    fn objects(&self, report: &mut Report, fleet: &mut Fleet, pods: &[FleetPod]) -> Result<()> {
        let selected: Vec<&FleetPod> = pods.iter().filter(|pod| pod.is_selected()).collect();
        let [mut created, mut changed, mut deleted] = [const { Samples::new() }; 3];
        for _ in 0..self.rounds {
            let steps =
                [(&mut created, Step::Create), (&mut changed, Step::Change), (&mut deleted, Step::Delete)];
            for (samples, step) in steps {
                let sent = load::step_objects(self.knit, self.agents, step)?;
                let start =
                    |pod: &&FleetPod| Some((pod.uid.clone(), *sent.get(&load::object_of(pod.agent))?));
                let starts = selected.iter().filter_map(start).collect();
                fleet.wait_applied(&starts)?.into_iter().for_each(|time| samples.add_warm(time));
                // The next step starts without the status writes of this one.
                fleet.process.settle(self.agents)?;
            }
        }
        report.add_times(&self.name("object created to applied"), &created)?;
        report.add_times(&self.name("object changed to applied"), &changed)?;
        report.add_times(&self.name("object deleted to removed"), &deleted)
    }

    fn idle(&self, report: &mut Report, fleet: &mut Fleet) -> Result<()> {
        let before = fleet.process.usage()?;
        std::thread::sleep(IDLE_TIME);
        let after = fleet.process.usage()?;
        self.per_agent(report, "idle: CPU of an agent", cpu_percent(before, after), "% of a core");
        let received = (after.received - before.received) as f64 / (after.at - before.at).as_secs_f64();
        self.per_agent(report, "idle: received by an agent", received, "B/s");
        Ok(())
    }

    /// Changes of foreign Pods, objects and Nodes.
    fn changes(&self, report: &mut Report, fleet: &mut Fleet, load: Load) -> Result<()> {
        let before = fleet.process.settle(self.agents)?;
        let (number, _) = changes::run(self.knit, load, &MIX, CHANGE_RATE, 0, CHANGE_TIME)?;
        let after = fleet.process.settle(self.agents)?;
        let each = |total: f64| total / number as f64;
        let received = (after.received - before.received) as f64 / KIB;
        self.per_agent(report, "foreign change: received by an agent", each(received), "KiB");
        let cpu = milliseconds(after.cpu - before.cpu);
        self.per_agent(report, "foreign change: CPU of an agent", each(cpu), "ms");
        Ok(())
    }

    /// What was used and requested so far, once the agents are idle.
    fn state(&self, fleet: &mut Fleet) -> Result<State> {
        let usage = fleet.process.settle(self.agents)?;
        Ok(State { usage, kernel_time: fleet.kernel_time()?, requests: Requests::count(self.knit)? })
    }
}

struct State {
    usage: Usage,
    kernel_time: Duration,
    requests: Requests,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn cpu_percent(before: Usage, after: Usage) -> f64 {
    100.0 * (after.cpu - before.cpu).as_secs_f64() / (after.at - before.at).as_secs_f64()
}

/// Compares the fleets with the smallest one, and foreign objects with none.
fn compare(report: &mut Report, options: &Options) -> Result<()> {
    let [small, middle, large] = options.sizes().map(|agents| format!("{agents} agents"));
    let foreign = format!("{middle}, {} foreign objects", options.foreign);
    let rows = [
        "start: received by an agent",
        "start: CPU of an agent",
        "RssAnon of an agent without pods",
        "start of a pod: API writes",
        "start of a pod: received",
        "start of a pod: CPU without the simulated kernel",
    ];
    for (fleet, against) in [(&middle, &small), (&large, &small), (&foreign, &middle)] {
        for row in rows {
            report.compare_value(&format!("{row}, {fleet}"), &format!("{row}, {against}"), None)?;
        }
        for row in ["object created to applied", "object changed to applied", "object deleted to removed"] {
            report.compare(&format!("{row}, {fleet}"), &format!("{row}, {against}"), None)?;
        }
    }
    Ok(())
}
