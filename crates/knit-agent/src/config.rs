//! The agent's configuration: a file, overridden by flags and environment variables.
//!
//! Every key has a flag of the same name. The file is read again when it changes; an invalid one is rejected with an error and the
//! previous configuration stays in effect.

mod attachments;
mod cluster;
mod recording;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use attachments::AttachmentsConfig;
pub use cluster::{
    ClusterNetworkConfig, DataPath, Encryption, ServiceProxy, Transport, VxlanConfig, WireGuardConfig,
};
use ipnet::IpNet;
use knit_engine::plugin_chain::PluginChain;
use knit_engine::tenant_ranges;
use knit_kernel::redirect::Redirect;
pub use recording::RecentRecordingConfig;
use serde::{Deserialize, Serialize};

use crate::cni::CniConfig;
use crate::daemon::{ClusterNetworkObject, Options};
use crate::error::{Error, Result};
#[cfg(feature = "kubernetes")]
use crate::kubernetes::policies::PolicyEnforcement;
use crate::plugin_chain::CniNetwork;

/// The agent's configuration. `knit agent --print-config` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// The node's name. Default: the machine's host name. Needs a restart.
    pub node_name: String,
    /// The profile: `standalone` without an API server, `beside` another CNI plugin, or `primary` as the cluster network. Needs a
    /// restart.
    pub profile: Profile,
    /// The kubeconfig, for the profiles `beside` and `primary`. Empty: the pod's service account. Needs a restart.
    pub kubeconfig: PathBuf,
    /// The container runtime's socket, for the profiles `beside` and `primary`. Empty: containerd's or CRI-O's. Needs a restart.
    pub cri_socket: PathBuf,
    /// The container runtime's NRI socket, which reports pods before their containers start. Empty: `/var/run/nri/nri.sock` with the
    /// profiles `beside` and `primary`, none with `standalone`. `off`: none. Needs a restart.
    pub nri_socket: PathBuf,
    /// The directory of the kernel's sysctls. In a container `/proc/sys` may be read-only. Needs a restart.
    pub sysctl_dir: PathBuf,
    /// The state directory. Only one agent at a time can use it. Needs a restart.
    pub state_dir: PathBuf,
    /// A file to which the agent writes everything that enters its decisions, for `knit replay`. It grows without a limit. Empty: none.
    /// Needs a restart.
    pub record: PathBuf,
    /// The recording of the last minutes in the state directory, of limited size. Needs a restart.
    pub recent_recording: RecentRecordingConfig,
    /// A watched directory with objects (`.yaml`, `.yml`, `.json`): its objects are applied, and deleted when they are removed from it.
    /// Objects applied by `knit apply` stay. Empty: none. Needs a restart.
    pub standalone: PathBuf,
    /// The unix socket of the gRPC services; mode 0600. Needs a restart.
    pub kni_socket: PathBuf,
    /// The unix socket of the CNI shim; mode 0600. Empty: `cni.sock` in the directory of `kniSocket`. Needs a restart.
    pub cni_socket: PathBuf,
    /// The directory where the agent creates network namespaces on request. Needs a restart.
    pub netns_dir: PathBuf,
    /// The address of `/metrics`, such as `127.0.0.1:9475`. Empty: not served. Needs a restart.
    pub metrics_addr: String,
    /// The address of `/livez`, `/healthz` and `/readyz`, such as `127.0.0.1:9476`. Empty: not served. Needs a restart.
    pub health_addr: String,
    /// The log format: `text` or `json`. Needs a restart.
    pub log_format: LogFormat,
    /// The log level: `error`, `warn`, `info`, `debug` or `trace`. Takes effect at once.
    pub log_level: String,
    /// Installation of the CNI shim and its configuration. Needs a restart.
    pub cni: CniConfig,
    /// Networks implemented by existing CNI plugins, by name: each a configuration list. Needs a restart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cni_networks: BTreeMap<String, CniNetwork>,
    /// NetworkAttachmentDefinitions and the pods that reference them. Needs a restart.
    pub network_attachments: AttachmentsConfig,
    /// The default network of all pods. Changes take effect at once while no pod uses it.
    pub cluster_network: ClusterNetworkConfig,
    /// Ranges in which networks of tenants may have an address on the node, such as the gateway of a bridge, unless ClusterRanges lists
    /// others. Default: 192.168.96.0/19 and fd74:6b6e:6974::/48 with the profiles `beside` and `primary`; every range with `standalone`,
    /// where all objects are root's. Takes effect at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_ranges: Option<Vec<IpNet>>,
    /// Number of threads that change the kernel besides the main one, 1 to 64. Needs a restart.
    pub workers: usize,
    /// Interval in seconds of a full comparison with the kernel; drift is repaired. Needs a restart.
    pub resync_seconds: u64,
    /// Interval in seconds of the check for sandboxes whose namespace is gone. Needs a restart.
    pub sandbox_check_seconds: u64,
}

