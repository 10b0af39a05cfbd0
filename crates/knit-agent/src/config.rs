//! The agent's configuration: a file, over it what flags and environment say.
//!
//! Every key has a flag of the same name. A file is read again when it changes; one with a mistake is refused in words and
//! the old one stays.

mod attachments;
mod cluster;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use attachments::AttachmentsConfig;
pub use cluster::{ClusterNetworkConfig, DataPath, Encryption, Transport, VxlanConfig, WireGuardConfig};
use knit_engine::chain::Chain;
use knit_kernel::redirect::Redirect;
use serde::{Deserialize, Serialize};

use crate::chain::CniNetwork;
use crate::cni::CniConfig;
use crate::daemon::{Cluster, Options};
use crate::error::{Error, Result};

/// What the agent is told. `knit agent --print-config` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// The node's name. Default: the machine's host name. Needs a restart.
    pub node_name: String,
    /// How it runs: `standalone` without an API server, `beside` the CNI plugin of a cluster, or `primary` as the cluster's
    /// network. Needs a restart.
    pub profile: Profile,
    /// The kubeconfig, for the profiles `beside` and `primary`. Empty: the pod's service account. Needs a restart.
    pub kubeconfig: PathBuf,
    /// The container runtime's socket, for the profiles `beside` and `primary`. Empty: containerd's or CRI-O's. Needs a restart.
    pub cri_socket: PathBuf,
    /// Where the container runtime tells of pods before their containers start (NRI). Empty: `/var/run/nri/nri.sock` with the
    /// profiles `beside` and `primary`, nowhere with `standalone`. `off`: nowhere. Needs a restart.
    pub nri_socket: PathBuf,
    /// Where the kernel's sysctls are. In a container `/proc/sys` can only be read. Needs a restart.
    pub sysctl_dir: PathBuf,
    /// The folder that holds what the agent knows. One agent at a time works in it. Needs a restart.
    pub state_dir: PathBuf,
    /// A folder with objects (`.yaml`, `.yml`, `.json`) that is watched: what is in it is applied, what is no longer in it
    /// is deleted; what a person applied by hand stays. No API server is needed. Empty: no folder. Needs a restart.
    pub standalone: PathBuf,
    /// The unix socket of the gRPC services; mode 0600. Needs a restart.
    pub kni_socket: PathBuf,
    /// The unix socket of the CNI shim; mode 0600. Empty: `cni.sock` beside `kniSocket`. Needs a restart.
    pub cni_socket: PathBuf,
    /// The folder where the agent makes network namespaces for whoever asks for them. Needs a restart.
    pub netns_dir: PathBuf,
    /// Where metrics are served at `/metrics`, such as `127.0.0.1:9475`. Empty: nowhere. Needs a restart.
    pub metrics_addr: String,
    /// Where `/livez`, `/healthz` and `/readyz` are served, such as `127.0.0.1:9476`. Empty: nowhere. Needs a restart.
    pub health_addr: String,
    /// How log lines look: `text` for people, `json` for programs. Needs a restart.
    pub log_format: LogFormat,
    /// Which log lines are written: `error`, `warn`, `info`, `debug` or `trace`. Changes at once.
    pub log_level: String,
    /// The CNI shim and its configuration on the node's disk. Needs a restart.
    pub cni: CniConfig,
    /// Networks that existing CNI plugins make, by name: each a configuration list. Needs a restart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cni_networks: BTreeMap<String, CniNetwork>,
    /// NetworkAttachmentDefinitions and the pods that name them. Needs a restart.
    pub network_attachments: AttachmentsConfig,
    /// The network that every pod is on unless it says otherwise. Changes at once as long as no pod is on it.
    pub cluster_network: ClusterNetworkConfig,
    /// How many threads change the kernel beside the main one, 1 to 64. Needs a restart.
    pub workers: usize,
    /// How often everything is compared with the kernel, in seconds; what someone changed by hand is repaired. Needs a
    /// restart.
    pub resync_seconds: u64,
    /// How often sandboxes are looked for whose namespace is gone, in seconds. Needs a restart.
    pub census_seconds: u64,
}

/// How the agent runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Without an API server.
    #[default]
    Standalone,
    /// Next to the CNI plugin of a cluster.
    Beside,
    /// As the network of a cluster: every pod's first interface is Knit's, too.
    Primary,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            profile: Profile::Standalone,
            kubeconfig: PathBuf::new(),
            cri_socket: PathBuf::new(),
            nri_socket: PathBuf::new(),
            sysctl_dir: "/proc/sys".into(),
            state_dir: "/var/lib/knit/standalone".into(),
            standalone: PathBuf::new(),
            kni_socket: knit_kni::DEFAULT_SOCKET.into(),
            cni_socket: PathBuf::new(),
            netns_dir: "/run/knit/netns".into(),
            metrics_addr: "127.0.0.1:9475".to_owned(),
            health_addr: "127.0.0.1:9476".to_owned(),
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            cni: CniConfig::default(),
            cni_networks: BTreeMap::new(),
            network_attachments: AttachmentsConfig::default(),
            cluster_network: ClusterNetworkConfig::default(),
            workers: 4,
            resync_seconds: 60,
            census_seconds: 5,
        }
    }
}

