//! `knit agent`: the node's daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use knit_agent::config::{Config, DataPath, Encryption, LogFormat, Profile, Transport};
use knit_agent::run::{self, Source};

use crate::place::Place;
use crate::{fault, output};

/// What the agent is told. Each flag is also a key of the configuration file, and an environment variable.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// A configuration file; it is read again when it changes
    #[arg(long, env = "KNIT_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the effective configuration, and do nothing else
    #[arg(long)]
    print_config: bool,
    /// Watch a folder with objects instead of an API server; what `knit apply` applies stays beside it
    #[arg(long, env = "KNIT_STANDALONE", value_name = "DIR")]
    standalone: Option<PathBuf>,
    /// How the agent runs [default: standalone]
    #[arg(long, env = "KNIT_PROFILE", value_enum)]
    profile: Option<Kind>,
    /// The kubeconfig, with `--profile beside` or `primary` [default: the pod's service account]
    #[arg(long, env = "KNIT_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The container runtime's socket, with `--profile beside` or `primary` [default: containerd's or CRI-O's]
    #[arg(long, env = "KNIT_CRI_SOCKET", value_name = "PATH")]
    cri_socket: Option<PathBuf>,
    /// Where the container runtime tells of pods before their containers start, or `off` [default: /var/run/nri/nri.sock with
    /// `--profile beside` or `primary`, otherwise nowhere]
    #[arg(long, env = "KNIT_NRI_SOCKET", value_name = "PATH")]
    nri_socket: Option<PathBuf>,
    /// Where the kernel's sysctls are, if `/proc/sys` can only be read [default: /proc/sys]
    #[arg(long, env = "KNIT_SYSCTL_DIR", value_name = "DIR")]
    sysctl_dir: Option<PathBuf>,
    /// The unix socket of the gRPC services [default: /run/knit/kni.sock]
    #[arg(long, env = "KNIT_KNI_SOCKET", value_name = "PATH")]
    kni_socket: Option<PathBuf>,
    /// The unix socket of the CNI shim [default: cni.sock beside the gRPC socket]
    #[arg(long, env = "KNIT_CNI_SOCKET", value_name = "PATH")]
    cni_socket: Option<PathBuf>,
    /// The folder where the agent makes network namespaces [default: /run/knit/netns]
    #[arg(long, env = "KNIT_NETNS_DIR", value_name = "DIR")]
    netns_dir: Option<PathBuf>,
    /// Where metrics are served; empty for nowhere [default: 127.0.0.1:9475]
    #[arg(long, env = "KNIT_METRICS_ADDR", value_name = "ADDRESS")]
    metrics_addr: Option<String>,
    /// Where health is served; empty for nowhere [default: 127.0.0.1:9476]
    #[arg(long, env = "KNIT_HEALTH_ADDR", value_name = "ADDRESS")]
    health_addr: Option<String>,
    /// How log lines look [default: text]
    #[arg(long, env = "KNIT_LOG_FORMAT", value_enum)]
    log_format: Option<Form>,
    /// Which log lines are written: error, warn, info, debug or trace [default: info]
    #[arg(long, env = "KNIT_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
    /// The node's name, as the cluster knows it [default: NODE_NAME, or the machine's host name]
    #[arg(long, env = "KNIT_NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// The cluster network's ranges [default: 10.75.0.0/16,fd75:6b6e:6974::/64]
    #[arg(long, env = "KNIT_CLUSTER_RANGES", value_name = "PREFIX", value_delimiter = ',')]
    cluster_ranges: Option<Vec<ipnet::IpNet>>,
    /// The cluster network's bridge [default: knit0]
    #[arg(long, env = "KNIT_CLUSTER_BRIDGE", value_name = "NAME")]
    cluster_bridge: Option<String>,
    /// Pods have their node's address outside of the cluster
    #[arg(long, env = "KNIT_CLUSTER_MASQUERADE", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cluster_masquerade: Option<bool>,
    /// Ranges that pods reach with their own address all the same
    #[arg(long, env = "KNIT_CLUSTER_INSIDE", value_name = "PREFIX", value_delimiter = ',')]
    cluster_inside: Option<Vec<ipnet::IpNet>>,
    /// The MTU of the cluster network's interfaces [default: 1500, or what the ways to other nodes have room for]
    #[arg(long, env = "KNIT_CLUSTER_MTU", value_name = "BYTES")]
    cluster_mtu: Option<u32>,
    /// How pods of other nodes are reached, with `--profile primary` [default: auto]
    #[arg(long, env = "KNIT_CLUSTER_TRANSPORT", value_enum)]
    cluster_transport: Option<Way>,
    /// The number of the VXLAN between nodes [default: 7500]
    #[arg(long, env = "KNIT_CLUSTER_VXLAN_VNI", value_name = "NUMBER")]
    cluster_vxlan_vni: Option<u32>,
    /// The UDP port of the VXLAN between nodes [default: 7475]
    #[arg(long, env = "KNIT_CLUSTER_VXLAN_PORT", value_name = "PORT")]
    cluster_vxlan_port: Option<u16>,
    /// Whether packets between pods of different nodes are encrypted, with `--profile primary` [default: none]
    #[arg(long, env = "KNIT_CLUSTER_ENCRYPTION", value_enum)]
    cluster_encryption: Option<Cipher>,
    /// The UDP port of WireGuard between nodes [default: 7476]
    #[arg(long, env = "KNIT_CLUSTER_WIREGUARD_PORT", value_name = "PORT")]
    cluster_wireguard_port: Option<u16>,
    /// Drop what pods send in the name of others [default: only with the profile primary]
    #[arg(long, env = "KNIT_CLUSTER_ANTI_SPOOFING", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cluster_anti_spoofing: Option<bool>,
    /// How packets between pods of this node go [default: auto]
    #[arg(long, env = "KNIT_CLUSTER_DATA_PATH", value_enum)]
    cluster_data_path: Option<Between>,
    /// Install the CNI shim and its configuration, and keep them
    #[arg(long, env = "KNIT_CNI_INSTALL", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    cni_install: Option<bool>,
    /// Where container runtimes look for CNI plugins [default: /opt/cni/bin]
    #[arg(long, env = "KNIT_CNI_BIN_DIR", value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,
    /// Where container runtimes look for CNI configurations [default: /etc/cni/net.d]
    #[arg(long, env = "KNIT_CNI_CONF_DIR", value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// The file name of the CNI configuration [default: 10-knit.conflist]
    #[arg(long, env = "KNIT_CNI_CONF_NAME", value_name = "NAME")]
    cni_conf_name: Option<String>,
    /// The CNI shim to install [default: knit-cni beside this program]
    #[arg(long, env = "KNIT_CNI_SHIM", value_name = "FILE")]
    cni_shim: Option<PathBuf>,
    /// Read NetworkAttachmentDefinitions, and the pods that name them, with `--profile beside` or `primary`
    #[arg(long, env = "KNIT_NETWORK_ATTACHMENTS_READ", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    network_attachments_read: Option<bool>,
    /// CNI plugins that may be run for NetworkAttachmentDefinitions, by their types [default: none]
    #[arg(long, env = "KNIT_NETWORK_ATTACHMENTS_PLUGINS", value_name = "TYPE", value_delimiter = ',')]
    network_attachments_plugins: Option<Vec<String>>,
    /// How many threads change the kernel beside the main one [default: 4]
    #[arg(long, env = "KNIT_WORKERS", value_name = "NUMBER")]
    workers: Option<usize>,
    /// How often everything is compared with the kernel, in seconds [default: 60]
    #[arg(long, env = "KNIT_RESYNC_SECONDS", value_name = "SECONDS")]
    resync_seconds: Option<u64>,
    /// How often sandboxes are looked for that are gone, in seconds [default: 5]
    #[arg(long, env = "KNIT_CENSUS_SECONDS", value_name = "SECONDS")]
    census_seconds: Option<u64>,
}

