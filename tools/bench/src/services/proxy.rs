//! The programs that are compared: Knit's agent and kube-proxy, each on a node of its own.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::node::ServiceNode;
use super::objects::Service;
use crate::cleanup::Cleanup;
use knit_dev::process;
use knit_soak::harness::KnitCluster;
use knit_soak::harness::programs::{self, Program};
use knit_testcluster::go_tools::Tool;
use knit_testcluster::node_name;

/// The numbers of the nodes.
pub const KNIT_NODE: u8 = 1;
pub const KUBE_PROXY_NODE: u8 = 2;
/// kube-proxy replaces 0 by its default.
const ALMOST_ZERO: &str = "1ns";
/// How long a program may take until it has programmed all Services.
const PROGRAMMING_TIMEOUT: Duration = Duration::from_secs(300);
/// The timeout of a connection while a Service is awaited. Usually an error is returned at once.
const PROBE_TIMEOUT: Duration = Duration::from_millis(50);
/// The pause between connections while a Service is awaited.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// A program is idle if it used less than this in each of two samples.
const SAMPLE: Duration = Duration::from_secs(1);
const BUSY: Duration = Duration::from_millis(100);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(180);

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Knit's agent with `serviceProxy: knit`.
    Knit,
    /// kube-proxy in nftables mode with its defaults.
    KubeProxy,
    /// The same without a minimum interval between two runs.
    KubeProxyAtOnce,
}

impl Kind {
    /// The start of the names of its rows.
    pub fn label(self) -> &'static str {
        match self {
            Self::Knit => "Knit",
            Self::KubeProxy => "kube-proxy",
            Self::KubeProxyAtOnce => "kube-proxy, minSyncPeriod 0",
        }
    }

    /// The name of a row.
    pub fn row(self, what: &str) -> String {
        format!("{}: {what}", self.label())
    }

    /// The map with an element for each endpoint (Knit), or for each Service (kube-proxy): family, table, name.
    fn map(self) -> [&'static str; 3] {
        match self {
            Self::Knit => ["inet", "knit", "service_backends4"],
            Self::KubeProxy | Self::KubeProxyAtOnce => ["ip", "kube-proxy", "service-ips"],
        }
    }

    /// The least number of elements in that map.
    fn elements(self, services: usize, endpoints: usize) -> usize {
        match self {
            Self::Knit => endpoints,
            Self::KubeProxy | Self::KubeProxyAtOnce => services,
        }
    }
}

/// Starts the programs.
pub struct Proxies<'a> {
    /// The cluster.
    pub knit: &'a KnitCluster,
    /// The directory of Knit's binaries.
    pub binaries: PathBuf,
    /// Ends them on a signal.
    pub cleanup: &'a Cleanup,
}

/// A running program, which ends with this.
pub struct Proxy {
    kind: Kind,
    /// When it was started.
    pub start: Instant,
    child: Arc<Mutex<Child>>,
    pid: i32,
    log: PathBuf,
}

