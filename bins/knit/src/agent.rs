//! `knit agent`: the node agent.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use knit_agent::config::{Config, DataPath, Encryption, LogFormat, Profile, ServiceProxy, Transport};
use knit_agent::run::{self, Source};

use crate::node_args::NodeArgs;
use crate::{fault, output};

/// The eBPF object file of the fast path, if it is built in.
#[cfg(feature = "fast-path")]
const FAST_PATH: Option<&[u8]> = Some(knit_ebpf::OBJECT);
#[cfg(not(feature = "fast-path"))]
const FAST_PATH: Option<&[u8]> = None;

/// The flags of the agent. Each flag is also a key of the configuration file and an environment variable.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Configuration file; the agent reloads it when it changes
    #[arg(long, env = "KNIT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration and exit
    #[arg(long)]
    print_config: bool,
    /// Watch a directory with objects instead of an API server; objects from `knit apply` are kept as well
    #[arg(long, env = "KNIT_STANDALONE", value_name = "DIR")]
    standalone: Option<PathBuf>,
    /// Profile [default: standalone]
    #[arg(long, env = "KNIT_PROFILE", value_enum)]
    profile: Option<ProfileArg>,
    /// Kubeconfig file, with `--profile beside` or `primary` [default: the service account of the pod]
    #[arg(long, env = "KNIT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// CRI socket of the container runtime, with `--profile beside` or `primary` [default: that of containerd or CRI-O]
    #[arg(long, env = "KNIT_CRI_SOCKET", value_name = "PATH")]
    cri_socket: Option<PathBuf>,
    /// NRI socket of the container runtime, or `off` [default: /var/run/nri/nri.sock with `--profile beside` or `primary`,
    /// otherwise off]
    #[arg(long, env = "KNIT_NRI_SOCKET", value_name = "PATH")]
    nri_socket: Option<PathBuf>,
    /// Directory of the sysctls, if `/proc/sys` is mounted read-only [default: /proc/sys]
    #[arg(long, env = "KNIT_SYSCTL_DIR", value_name = "DIR")]
    sysctl_dir: Option<PathBuf>,
    /// File for a recording of everything that enters the agent's decisions, for `knit replay`; grows without a limit
    #[arg(long, env = "KNIT_RECORD", value_name = "FILE")]
    record: Option<PathBuf>,
    /// Size of the recording of the last minutes in the state directory, in MiB; 0 disables it [default: 32]
    #[arg(long, env = "KNIT_RECENT_RECORDING_MEGABYTES", value_name = "NUMBER")]
    recent_recording_megabytes: Option<u64>,
    /// Minutes that the recording of the last minutes covers, as far as its size allows [default: 10]
    #[arg(long, env = "KNIT_RECENT_RECORDING_MINUTES", value_name = "NUMBER")]
    recent_recording_minutes: Option<u64>,
    /// Unix socket of the gRPC services [default: /run/knit/kni.sock]
    #[arg(long, env = "KNIT_KNI_SOCKET", value_name = "PATH")]
    kni_socket: Option<PathBuf>,
    /// Unix socket for the CNI plugin [default: cni.sock in the directory of the gRPC socket]
    #[arg(long, env = "KNIT_CNI_SOCKET", value_name = "PATH")]
    cni_socket: Option<PathBuf>,
    /// Directory for network namespaces that the agent creates [default: /run/knit/netns]
    #[arg(long, env = "KNIT_NETNS_DIR", value_name = "DIR")]
    netns_dir: Option<PathBuf>,
    /// Listen address of the metrics endpoint; empty disables it [default: 127.0.0.1:9475]
    #[arg(long, env = "KNIT_METRICS_ADDR", value_name = "ADDRESS")]
    metrics_addr: Option<String>,
    /// Listen address of the health endpoints; empty disables them [default: 127.0.0.1:9476]
    #[arg(long, env = "KNIT_HEALTH_ADDR", value_name = "ADDRESS")]
    health_addr: Option<String>,
    /// Log format [default: text]
    #[arg(long, env = "KNIT_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormatArg>,
    /// Log level: error, warn, info, debug or trace [default: info]
    #[arg(long, env = "KNIT_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
    /// Name of the node in the cluster [default: NODE_NAME, or the host name]
    #[arg(long, env = "KNIT_NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Address ranges of the cluster network [default: 10.75.0.0/16,fd75:6b6e:6974::/64]
    #[arg(long, env = "KNIT_CLUSTER_RANGES", value_name = "PREFIX", value_delimiter = ',')]
    cluster_ranges: Option<Vec<IpNet>>,
    /// Bridge of the cluster network [default: knit0]
    #[arg(long, env = "KNIT_CLUSTER_BRIDGE", value_name = "NAME")]
    cluster_bridge: Option<String>,
    /// Masquerade (SNAT) packets from pods to destinations outside the cluster
    #[arg(long, env = "KNIT_CLUSTER_MASQUERADE", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cluster_masquerade: Option<bool>,
    /// Destination ranges that are excluded from masquerading
    #[arg(long, env = "KNIT_CLUSTER_NO_MASQUERADE_RANGES", value_name = "PREFIX", value_delimiter = ',')]
    cluster_no_masquerade_ranges: Option<Vec<IpNet>>,
    /// MTU of the interfaces of the cluster network [default: 1500, or what the paths to other nodes allow]
    #[arg(long, env = "KNIT_CLUSTER_MTU", value_name = "BYTES")]
    cluster_mtu: Option<u32>,
    /// Transport to pods on other nodes, with `--profile primary` [default: auto]
    #[arg(long, env = "KNIT_CLUSTER_TRANSPORT", value_enum)]
    cluster_transport: Option<TransportArg>,
    /// VXLAN network identifier (VNI) of the overlay [default: 7500]
    #[arg(long, env = "KNIT_CLUSTER_VXLAN_VNI", value_name = "NUMBER")]
    cluster_vxlan_vni: Option<u32>,
    /// VXLAN UDP port of the overlay [default: 7475]
    #[arg(long, env = "KNIT_CLUSTER_VXLAN_PORT", value_name = "PORT")]
    cluster_vxlan_port: Option<u16>,
    /// Encryption of packets between pods on different nodes, with `--profile primary` [default: none]
    #[arg(long, env = "KNIT_CLUSTER_ENCRYPTION", value_enum)]
    cluster_encryption: Option<EncryptionArg>,
    /// WireGuard UDP port [default: 7476]
    #[arg(long, env = "KNIT_CLUSTER_WIREGUARD_PORT", value_name = "PORT")]
    cluster_wireguard_port: Option<u16>,
    /// Drop packets from pods with spoofed source addresses [default: only with `--profile primary`]
    #[arg(long, env = "KNIT_CLUSTER_ANTI_SPOOFING", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cluster_anti_spoofing: Option<bool>,
    /// Enforce NetworkPolicies, with `--profile primary` [default: true]
    #[arg(long, env = "KNIT_CLUSTER_NETWORK_POLICY", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cluster_network_policy: Option<bool>,
    /// What translates the addresses of Services, with `--profile primary` [default: kube-proxy]
    #[arg(long, env = "KNIT_CLUSTER_SERVICE_PROXY", value_enum)]
    cluster_service_proxy: Option<ServiceProxyArg>,
    /// Data path between pods on this node [default: auto]
    #[arg(long, env = "KNIT_CLUSTER_DATA_PATH", value_enum)]
    cluster_data_path: Option<DataPathArg>,
    /// Install the CNI plugin and its configuration, and repair the installation
    #[arg(long, env = "KNIT_CNI_INSTALL", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cni_install: Option<bool>,
    /// CNI plugin directory of the container runtime [default: /opt/cni/bin]
    #[arg(long, env = "KNIT_CNI_BIN_DIR", value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// CNI configuration directory of the container runtime [default: /etc/cni/net.d]
    #[arg(long, env = "KNIT_CNI_CONF_DIR", value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// File name of the CNI configuration [default: 10-knit.conflist]
    #[arg(long, env = "KNIT_CNI_CONF_NAME", value_name = "NAME")]
    cni_conf_name: Option<String>,
    /// CNI plugin to install [default: knit-cni in the directory of this program]
    #[arg(long, env = "KNIT_CNI_SHIM", value_name = "FILE")]
    cni_shim: Option<PathBuf>,
    /// Support NetworkAttachmentDefinitions, with `--profile beside` or `primary`
    #[arg(long, env = "KNIT_NETWORK_ATTACHMENTS_READ", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    network_attachments_read: Option<bool>,
    /// Types of CNI plugins that NetworkAttachmentDefinitions may run [default: none]
    #[arg(long, env = "KNIT_NETWORK_ATTACHMENTS_PLUGINS", value_name = "TYPE", value_delimiter = ',')]
    network_attachments_plugins: Option<Vec<String>>,
    /// Ranges in which networks of tenants may have an address on the node, such as the gateway of a bridge, unless ClusterRanges
    /// lists others; empty opens none [default: 192.168.96.0/19,fd74:6b6e:6974::/48 with `--profile beside` or `primary`,
    /// otherwise every range]
    #[arg(long, env = "KNIT_TENANT_RANGES", value_name = "PREFIX,...")]
    tenant_ranges: Option<RangeList>,
    /// Number of worker threads that apply changes to the kernel [default: 4]
    #[arg(long, env = "KNIT_WORKERS", value_name = "NUMBER")]
    workers: Option<usize>,
    /// Interval of the full comparison with the kernel, in seconds [default: 60]
    #[arg(long, env = "KNIT_RESYNC_SECONDS", value_name = "SECONDS")]
    resync_seconds: Option<u64>,
    /// Interval of the search for deleted sandboxes, in seconds [default: 5]
    #[arg(long, env = "KNIT_SANDBOX_CHECK_SECONDS", value_name = "SECONDS")]
    sandbox_check_seconds: Option<u64>,
}

