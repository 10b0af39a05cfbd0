//! Kernel modules: which ones the guest contains, and their load order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Loaded before the program starts: the first two for its output; nothing loads the driver of the NICs on demand.
pub const AT_BOOT: &[&str] = &["virtio_pci", "virtio_console", "virtio_net"];

/// The modules in the guest, by purpose. The kernel loads them on demand. A `*` matches anything.
pub const INCLUDED: &[(&str, &[&str])] = &[
    (
        "links on a NIC",
        &["8021q", "ipvlan", "ipvtap", "macvlan", "macvtap", "macsec", "bonding", "team*", "virtio_net"],
    ),
    ("links within a node", &["veth", "dummy", "ifb", "tun", "tap", "nlmon", "vrf"]),
    ("bridges", &["bridge", "br_netfilter", "ebtable*", "llc", "stp"]),
    (
        "tunnels",
        &[
            "wireguard",
            "geneve",
            "vxlan",
            "gre",
            "ip_gre",
            "ip6_gre",
            "ipip",
            "sit",
            "ip_tunnel",
            "ip6_tunnel",
            "ip_vti",
            "ip6_vti",
            "fou",
            "fou6",
            "bareudp",
            "mpls_router",
            "mpls_iptunnel",
            "mpls_gso",
        ],
    ),
    (
        "IPsec",
        &[
            "xfrm_interface",
            "xfrm_user",
            "esp4",
            "esp6",
            "ah4",
            "ah6",
            "authenc",
            "echainiv",
            "seqiv",
            "gcm",
            "ghash*",
            "ctr",
            "aesni_intel",
        ],
    ),
    ("traffic control", &["sch_*", "cls_*", "act_*", "em_*"]),
    ("nftables", &["nf_*", "nfnetlink*", "nft_*"]),
    (
        "iptables",
        &[
            "x_tables",
            "ip_tables",
            "ip6_tables",
            "iptable_*",
            "ip6table_*",
            "xt_*",
            "ipt_*",
            "ip6t_*",
            "ip_set*",
        ],
    ),
    ("services", &["ip_vs*"]),
    (
        "protocols",
        &[
            "sctp",
            "sctp_diag",
            "tcp_*",
            "inet_diag",
            "udp_diag",
            "af_packet_diag",
            "unix_diag",
            "netlink_diag",
        ],
    ),
    ("virtual switches", &["openvswitch", "vport_*", "nsh", "psample"]),
    ("dependencies", &["crc32c*", "libcrc32c", "ts_*"]),
    ("file systems", &["overlay"]),
    ("simulated network cards", &["netdevsim"]),
];

/// The modules of one kernel, from its `modules.dep`.
pub struct Index {
    /// Module to its file, relative to the directory of `modules.dep`.
    files: BTreeMap<String, String>,
    /// Module to its dependencies.
    dependencies: BTreeMap<String, Vec<String>>,
    /// Modules that are built into the kernel.
    builtin: BTreeSet<String>,
}

/// Where a module is.
#[derive(Debug, PartialEq, Eq)]
pub enum Presence {
    /// In these files.
    Loadable(Vec<String>),
    /// Built into the kernel.
    Builtin,
    /// Not in this kernel.
    Absent,
}

