//! Knit's programs on a cluster, as the kernel sees them: memory, CPU, descriptors.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use knit_testcluster::{self, Cluster};

/// The kernel counts CPU time in these (`USER_HZ`, the same on every machine).
const TICK: Duration = Duration::from_millis(10);

/// One of Knit's programs that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `agent` or `controller`.
    pub role: String,
    /// The node of an agent, the pod of a controller.
    pub place: String,
    /// Its process.
    pub pid: i32,
}

/// What a program has used and uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// CPU time since it began.
    pub cpu: Duration,
    /// Anonymous memory, in MiB.
    pub anonymous: f64,
    /// Open descriptors that are sockets.
    pub sockets: usize,
    /// All other open descriptors.
    pub files: usize,
}

/// Knit's programs on a cluster.
pub fn find(cluster: &Cluster) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for pid in knit_testcluster::processes(cluster)? {
        // A process may end while it is looked at.
        let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let (words, environment) = (read("cmdline"), read("environ"));
        let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let [program, role, ..] = &words[..] else { continue };
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
        let place = variable(if *role == "agent" { "NODE_NAME" } else { "POD_NAME" });
        found.push(Program { role: role.to_string(), place: place.unwrap_or_default(), pid });
    }
    found.sort_by(|one, other| (&one.role, &one.place).cmp(&(&other.role, &other.place)));
    Ok(found)
}

/// What a program uses now.
pub fn usage(program: &Program) -> Result<Usage> {
    let folder = format!("/proc/{}", program.pid);
    let gone = || format!("{} {} has ended", program.role, program.place);
    let stat = fs::read_to_string(format!("{folder}/stat")).with_context(gone)?;
    // Its name, in parentheses, may hold anything; utime and stime are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(") ").with_context(gone)?.1.split(' ').collect();
    let ticks = |place: usize| fields.get(place).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let status = fs::read_to_string(format!("{folder}/status")).with_context(gone)?;
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let anonymous = anonymous.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    let open = fs::read_dir(format!("{folder}/fd")).with_context(gone)?;
    // One may be closed while it is looked at.
    let open: Vec<_> = open.flatten().filter_map(|one| fs::read_link(one.path()).ok()).collect();
    let sockets = open.iter().filter(|target| target.to_string_lossy().starts_with("socket:")).count();
    Ok(Usage {
        cpu: TICK * (ticks(11) + ticks(12)),
        anonymous: anonymous.with_context(gone)? / 1024.0,
        sockets,
        files: open.len() - sockets,
    })
}

/// What each program uses now, by its process.
pub fn all(programs: &[Program]) -> Result<BTreeMap<i32, Usage>> {
    programs.iter().map(|program| Ok((program.pid, usage(program)?))).collect()
}