/// The agent's profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Without an API server.
    #[default]
    Standalone,
    /// In addition to the CNI plugin of a cluster.
    Beside,
    /// As the cluster network: Knit also creates every pod's first interface.
    Primary,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// JSON, one object per line.
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
            record: PathBuf::new(),
            recent_recording: RecentRecordingConfig::default(),
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
            tenant_ranges: None,
            workers: 4,
            resync_seconds: 60,
            sandbox_check_seconds: 5,
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

    /// Fails for a profile that needs cluster support in a program without it.
    fn check_built_in(self, cluster_support: bool) -> Result<(), String> {
        if self.is_in_cluster() && !cluster_support {
            return Err(format!(
                "profile: `{}` needs cluster support, which is not built in: build knit with the Cargo feature `cluster`",
                self.name()
            ));
        }
        Ok(())
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

    /// The effective configuration as YAML.
    pub fn to_yaml(&self) -> Result<String> {
        let effective = Self { tenant_ranges: Some(self.tenant_ranges()), ..self.clone() };
        serde_saphyr::to_string(&effective).map_err(|why| Error::Config {
            path: "the effective configuration".to_owned(),
            why: why.to_string(),
        })
    }

    /// Validates every value.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.workers) {
            return Err(format!("workers: {} is not between 1 and 64", self.workers));
        }
        for (key, value) in
            [("resyncSeconds", self.resync_seconds), ("sandboxCheckSeconds", self.sandbox_check_seconds)]
        {
            if !(1..=86_400).contains(&value) {
                return Err(format!("{key}: {value} is not between 1 and 86400"));
            }
        }
        for (key, address) in [("metricsAddr", &self.metrics_addr), ("healthAddr", &self.health_addr)] {
            if !address.is_empty() && address.parse::<std::net::SocketAddr>().is_err() {
                return Err(format!(
                    "{key}: `{address}` is not an address with a port, such as 127.0.0.1:9475"
                ));
            }
        }
        if self.log_level.parse::<tracing::Level>().is_err() {
            return Err(format!(
                "logLevel: `{}` is not one of error, warn, info, debug, trace",
                self.log_level
            ));
        }
        self.recent_recording.check()?;
        self.cni.check()?;
        for (name, network) in &self.cni_networks {
            network.check(name)?;
        }
        self.network_attachments.check()?;
        let mut ranges = self.tenant_ranges.iter().flatten();
        if let Some(range) = ranges.find(|range| **range != range.trunc()) {
            return Err(format!("tenantRanges: {range} has host bits set: the network is {}", range.trunc()));
        }
        self.profile.check_built_in(cfg!(feature = "kubernetes"))?;
        if self.profile.is_in_cluster() {
            if self.node_name.is_empty() {
                return Err("nodeName: required with the profiles beside and primary".to_owned());
            }
            if !self.standalone.as_os_str().is_empty() {
                return Err(
                    "standalone: a directory of objects cannot be combined with an API server".to_owned()
                );
            }
        }
        self.cluster_network_object().map(|_| ())
    }

    /// The ranges in which networks of tenants may have an address on the node.
    pub fn tenant_ranges(&self) -> Vec<IpNet> {
        match &self.tenant_ranges {
            Some(ranges) => ranges.clone(),
            None if self.profile.is_in_cluster() => tenant_ranges::default_ranges().to_vec(),
            None => tenant_ranges::all_addresses().to_vec(),
        }
    }

    /// The cluster network, if it is enabled.
    pub fn cluster_network_object(&self) -> Result<Option<ClusterNetworkObject>, String> {
        let network = &self.cluster_network;
        // With the profile `beside` another plugin creates every pod's first interface.
        if !network.enabled || self.profile == Profile::Beside {
            return Ok(None);
        }
        network.cluster_network_object().map(Some)
    }

    /// The networks implemented by existing CNI plugins. Reads their configuration lists.
    pub fn chains(&self) -> Result<BTreeMap<String, PluginChain>> {
        let read = |(name, network): (&String, &CniNetwork)| Ok((name.clone(), network.read(name)?));
        self.cni_networks.iter().map(read).collect()
    }

    /// The socket of the CNI shim.
    pub fn cni_socket(&self) -> PathBuf {
        if self.cni_socket.as_os_str().is_empty() {
            return self.kni_socket.with_file_name(knit_kni::frame::SOCKET);
        }
        self.cni_socket.clone()
    }

    /// The container runtime's NRI socket, if NRI is enabled.
    pub fn nri_socket(&self) -> Option<PathBuf> {
        let explicit = &self.nri_socket;
        if explicit.as_os_str().is_empty() {
            return self.profile.is_in_cluster().then(|| knit_nri::SOCKET.into());
        }
        (explicit != Path::new("off")).then(|| explicit.clone())
    }

    /// Whether MultiNetworkPolicies are enforced on additional interfaces of pods.
    pub fn enforces_policies_on_interfaces(&self) -> bool {
        self.network_attachments.policies && self.profile.is_in_cluster()
    }

    /// Where policies are enforced.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn policy_enforcement(&self) -> PolicyEnforcement {
        let is_primary = self.profile == Profile::Primary;
        PolicyEnforcement {
            on_cluster: is_primary && self.cluster_network.network_policy,
            on_interfaces: self.enforces_policies_on_interfaces(),
            has_namespaces: is_primary,
        }
    }

    /// Whether packets between local pods take the eBPF fast path.
    fn uses_fast_path(&self) -> bool {
        match self.cluster_network.data_path {
            DataPath::Auto => self.profile == Profile::Primary,
            DataPath::Bridge => false,
            DataPath::Ebpf => true,
        }
    }

    /// Fails if the configuration requires the fast path and it is not built in.
    fn check_fast_path(&self, program: Option<&[u8]>) -> Result<(), String> {
        if self.cluster_network.data_path == DataPath::Ebpf && program.is_none() {
            return Err(
                "clusterNetwork.dataPath: `ebpf` needs the fast path, which is not built in: build knit with the Cargo feature `fast-path`"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The daemon's options. `program` is the eBPF object file.
    pub fn options(&self, program: Option<&'static [u8]>) -> Result<Options> {
        let invalid = |why| Error::Config { path: "the configuration".to_owned(), why };
        self.check().map_err(invalid)?;
        self.check_fast_path(program).map_err(invalid)?;
        let cluster = self.cluster_network_object().map_err(invalid)?;
        let folder = &self.standalone;
        Ok(Options {
            state_dir: self.state_dir.clone(),
            recent_recording: self.recent_recording.clone(),
            record: (!self.record.as_os_str().is_empty()).then(|| self.record.clone()),
            objects: (!folder.as_os_str().is_empty()).then(|| folder.clone()),
            executors: self.workers,
            sandbox_check_interval: Duration::from_secs(self.sandbox_check_seconds),
            resync_interval: Duration::from_secs(self.resync_seconds),
            cluster,
            tenant_ranges: self.tenant_ranges(),
            chains: self.chains()?,
            allowed_plugins: self.network_attachments.plugins(),
            policies_on_interfaces: self.enforces_policies_on_interfaces(),
            cluster_network_from_api: self.profile == Profile::Primary,
            secrets: self.profile.is_in_cluster().then(Arc::default),
            has_synced: Arc::new(AtomicBool::new(!self.profile.is_in_cluster())),
            redirect: Arc::new(Redirect::new(program.filter(|_| self.uses_fast_path()))),
            executor: None,
        })
    }

    /// Keys that differ and take effect only after a restart.
    pub fn needs_restart(&self, other: &Self) -> Vec<String> {
        let mut now = Self {
            log_level: other.log_level.clone(),
            tenant_ranges: other.tenant_ranges.clone(),
            ..self.clone()
        };
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
    fn an_empty_file_means_valid_defaults() {
        assert_eq!(Config::parse("# nothing\n\n").unwrap(), Config::default());
        Config::default().check().unwrap();
    }

    #[test]
    fn the_printed_configuration_can_be_read_back() {
        for profile in [Profile::Standalone, Profile::Beside, Profile::Primary] {
            let config = Config { profile, ..Config::default() };
            let printed = config.to_yaml().unwrap();
            let tenant_ranges = Some(config.tenant_ranges());
            assert_eq!(Config::parse(&printed).unwrap(), Config { tenant_ranges, ..config });
        }
    }

    #[test]
    fn few_ranges_are_open_to_tenants_of_a_cluster_unless_others_are_configured() {
        let opened = |profile, text: &str| {
            let config = Config { profile, node_name: "a".to_owned(), ..Config::parse(text).unwrap() };
            config.check()?;
            let options = config.options(None).unwrap();
            Ok::<_, String>(options.tenant_ranges.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        for profile in [Profile::Beside, Profile::Primary] {
            let default = opened(profile, "").unwrap();
            assert_eq!(default, ["192.168.96.0/19", "fd74:6b6e:6974::/48"]);
        }
        assert_eq!(opened(Profile::Standalone, "").unwrap(), ["0.0.0.0/0", "::/0"]);
        assert_eq!(opened(Profile::Beside, "tenantRanges: []").unwrap(), [""; 0]);
        assert_eq!(opened(Profile::Beside, "tenantRanges: [10.0.0.0/8]").unwrap(), ["10.0.0.0/8"]);
        assert_eq!(opened(Profile::Standalone, "tenantRanges: [10.0.0.0/8]").unwrap(), ["10.0.0.0/8"]);
        let error = opened(Profile::Beside, "tenantRanges: [10.0.0.1/8]").unwrap_err();
        assert_eq!(error, "tenantRanges: 10.0.0.1/8 has host bits set: the network is 10.0.0.0/8");
    }

    #[test]
    fn profiles_of_a_cluster_need_cluster_support() {
        for profile in [Profile::Beside, Profile::Primary] {
            let why = profile.check_built_in(false).unwrap_err();
            assert!(why.contains(profile.name()) && why.contains("feature `cluster`"), "{why}");
            profile.check_built_in(true).unwrap();
        }
        Profile::Standalone.check_built_in(false).unwrap();
    }

    #[test]
    fn only_an_explicit_ebpf_data_path_needs_the_fast_path() {
        let mut config = Config::default();
        for data_path in [DataPath::Auto, DataPath::Bridge] {
            config.cluster_network.data_path = data_path;
            config.options(None).unwrap();
        }
        config.cluster_network.data_path = DataPath::Ebpf;
        let why = config.options(None).map(|_| ()).unwrap_err().to_string();
        assert!(why.contains("clusterNetwork.dataPath") && why.contains("feature `fast-path`"), "{why}");
        config.options(Some(&[])).unwrap();
    }

    #[test]
    fn errors_name_the_key() {
        for (text, expected) in [
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
            ("{profile: beside, nodeName: a, standalone: /objects}", "cannot be combined"),
        ] {
            let why = Config::parse(text).unwrap().check().unwrap_err();
            assert!(why.contains(expected), "{text}: {why}");
        }
        assert!(Config::parse("typo: 1\n").unwrap_err().contains("typo"));
        assert!(Config::parse("clusterNetwork: {transport: geneve}\n").unwrap_err().contains("geneve"));
        assert!(Config::parse("clusterNetwork: {encryption: ipsec}\n").unwrap_err().contains("ipsec"));
        let encrypted = Config::parse("clusterNetwork: {encryption: wireguard}\n").unwrap();
        assert_eq!(encrypted.cluster_network.encryption, Encryption::WireGuard);
    }

    #[test]
    fn only_dynamic_keys_take_effect_without_a_restart() {
        let old = Config::default();
        let new = Config { log_level: "debug".to_owned(), workers: 9, ..Config::default() };
        assert_eq!(old.needs_restart(&new), ["workers"]);
        // With the profile `primary` the cluster network depends on the Nodes; its configuration is read only at the start.
        let old = Config { profile: Profile::Primary, ..Config::default() };
        let mut new = old.clone();
        new.cluster_network.masquerade = true;
        assert_eq!(old.needs_restart(&new), ["clusterNetwork"]);
        // The eBPF program is loaded only at the start.
        let mut new = Config::default();
        new.cluster_network.masquerade = true;
        assert_eq!(Config::default().needs_restart(&new), [""; 0]);
        new.cluster_network.data_path = DataPath::Ebpf;
        assert_eq!(Config::default().needs_restart(&new), ["clusterNetwork"]);
    }

    #[test]
    fn nri_is_enabled_in_a_cluster_or_by_an_explicit_socket() {
        let socket = |profile, nri_socket: &str| {
            Config { profile, nri_socket: nri_socket.into(), ..Config::default() }.nri_socket()
        };
        assert_eq!(socket(Profile::Beside, ""), Some("/var/run/nri/nri.sock".into()));
        assert_eq!(socket(Profile::Standalone, ""), None);
        assert_eq!(socket(Profile::Standalone, "/run/x.sock"), Some("/run/x.sock".into()));
        assert_eq!(socket(Profile::Primary, "off"), None);
    }

    #[test]
    fn the_fast_path_is_enabled_in_a_cluster_or_explicitly() {
        let direct = |profile, data_path| {
            let cluster_network = ClusterNetworkConfig { data_path, ..ClusterNetworkConfig::default() };
            Config { profile, cluster_network, ..Config::default() }.uses_fast_path()
        };
        assert!(direct(Profile::Primary, DataPath::Auto) && !direct(Profile::Standalone, DataPath::Auto));
        assert!(!direct(Profile::Primary, DataPath::Bridge) && direct(Profile::Standalone, DataPath::Ebpf));
    }
}
