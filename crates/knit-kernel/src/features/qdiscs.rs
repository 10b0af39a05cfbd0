//! Probes of queueing disciplines.

use nix::errno::Errno;

use super::Area;
use super::probe::{Finding, Probe, ProbeRun::Scratch as InScratch};
use super::scratch::Scratch;
use crate::netlink::Message;
use crate::netlink::constants::*;
use crate::netlink::header::TrafficHeader;

const fn queue(
    name: &'static str,
    title: &'static str,
    config: &'static str,
    run: fn(&mut Scratch) -> Finding,
) -> Probe {
    Probe::new(name, title, Area::Shaping, config, InScratch(run))
}

pub const PROBES: &[Probe] = &[
    queue("tbf", "the token bucket filter (tbf)", "CONFIG_NET_SCH_TBF", |scratch| root(scratch, "tbf"))
        .module("sch_tbf")
        .needed_for("bandwidth limits for pods"),
    queue("htb", "bandwidth classes (htb)", "CONFIG_NET_SCH_HTB", |scratch| root(scratch, "htb"))
        .module("sch_htb")
        .needed_for("bandwidth shares for tenants"),
    queue("fq", "fair queueing (fq)", "CONFIG_NET_SCH_FQ", |scratch| root(scratch, "fq"))
        .module("sch_fq")
        .needed_for("latency classes, pacing"),
    queue("netem", "delay and loss (netem)", "CONFIG_NET_SCH_NETEM", |scratch| root(scratch, "netem"))
        .module("sch_netem")
        .needed_for("delay and jitter in test networks"),
    queue("clsact", "ingress and egress classifiers (clsact)", "CONFIG_NET_SCH_INGRESS", |scratch| {
        discipline(scratch, "clsact", TC_H_CLSACT, CLSACT_HANDLE)
    })
    .module("sch_ingress")
    .needed_for("eBPF programs on pods' interfaces"),
];

fn root(scratch: &mut Scratch, kind: &str) -> Finding {
    discipline(scratch, kind, TC_H_ROOT, 0)
}

/// Some qdiscs require parameters and return EINVAL without; only an unknown one returns ENOENT.
fn discipline(scratch: &mut Scratch, kind: &str, parent: u32, handle: u32) -> Finding {
    let index = match scratch.parent() {
        Ok(index) => index,
        Err(finding) => return finding,
    };
    let context = format!("add the qdisc {kind} to a link");
    let mut message = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, context);
    message.header(&TrafficHeader { index, parent, handle, ..Default::default() }).put_str(TCA_KIND, kind);
    match scratch.route.request(message) {
        Err(error) if error.errno() == Some(Errno::EINVAL) => Finding::Present,
        attempt => Finding::of(attempt, &[Errno::ENOENT, Errno::EOPNOTSUPP]),
    }
}