impl Index {
    /// Reads the index that `depmod` wrote into a kernel's module directory.
    pub fn read(folder: &Path) -> Result<Self> {
        let text = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Self::parse(&text("modules.dep")?, &text("modules.builtin")?))
    }

    fn parse(dependencies: &str, builtin: &str) -> Self {
        let mut index = Self {
            files: BTreeMap::new(),
            dependencies: BTreeMap::new(),
            builtin: builtin.lines().map(module_name).collect(),
        };
        for (file, required) in dependencies.lines().filter_map(|line| line.split_once(':')) {
            let name = module_name(file);
            index.dependencies.insert(name.clone(), required.split_whitespace().map(module_name).collect());
            index.files.insert(name, file.to_owned());
        }
        index
    }

    /// The file of a module, relative to the module directory.
    pub fn file(&self, module: &str) -> Option<&str> {
        self.files.get(module).map(String::as_str)
    }

    /// The modules that a name or pattern of [`INCLUDED`] matches in this kernel.
    pub fn find(&self, pattern: &str) -> Presence {
        let found: Vec<String> = self.files.keys().filter(|name| matches(pattern, name)).cloned().collect();
        if !found.is_empty() {
            Presence::Loadable(found)
        } else if self.builtin.iter().any(|name| matches(pattern, name)) {
            Presence::Builtin
        } else {
            Presence::Absent
        }
    }

    /// The modules and their dependencies, each after its dependencies.
    /// Fails for a name that this kernel does not have; built-in modules are left out.
    pub fn load_order<'a>(&self, modules: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>> {
        let mut order = Vec::new();
        let mut visited = BTreeSet::new();
        for module in modules {
            self.visit(&module.replace('-', "_"), &mut visited, &mut order)?;
        }
        Ok(order)
    }

    fn visit(&self, module: &str, visited: &mut BTreeSet<String>, order: &mut Vec<String>) -> Result<()> {
        if self.builtin.contains(module) || !visited.insert(module.to_owned()) {
            return Ok(());
        }
        let Some(required) = self.dependencies.get(module) else {
            bail!("the guest's kernel has no module {module} (see `cargo xtask vm modules`)");
        };
        for dependency in required {
            self.visit(dependency, visited, order)?;
        }
        order.push(module.to_owned());
        Ok(())
    }

    /// All modules in the guest, in load order.
    pub fn included(&self) -> Result<Vec<String>> {
        let patterns = INCLUDED.iter().flat_map(|(_, names)| *names).chain(AT_BOOT);
        let found: Vec<String> = patterns
            .filter_map(|pattern| match self.find(pattern) {
                Presence::Loadable(names) => Some(names),
                Presence::Builtin | Presence::Absent => None,
            })
            .flatten()
            .collect();
        self.load_order(found.iter().map(String::as_str))
    }
}

/// A module's name in the kernel: the file name with underscores.
fn module_name(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split(".ko").next().unwrap_or(name).replace('-', "_")
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index() -> Index {
        let dependencies = "kernel/net/llc/llc.ko:\n\
            kernel/net/802/stp.ko: kernel/net/llc/llc.ko\n\
            kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko\n\
            kernel/net/bridge/br_netfilter.ko: kernel/net/bridge/bridge.ko kernel/net/802/stp.ko kernel/net/llc/llc.ko\n\
            kernel/net/sched/sch_fq.ko:\n\
            kernel/net/sched/sch_netem.ko:\n\
            kernel/arch/x86/crypto/crc32c-intel.ko:\n";
        Index::parse(dependencies, "kernel/net/sched/sch_fq_codel.ko\n")
    }

    #[test]
    fn a_module_follows_its_dependencies_and_appears_once() {
        let order = index().load_order(["br_netfilter", "bridge", "stp"]).unwrap();
        assert_eq!(order, ["llc", "stp", "bridge", "br_netfilter"]);
    }

    #[test]
    fn names_may_have_dashes_and_builtin_modules_are_left_out() {
        assert_eq!(index().load_order(["crc32c-intel", "sch_fq_codel"]).unwrap(), ["crc32c_intel"]);
        assert_eq!(index().file("crc32c_intel"), Some("kernel/arch/x86/crypto/crc32c-intel.ko"));
    }

    #[test]
    fn a_missing_module_is_reported() {
        let error = index().load_order(["netdevsim"]).unwrap_err().to_string();
        assert!(error.starts_with("the guest's kernel has no module netdevsim"), "{error}");
    }

    #[test]
    fn patterns_match_files_before_builtin_modules() {
        let index = index();
        assert_eq!(index.find("sch_*"), Presence::Loadable(vec!["sch_fq".into(), "sch_netem".into()]));
        assert_eq!(index.find("sch_fq_codel"), Presence::Builtin);
        assert_eq!(index.find("9p"), Presence::Absent);
    }
}