/// Ranges, separated by commas. There may be none.
#[derive(Clone, Debug)]
struct RangeList(Vec<IpNet>);

impl FromStr for RangeList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ranges = text.split(',').map(str::trim).filter(|range| !range.is_empty());
        let parsed = ranges.map(|range| range.parse().map_err(|why| format!("`{range}`: {why}")));
        parsed.collect::<Result<_, _>>().map(Self)
    }
}

/// The profile of the agent.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ProfileArg {
    /// Without an API server
    Standalone,
    /// Additional networks, next to the primary CNI plugin of the cluster
    Beside,
    /// The primary network of the cluster
    Primary,
}

/// What translates the addresses of Services.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ServiceProxyArg {
    /// kube-proxy, which has to run on the node
    KubeProxy,
    /// The agent; kube-proxy must not run on the node
    Knit,
}

/// The encryption between nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EncryptionArg {
    /// No encryption
    None,
    /// WireGuard tunnels to all other nodes
    Wireguard,
}

/// The transport between nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportArg {
    /// Native routing if the nodes share a link, otherwise VXLAN
    Auto,
    /// Native routing only
    Native,
    /// VXLAN, also if the nodes share a link
    Vxlan,
}

/// The data path between pods on one node.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DataPathArg {
    /// `ebpf` with `--profile primary`, otherwise `bridge`
    Auto,
    /// Linux bridge
    Bridge,
    /// eBPF redirect of TCP between pods if the kernel supports it, and the bridge for other packets
    Ebpf,
}

