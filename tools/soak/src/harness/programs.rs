//! Knit's processes on a cluster and the memory, CPU time and file descriptors that they use.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use knit_testcluster::{self, Cluster};

/// The unit of CPU time in `/proc` (`USER_HZ`, the same on every machine).
const TICK: Duration = Duration::from_millis(10);

/// A running Knit process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `agent` or `controller`.
    pub role: String,
    /// The node of an agent, the pod of a controller.
    pub instance: String,
    /// The process id.
    pub pid: i32,
}

/// Resource usage of a process.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time since its start.
    pub cpu: Duration,
    /// Anonymous memory, in MiB.
    pub anonymous: f64,
    /// Open descriptors that are sockets.
    pub sockets: usize,
    /// All other open descriptors.
    pub files: usize,
}

/// Knit's processes on a cluster.
pub fn find(cluster: &Cluster) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for pid in knit_testcluster::processes(cluster)? {
        // A process may end between these reads.
        let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let (args, environment) = (read("cmdline"), read("environ"));
        let args: Vec<_> = args.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let [program, role, ..] = &args[..] else { continue };
        let is_knit = program.ends_with("knit") && ["agent", "controller"].contains(&&**role);
        if !is_knit {
            continue;
        }
        let variable = |name: &str| {
            let mut all = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy);
            all.find_map(|one| {
                one.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')).map(str::to_owned)
            })
        };
        let instance = variable(if *role == "agent" { "NODE_NAME" } else { "POD_NAME" });
        found.push(Program { role: role.to_string(), instance: instance.unwrap_or_default(), pid });
    }
    found.sort_by(|one, other| (&one.role, &one.instance).cmp(&(&other.role, &other.instance)));
    Ok(found)
}

/// The current usage of a process.
pub fn usage(program: &Program) -> Result<Usage> {
    let folder = format!("/proc/{}", program.pid);
    let gone = || format!("{} {} has ended", program.role, program.instance);
    let stat = fs::read_to_string(format!("{folder}/stat")).with_context(gone)?;
    // The process name in parentheses may contain anything; utime and stime are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(") ").with_context(gone)?.1.split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let status = fs::read_to_string(format!("{folder}/status")).with_context(gone)?;
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let anonymous = anonymous.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let open = fs::read_dir(format!("{folder}/fd")).with_context(gone)?;
    // A descriptor may be closed between these reads.
    let open: Vec<_> = open.flatten().filter_map(|one| fs::read_link(one.path()).ok()).collect();
    let sockets = open.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count();
    Ok(Usage {
        cpu: TICK * (ticks(11) + ticks(12)),
        anonymous: anonymous.with_context(gone)? / 1024.0,
        sockets,
        files: open.len() - sockets,
    })
}

/// The current usage of each process, by PID.
pub fn usage_by_pid(programs: &[Program]) -> Result<BTreeMap<i32, Usage>> {
    programs.iter().map(|program| Ok((program.pid, usage(program)?))).collect()
}