impl Profile {
    /// The profile's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Beside => "beside",
            Self::Primary => "primary",
        }
    }

    /// Whether objects and pods come from an API server.
    pub fn is_in_cluster(self) -> bool {
        self != Self::Standalone
    }
}

impl Config {
    /// Reads a file. An empty one is all defaults.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::File { path: path.display().to_string(), source })?;
        Self::parse(&text).map_err(|why| Error::Config { path: path.display().to_string(), why })
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|why| why.to_string())
    }

    /// The configuration as a file would have it.
    pub fn to_yaml(&self) -> Result<String> {
        serde_saphyr::to_string(self).map_err(|why| Error::Config {
            path: "the effective configuration".to_owned(),
            why: why.to_string(),
        })
    }

    /// Checks every value.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.workers) {
            return Err(format!("workers: {} is not between 1 and 64", self.workers));
        }
        for (key, value) in [("resyncSeconds", self.resync_seconds), ("censusSeconds", self.census_seconds)] {
            if !(1..=86_400).contains(&value) {
                return Err(format!("{key}: {value} is not between 1 and 86400"));
            }
        }
        for (key, address) in [("metricsAddr", &self.metrics_addr), ("healthAddr", &self.health_addr)] {
            if !address.is_empty() && address.parse::<std::net::SocketAddr>().is_err() {
                return Err(format!("{key}: `{address}` is no address with a port, such as 127.0.0.1:9475"));
            }
        }
        if self.log_level.parse::<tracing::Level>().is_err() {
            return Err(format!(
                "logLevel: `{}` is none of error, warn, info, debug and trace",
                self.log_level
            ));
        }
        self.cni.check()?;
        for (name, network) in &self.cni_networks {
            network.check(name)?;
        }
        self.network_attachments.check()?;
        if self.profile.is_in_cluster() {
            if self.node_name.is_empty() {
                return Err("nodeName: the node's name in the cluster is needed".to_owned());
            }
            if !self.standalone.as_os_str().is_empty() {
                return Err(
                    "standalone: objects come from a folder or from an API server, not from both".to_owned()
                );
            }
        }
        self.cluster().map(|_| ())
    }

    /// The cluster's network, if there is one.
    pub fn cluster(&self) -> Result<Option<Cluster>, String> {
        let network = &self.cluster_network;
        // Beside another network, no pod's first interface is Knit's to give.
        if !network.enabled || self.profile == Profile::Beside {
            return Ok(None);
        }
        network.cluster().map(Some)
    }

    /// The networks that existing CNI plugins make. Reads their configuration lists.
    pub fn chains(&self) -> Result<BTreeMap<String, Chain>> {
        let read = |(name, network): (&String, &CniNetwork)| Ok((name.clone(), network.read(name)?));
        self.cni_networks.iter().map(read).collect()
    }

    /// Where the CNI shim asks.
    pub fn cni_socket(&self) -> PathBuf {
        if self.cni_socket.as_os_str().is_empty() {
            return self.kni_socket.with_file_name(knit_kni::frame::SOCKET);
        }
        self.cni_socket.clone()
    }

    /// Where the container runtime tells of pods before their containers start, if it is to be asked.
    pub fn nri_socket(&self) -> Option<PathBuf> {
        let said = &self.nri_socket;
        if said.as_os_str().is_empty() {
            return self.profile.is_in_cluster().then(|| knit_nri::SOCKET.into());
        }
        (said != Path::new("off")).then(|| said.clone())
    }

    /// Whether packets between pods of this node should go past the bridge.
    fn is_direct(&self) -> bool {
        match self.cluster_network.data_path {
            DataPath::Auto => self.profile == Profile::Primary,
            DataPath::Bridge => false,
            DataPath::Ebpf => true,
        }
    }

    /// How the daemon works. `program` is the object file of the eBPF program.
    pub fn options(&self, program: Option<&'static [u8]>) -> Result<Options> {
        self.check().map_err(|why| Error::Config { path: "the configuration".to_owned(), why })?;
        let cluster =
            self.cluster().map_err(|why| Error::Config { path: "the configuration".to_owned(), why })?;
        let folder = &self.standalone;
        Ok(Options {
            state_dir: self.state_dir.clone(),
            objects: (!folder.as_os_str().is_empty()).then(|| folder.clone()),
            hands: self.workers,
            census: Duration::from_secs(self.census_seconds),
            resync: Duration::from_secs(self.resync_seconds),
            cluster,
            chains: self.chains()?,
            is_cluster_told: self.profile == Profile::Primary,
            secrets: self.profile.is_in_cluster().then(Arc::default),
            heard_all: Arc::new(AtomicBool::new(!self.profile.is_in_cluster())),
            redirect: Arc::new(Redirect::new(program.filter(|_| self.is_direct()))),
        })
    }

    /// Keys that differ and take effect only with a restart.
    pub fn needs_restart(&self, other: &Self) -> Vec<String> {
        let mut now = Self { log_level: other.log_level.clone(), ..self.clone() };
        if self.profile != Profile::Primary {
            let data_path = self.cluster_network.data_path;
            now.cluster_network = ClusterNetworkConfig { data_path, ..other.cluster_network.clone() };
        }
        let as_map = |config: &Self| match serde_json::to_value(config) {
            Ok(serde_json::Value::Object(map)) => map,
            _ => serde_json::Map::new(),
        };
        let (now, other) = (as_map(&now), as_map(other));
        other.into_iter().filter(|(key, value)| now.get(key) != Some(value)).map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_all_defaults_and_they_are_good() {
        assert_eq!(Config::parse("# nothing\n\n").unwrap(), Config::default());
        Config::default().check().unwrap();
    }

    #[test]
    fn what_is_printed_can_be_read() {
        let printed = Config::default().to_yaml().unwrap();
        assert_eq!(Config::parse(&printed).unwrap(), Config::default());
    }

    #[test]
    fn mistakes_are_named_with_their_key() {
        for (text, word) in [
            ("clusterNetwork:\n  ranges: [10.75.0.1/16]\n", "10.75.0.0/16"),
            ("clusterNetwork:\n  ranges: [10.75.0.0/16, 10.75.1.0/24]\n", "overlaps"),
            ("clusterNetwork:\n  bridge: much-too-long-for-a-bridge\n", "clusterNetwork.bridge"),
            ("clusterNetwork:\n  vxlan: {vni: 16777216}\n", "clusterNetwork.vxlan.vni"),
            ("clusterNetwork:\n  vxlan: {port: 0}\n", "clusterNetwork.vxlan.port"),
            ("clusterNetwork:\n  wireguard: {port: 0}\n", "clusterNetwork.wireguard.port"),
            ("workers: 0\n", "workers"),
            ("healthAddr: nowhere\n", "healthAddr"),
            ("logLevel: loud\n", "logLevel"),
            ("cni:\n  confName: knit.txt\n", "cni.confName"),
            ("profile: beside\n", "nodeName"),
            ("{profile: beside, nodeName: a, standalone: /objects}", "not from both"),
        ] {
            let why = Config::parse(text).unwrap().check().unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        assert!(Config::parse("typo: 1\n").unwrap_err().contains("typo"));
        assert!(Config::parse("clusterNetwork: {transport: geneve}\n").unwrap_err().contains("geneve"));
        assert!(Config::parse("clusterNetwork: {encryption: ipsec}\n").unwrap_err().contains("ipsec"));
        let encrypted = Config::parse("clusterNetwork: {encryption: wireguard}\n").unwrap();
        assert_eq!(encrypted.cluster_network.encryption, Encryption::WireGuard);
    }

    #[test]
    fn only_what_changes_at_once_does_without_a_restart() {
        let old = Config::default();
        let new = Config { log_level: "debug".to_owned(), workers: 9, ..Config::default() };
        assert_eq!(old.needs_restart(&new), ["workers"]);
        // Where the nodes say what the cluster's network is, the rest of it is read at the start.
        let old = Config { profile: Profile::Primary, ..Config::default() };
        let mut new = old.clone();
        new.cluster_network.masquerade = true;
        assert_eq!(old.needs_restart(&new), ["clusterNetwork"]);
        // The eBPF program is loaded once.
        let mut new = Config::default();
        new.cluster_network.masquerade = true;
        assert_eq!(Config::default().needs_restart(&new), [""; 0]);
        new.cluster_network.data_path = DataPath::Ebpf;
        assert_eq!(Config::default().needs_restart(&new), ["clusterNetwork"]);
    }

    #[test]
    fn the_runtime_is_asked_for_pods_in_a_cluster_or_where_it_is_said() {
        let socket = |profile, nri_socket: &str| {
            Config { profile, nri_socket: nri_socket.into(), ..Config::default() }.nri_socket()
        };
        assert_eq!(socket(Profile::Beside, ""), Some("/var/run/nri/nri.sock".into()));
        assert_eq!(socket(Profile::Standalone, ""), None);
        assert_eq!(socket(Profile::Standalone, "/run/x.sock"), Some("/run/x.sock".into()));
        assert_eq!(socket(Profile::Primary, "off"), None);
    }

    #[test]
    fn packets_go_past_the_bridge_in_a_cluster_or_where_it_is_said() {
        let direct = |profile, data_path| {
            let cluster_network = ClusterNetworkConfig { data_path, ..ClusterNetworkConfig::default() };
            Config { profile, cluster_network, ..Config::default() }.is_direct()
        };
        assert!(direct(Profile::Primary, DataPath::Auto) && !direct(Profile::Standalone, DataPath::Auto));
        assert!(!direct(Profile::Primary, DataPath::Bridge) && direct(Profile::Standalone, DataPath::Ebpf));
    }
}