impl Proxies<'_> {
    /// Starts a program, without waiting for it. Must be called from the main thread: the program ends with its parent thread.
    pub fn start(&self, kind: Kind) -> Result<Proxy> {
        let cluster = self.knit.cluster();
        let mut program = Command::new("setpriv");
        program.args(["--pdeathsig", "KILL"]);
        let number = if kind == Kind::Knit { KNIT_NODE } else { KUBE_PROXY_NODE };
        let enter = knit_testcluster::enter(cluster, number)?;
        program.arg(enter.get_program()).args(enter.get_args());
        match kind {
            Kind::Knit => self.add_agent(&mut program),
            Kind::KubeProxy | Kind::KubeProxyAtOnce => self.add_kube_proxy(&mut program, kind)?,
        }
        let log = cluster.folder("logs").join(format!("measured-{}.log", node_name(number)));
        let output = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        program.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let start = Instant::now();
        let child = program.spawn().with_context(|| format!("cannot start `{}`", process::line(&program)))?;
        let pid = child.id().cast_signed();
        let child = Arc::new(Mutex::new(child));
        let to_kill = Arc::clone(&child);
        self.cleanup.defer(move || end(&to_kill));
        Ok(Proxy { kind, start, child, pid, log })
    }

    fn add_agent(&self, program: &mut Command) {
        program.arg(self.binaries.join("knit")).arg("agent");
        program.arg(format!("--node-name={}", node_name(KNIT_NODE)));
        program.arg(format!("--kubeconfig={}", self.knit.cluster().kubeconfig().display()));
        program.args(["--profile=primary", "--state-dir=/var/lib/knit/primary", "--cni-install"]);
        program.args(["--cluster-masquerade", "--cluster-service-proxy=knit"]);
    }

    fn add_kube_proxy(&self, program: &mut Command, kind: Kind) -> Result<()> {
        let cluster = self.knit.cluster();
        let (v4, v6) = cluster.addresses().pods();
        let mut settings = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": cluster.kubeconfig()},
            "hostnameOverride": node_name(KUBE_PROXY_NODE),
            "clusterCIDR": format!("{v4},{v6}"),
            // The conntrack limit is global to the machine.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "oomScoreAdj": 0,
        });
        if kind == Kind::KubeProxyAtOnce {
            settings["nftables"] = json!({"minSyncPeriod": ALMOST_ZERO});
        }
        let config = cluster.node_folder(KUBE_PROXY_NODE, "kube-proxy.json");
        fs::write(&config, serde_json::to_vec_pretty(&settings)?)
            .with_context(|| format!("cannot write {}", config.display()))?;
        program.arg(cluster.tool(Tool::KubeProxy)?).arg(format!("--config={}", config.display()));
        Ok(())
    }

    /// Removes everything that the program of a node has left in nftables.
    pub fn flush(&self, node: u8) -> Result<()> {
        self.knit.on_node(node, &["nft", "flush", "ruleset"]).map(drop)
    }

    /// Fails unless the kernel has this many Services and endpoints.
    pub fn check_elements(&self, proxy: &Proxy, services: usize, endpoints: usize) -> Result<()> {
        let node = if proxy.kind == Kind::Knit { KNIT_NODE } else { KUBE_PROXY_NODE };
        let [family, table, map] = proxy.kind.map();
        let listed = self.knit.on_node(node, &["nft", "-n", "list", "map", family, table, map])?;
        let (found, expected) = (count_elements(&listed), proxy.kind.elements(services, endpoints));
        if found < expected {
            bail!("{}: {found} of {expected} elements in {map}", proxy.kind.label());
        }
        Ok(())
    }
}

impl Proxy {
    /// Waits until a client reaches each of these Services. Returns when it reached the last one.
    pub fn wait_programmed(&self, node: &ServiceNode, probes: &[Service]) -> Result<Instant> {
        let deadline = Instant::now() + PROGRAMMING_TIMEOUT;
        node.client.enter(|| {
            let mut last = Instant::now();
            for probe in probes {
                last = loop {
                    if let Some(answer) = node.connect(probe.destination(), PROBE_TIMEOUT)? {
                        break answer.at;
                    }
                    self.check_running()?;
                    if Instant::now() > deadline {
                        bail!(
                            "{}: no answer of Service {}\n{}",
                            self.kind.label(),
                            probe.name,
                            self.log_tail()
                        );
                    }
                    std::thread::sleep(PROBE_INTERVAL);
                };
            }
            Ok(last)
        })?
    }

    /// Waits until the program is idle.
    pub fn settle(&self) -> Result<()> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let (mut last, mut idle) = (self.usage()?.cpu, 0);
        while idle < 2 {
            std::thread::sleep(SAMPLE);
            let now = self.usage()?.cpu;
            idle = if now - last < BUSY { idle + 1 } else { 0 };
            last = now;
            if Instant::now() > deadline {
                bail!("{} is not idle after {} s", self.kind.label(), SETTLE_TIMEOUT.as_secs());
            }
        }
        Ok(())
    }

    /// Its anonymous memory in MiB.
    pub fn memory(&self) -> Result<f64> {
        Ok(self.usage()?.anonymous)
    }

    fn usage(&self) -> Result<programs::Usage> {
        self.check_running()?;
        let program = Program { role: self.kind.label().to_owned(), instance: String::new(), pid: self.pid };
        programs::usage(&program)
    }

    /// Fails if it has ended.
    pub fn check_running(&self) -> Result<()> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} has ended: {status}\n{}", self.kind.label(), self.log_tail()),
        }
    }

    fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        process::tail(&String::from_utf8_lossy(&text))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        end(&self.child);
    }
}

fn end(child: &Mutex<Child>) {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    // It may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// The number of elements of a map, in the output of `nft list map`: each has a key and a value. So has the map's type.
fn count_elements(listed: &str) -> usize {
    listed.matches(" : ").count().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_map_is_not_an_element() {
        let listed = "table inet knit {\n\tmap m {\n\t\ttype ipv4_addr . inet_service : verdict\n\t\telements = { \
                      10.96.0.1 . 80 : goto a,\n\t\t\t     10.96.0.2 . 80 : goto b }\n\t}\n}\n";
        assert_eq!(count_elements(listed), 2);
        assert_eq!(count_elements(""), 0);
    }
}
