//! Collects the kernel's state with the usual tools, from a thread inside the namespace.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Line, Section, normalize, ruleset};
use crate::Error;

/// Duplicate address detection takes up to two seconds.
const DAD_TIMEOUT: Duration = Duration::from_secs(4);

/// Sysctl folders with one folder per link.
const PER_LINK: &[&str] = &["net/ipv4/conf", "net/ipv6/conf", "net/ipv4/neigh", "net/ipv6/neigh"];

/// Further sysctls that affect a node or a pod. Those that a kernel lacks are left out.
const SINGLE: &[&str] = &[
    "net/ipv4/fib_multipath_hash_policy",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_nonlocal_bind",
    "net/ipv4/ip_unprivileged_port_start",
    "net/ipv4/ping_group_range",
    "net/ipv4/tcp_l3mdev_accept",
    "net/ipv4/udp_l3mdev_accept",
    "net/ipv6/bindv6only",
    "net/ipv6/ip_nonlocal_bind",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
];

/// All sections. Runs on a thread inside the namespace.
pub(super) fn sections(namespace: &str) -> Result<Vec<Section>, Error> {
    let tools = Tools { namespace };
    tools.settle()?;
    let links = tools.json("ip", &["-d", "-j", "link"])?;
    let addresses = tools.json("ip", &["-d", "-j", "address"])?;
    let qdiscs = tools.json("tc", &["-j", "qdisc", "show"])?;
    let mut routes = tools.json("ip", &["-d", "-j", "-4", "route", "show", "table", "all"])?;
    routes.extend(tools.json("ip", &["-d", "-j", "-6", "route", "show", "table", "all"])?);
    let mut rules = normalize::rules("inet", &tools.json("ip", &["-d", "-j", "-4", "rule"])?);
    rules.extend(normalize::rules("inet6", &tools.json("ip", &["-d", "-j", "-6", "rule"])?));
    let mut neighbours = tools.json("ip", &["-j", "neigh", "show", "nud", "permanent"])?;
    neighbours.extend(tools.json("ip", &["-j", "neigh", "show", "proxy"])?);
    let nexthops = tools.json("ip", &["-d", "-j", "nexthop"])?;
    let fdb = tools.json("bridge", &["-j", "fdb", "show"])?;
    Ok(vec![
        Section { title: "links", lines: sorted(normalize::links(&links)) },
        Section { title: "addresses", lines: sorted(normalize::addresses(&addresses)) },
        Section { title: "routes", lines: sorted(normalize::routes(&routes)) },
        Section { title: "rules", lines: rules },
        Section { title: "next hops", lines: sorted(normalize::plain("id", &nexthops)) },
        Section { title: "neighbours", lines: sorted(normalize::plain("dev", &neighbours)) },
        Section { title: "forwarding entries", lines: sorted(normalize::fdb(&fdb)) },
        Section { title: "qdiscs", lines: sorted(normalize::qdiscs(&qdiscs)) },
        Section { title: "filters", lines: tools.filters(&qdiscs)? },
        Section { title: "nftables", lines: ruleset::lines(&tools.text("nft", &["-s", "list", "ruleset"])?) },
        Section { title: "sysctls", lines: sysctls() },
    ])
}

fn sorted(mut lines: Vec<Line>) -> Vec<Line> {
    // A stable sort: each subject's main line stays first.
    lines.sort_by(|a, b| a.subject.cmp(&b.subject));
    lines
}

struct Tools<'a> {
    namespace: &'a str,
}

impl Tools<'_> {
    fn text(&self, program: &str, arguments: &[&str]) -> Result<String, Error> {
        let namespace = self.namespace.to_owned();
        let command = format!("{program} {}", arguments.join(" "));
        let output = match Command::new(program).args(arguments).output() {
            Ok(output) => output,
            Err(source) => return Err(Error::Start { namespace, command, source }),
        };
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Failed { namespace, command, status: output.status, stderr });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The objects of a JSON list; empty output is an empty list.
    fn json(&self, program: &str, arguments: &[&str]) -> Result<Vec<Value>, Error> {
        let text = self.text(program, arguments)?;
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_str(&text).map_err(|source| Error::NotJson {
            namespace: self.namespace.to_owned(),
            command: format!("{program} {}", arguments.join(" ")),
            source,
        })
    }

    /// Waits while an address is under duplicate address detection on a link with carrier.
    fn settle(&self) -> Result<(), Error> {
        let deadline = Instant::now() + DAD_TIMEOUT;
        while Instant::now() < deadline {
            if !normalize::has_unsettled_address(&self.json("ip", &["-d", "-j", "address"])?) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Filters of links with a clsact or ingress qdisc. Their order matters.
    fn filters(&self, qdiscs: &[Value]) -> Result<Vec<Line>, Error> {
        let mut lines = Vec::new();
        for qdisc in qdiscs {
            let (Some(kind), Some(link)) = (qdisc["kind"].as_str(), qdisc["dev"].as_str()) else { continue };
            let directions: &[&str] = match kind {
                "clsact" => &["ingress", "egress"],
                "ingress" => &["ingress"],
                _ => &[],
            };
            for direction in directions {
                let filters = self.json("tc", &["-j", "filter", "show", "dev", link, direction])?;
                lines.extend(normalize::filters(link, direction, &filters));
            }
        }
        Ok(sorted(lines))
    }
}

/// Sysctls that cannot be read (write-only, or unset secrets) are left out.
fn sysctls() -> Vec<Line> {
    let root = Path::new("/proc/sys");
    let mut lines = Vec::new();
    for folder in PER_LINK {
        for link in entries(&root.join(folder)) {
            let subject = format!("{folder}/{link}");
            for key in entries(&root.join(&subject)) {
                lines.extend(sysctl(root, &subject, &format!("{subject}/{key}")));
            }
        }
    }
    for key in SINGLE {
        lines.extend(sysctl(root, key, key));
    }
    lines.sort();
    lines
}

fn sysctl(root: &Path, subject: &str, key: &str) -> Option<Line> {
    let value = fs::read_to_string(root.join(key)).ok()?;
    let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(Line { subject: subject.to_owned(), text: format!("{key} = {value}") })
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