/// The log format.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormatArg {
    /// Text
    Text,
    /// JSON
    Json,
}

/// Runs the agent, or prints its effective configuration.
pub fn run(node: &NodeArgs, flags: Flags) -> Result<ExitCode> {
    let state_dir = node.explicit_state_dir().map(PathBuf::from);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    // The usual name in manifests, set through the downward API.
    let host = std::env::var("NODE_NAME").ok().or(host);
    let (file, print) = (flags.config.clone(), flags.print_config);
    let overrides = move |config: Config| flags.override_config(config, state_dir.clone(), host.clone());
    let config = file.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
    let config = overrides(config);
    config.check().map_err(anyhow::Error::msg).context("invalid configuration")?;
    if print {
        output::text(&config.to_yaml()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    run::run(Source { config, file, over: Box::new(overrides), program: FAST_PATH }, fault::from_env()?)?;
    Ok(ExitCode::SUCCESS)
}

impl Flags {
    /// The configuration with the overrides from flags and environment.
    fn override_config(
        &self,
        mut config: Config,
        state_dir: Option<PathBuf>,
        host: Option<String>,
    ) -> Config {
        fn set<T: Clone>(field: &mut T, flag: &Option<T>) {
            if let Some(value) = flag {
                field.clone_from(value);
            }
        }
        set(&mut config.state_dir, &state_dir);
        set(&mut config.standalone, &self.standalone);
        set(&mut config.kubeconfig, &self.kubeconfig);
        set(&mut config.cri_socket, &self.cri_socket);
        set(&mut config.nri_socket, &self.nri_socket);
        set(&mut config.sysctl_dir, &self.sysctl_dir);
        set(&mut config.record, &self.record);
        set(&mut config.recent_recording.megabytes, &self.recent_recording_megabytes);
        set(&mut config.recent_recording.minutes, &self.recent_recording_minutes);
        if let Some(profile) = self.profile {
            config.profile = match profile {
                ProfileArg::Standalone => Profile::Standalone,
                ProfileArg::Beside => Profile::Beside,
                ProfileArg::Primary => Profile::Primary,
            };
        }
        set(&mut config.kni_socket, &self.kni_socket);
        set(&mut config.cni_socket, &self.cni_socket);
        set(&mut config.netns_dir, &self.netns_dir);
        set(&mut config.metrics_addr, &self.metrics_addr);
        set(&mut config.health_addr, &self.health_addr);
        set(&mut config.log_level, &self.log_level);
        set(&mut config.node_name, &self.node_name);
        set(&mut config.cluster_network.ranges, &self.cluster_ranges);
        set(&mut config.cluster_network.bridge, &self.cluster_bridge);
        set(&mut config.cluster_network.masquerade, &self.cluster_masquerade);
        set(&mut config.cluster_network.no_masquerade_ranges, &self.cluster_no_masquerade_ranges);
        if self.cluster_mtu.is_some() {
            config.cluster_network.mtu = self.cluster_mtu;
        }
        if let Some(transport) = self.cluster_transport {
            config.cluster_network.transport = match transport {
                TransportArg::Auto => Transport::Auto,
                TransportArg::Native => Transport::Native,
                TransportArg::Vxlan => Transport::Vxlan,
            };
        }
        set(&mut config.cluster_network.vxlan.vni, &self.cluster_vxlan_vni);
        set(&mut config.cluster_network.vxlan.port, &self.cluster_vxlan_port);
        if let Some(encryption) = self.cluster_encryption {
            config.cluster_network.encryption = match encryption {
                EncryptionArg::None => Encryption::None,
                EncryptionArg::Wireguard => Encryption::WireGuard,
            };
        }
        set(&mut config.cluster_network.wireguard.port, &self.cluster_wireguard_port);
        if self.cluster_anti_spoofing.is_some() {
            config.cluster_network.anti_spoofing = self.cluster_anti_spoofing;
        }
        set(&mut config.cluster_network.network_policy, &self.cluster_network_policy);
        if let Some(proxy) = self.cluster_service_proxy {
            config.cluster_network.service_proxy = match proxy {
                ServiceProxyArg::KubeProxy => ServiceProxy::KubeProxy,
                ServiceProxyArg::Knit => ServiceProxy::Knit,
            };
        }
        if let Some(data_path) = self.cluster_data_path {
            config.cluster_network.data_path = match data_path {
                DataPathArg::Auto => DataPath::Auto,
                DataPathArg::Bridge => DataPath::Bridge,
                DataPathArg::Ebpf => DataPath::Ebpf,
            };
        }
        set(&mut config.cni.install, &self.cni_install);
        set(&mut config.cni.bin_dir, &self.cni_bin_dir);
        set(&mut config.cni.conf_dir, &self.cni_conf_dir);
        set(&mut config.cni.conf_name, &self.cni_conf_name);
        set(&mut config.cni.shim, &self.cni_shim);
        set(&mut config.network_attachments.read, &self.network_attachments_read);
        if let Some(plugins) = &self.network_attachments_plugins {
            // An empty environment variable is one empty element.
            let types = plugins.iter().filter(|plugin| !plugin.is_empty());
            config.network_attachments.plugins = types.cloned().collect();
        }
        if let Some(RangeList(ranges)) = &self.tenant_ranges {
            config.tenant_ranges = Some(ranges.clone());
        }
        set(&mut config.workers, &self.workers);
        set(&mut config.resync_seconds, &self.resync_seconds);
        set(&mut config.sandbox_check_seconds, &self.sandbox_check_seconds);
        if let Some(log_format) = self.log_format {
            config.log_format = match log_format {
                LogFormatArg::Text => LogFormat::Text,
                LogFormatArg::Json => LogFormat::Json,
            };
        }
        if config.node_name.is_empty() {
            config.node_name = host.unwrap_or_default();
        }
        config
    }
}
