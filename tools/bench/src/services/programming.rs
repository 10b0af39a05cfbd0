//! From the start of a program on a node without rules to the last Service.
//!
//! All Services are in the API server already. One Service in a hundred, spread over the others by name and by age, leads to a pod;
//! a client connects to them in turn until all have answered. Then the elements in the kernel are counted.

use anyhow::Result;

use super::proxy::{Kind, Proxies};
use super::{Sides, suffix, thousands};
use knit_report::{Goal, Report, Samples};

/// The goals: the time compared with kube-proxy's, and the agent's memory in MiB.
const GOAL: Goal = Goal::AtMost(0.2);
const MAX_MEMORY_MIB: f64 = 100.0;
const KINDS: [Kind; 2] = [Kind::Knit, Kind::KubeProxy];

/// Measures both in turn. No program runs.
pub fn measure(
    report: &mut Report,
    proxies: &Proxies<'_>,
    sides: &Sides,
    repeats: usize,
    [services, endpoints]: [usize; 2],
) -> Result<()> {
    let [mut knit, mut kube_proxy] = [const { Samples::new() }; 2];
    let mut memory = [0.0; 2];
    for _ in 0..repeats {
        for (index, samples) in [&mut knit, &mut kube_proxy].into_iter().enumerate() {
            let kind = KINDS[index];
            let side = sides.of(kind);
            proxies.flush(side.node.number)?;
            let proxy = proxies.start(kind)?;
            let last = proxy.wait_programmed(&side.node, &side.probes)?;
            proxies.check_elements(&proxy, services, endpoints)?;
            samples.add_warm(last - proxy.start);
            proxy.settle()?;
            memory[index] = proxy.memory()?;
        }
    }
    let what = format!("start to {} with {} endpoints", suffix(services), thousands(endpoints));
    let [row, other] = KINDS.map(|kind| kind.row(&what));
    report.add_median(&row, &knit)?;
    report.add_median(&other, &kube_proxy)?;
    report.compare(&row, &other, Some(GOAL))?;
    for (kind, memory) in KINDS.into_iter().zip(memory) {
        let limit = (kind == Kind::Knit).then_some(MAX_MEMORY_MIB);
        report.add_value(&kind.row(&format!("RssAnon, {}", suffix(services))), memory, "MiB", limit);
    }
    Ok(())
}