/// How the agent runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// Without an API server
    Standalone,
    /// Next to the CNI plugin of a cluster
    Beside,
    /// As the network of a cluster
    Primary,
}

/// Whether packets between nodes are encrypted.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cipher {
    /// They are not
    None,
    /// By WireGuard, to all other nodes
    Wireguard,
}

/// How pods of other nodes are reached.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// By a route where the two nodes share a link, by a tunnel where they do not
    Auto,
    /// By a route, or not at all
    Native,
    /// By a tunnel, also where the two nodes share a link
    Vxlan,
}

/// How packets between pods of one node go.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Between {
    /// As with `ebpf` with the profile primary, otherwise as with `bridge`
    Auto,
    /// Over the bridge
    Bridge,
    /// TCP from pod to pod by an eBPF program where the kernel has what it takes, everything else over the bridge
    Ebpf,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Runs the agent, or prints what it would be told.
pub fn run(place: &Place, flags: Flags) -> Result<ExitCode> {
    let state_dir = place.named().map(PathBuf::from);
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    // As manifests usually call it.
    let host = std::env::var("NODE_NAME").ok().or(host);
    let (file, print) = (flags.config.clone(), flags.print_config);
    let over = move |config: Config| flags.over(config, state_dir.clone(), host.clone());
    let config = file.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
    let config = over(config);
    config.check().map_err(anyhow::Error::msg).context("the configuration cannot be used")?;
    if print {
        output::text(&config.to_yaml()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    run::run(Source { config, file, over: Box::new(over), program: knit_ebpf::OBJECT }, fault::asked_for()?)?;
    Ok(ExitCode::SUCCESS)
}

impl Flags {
    /// The configuration with what flags and environment say put over it.
    fn over(&self, mut config: Config, state_dir: Option<PathBuf>, host: Option<String>) -> Config {
        fn set<T: Clone>(to: &mut T, said: &Option<T>) {
            if let Some(said) = said {
                to.clone_from(said);
            }
        }
        set(&mut config.state_dir, &state_dir);
        set(&mut config.standalone, &self.standalone);
        set(&mut config.kubeconfig, &self.kubeconfig);
        set(&mut config.cri_socket, &self.cri_socket);
        set(&mut config.nri_socket, &self.nri_socket);
        set(&mut config.sysctl_dir, &self.sysctl_dir);
        if let Some(profile) = self.profile {
            config.profile = match profile {
                Kind::Standalone => Profile::Standalone,
                Kind::Beside => Profile::Beside,
                Kind::Primary => Profile::Primary,
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
        set(&mut config.cluster_network.inside, &self.cluster_inside);
        if self.cluster_mtu.is_some() {
            config.cluster_network.mtu = self.cluster_mtu;
        }
        if let Some(transport) = self.cluster_transport {
            config.cluster_network.transport = match transport {
                Way::Auto => Transport::Auto,
                Way::Native => Transport::Native,
                Way::Vxlan => Transport::Vxlan,
            };
        }
        set(&mut config.cluster_network.vxlan.vni, &self.cluster_vxlan_vni);
        set(&mut config.cluster_network.vxlan.port, &self.cluster_vxlan_port);
        if let Some(encryption) = self.cluster_encryption {
            config.cluster_network.encryption = match encryption {
                Cipher::None => Encryption::None,
                Cipher::Wireguard => Encryption::WireGuard,
            };
        }
        set(&mut config.cluster_network.wireguard.port, &self.cluster_wireguard_port);
        if self.cluster_anti_spoofing.is_some() {
            config.cluster_network.anti_spoofing = self.cluster_anti_spoofing;
        }
        if let Some(data_path) = self.cluster_data_path {
            config.cluster_network.data_path = match data_path {
                Between::Auto => DataPath::Auto,
                Between::Bridge => DataPath::Bridge,
                Between::Ebpf => DataPath::Ebpf,
            };
        }
        set(&mut config.cni.install, &self.cni_install);
        set(&mut config.cni.bin_dir, &self.cni_bin_dir);
        set(&mut config.cni.conf_dir, &self.cni_conf_dir);
        set(&mut config.cni.conf_name, &self.cni_conf_name);
        set(&mut config.cni.shim, &self.cni_shim);
        set(&mut config.network_attachments.read, &self.network_attachments_read);
        if let Some(plugins) = &self.network_attachments_plugins {
            // An empty variable names none.
            let named = plugins.iter().filter(|plugin| !plugin.is_empty());
            config.network_attachments.plugins = named.cloned().collect();
        }
        set(&mut config.workers, &self.workers);
        set(&mut config.resync_seconds, &self.resync_seconds);
        set(&mut config.census_seconds, &self.census_seconds);
        if let Some(form) = self.log_format {
            config.log_format = match form {
                Form::Text => LogFormat::Text,
                Form::Json => LogFormat::Json,
            };
        }
        if config.node_name.is_empty() {
            config.node_name = host.unwrap_or_default();
        }
        config
    }
}
