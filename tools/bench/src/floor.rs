//! `bench floor`: the cost of each kernel operation that Knit uses, by raw netlink, and of the reference CNI plugin. These are
//! lower bounds for Knit.

mod ipv6;

use std::time::Instant;

use anyhow::{Context, Result};
use knit_kernel::netlink::Protocol;
use knit_kernel::{Netns, Socket};
use nix::sched::{CloneFlags, setns};

use super::netlink_host::NetlinkHost;
use super::reference;
use knit_dev::packages::{self, Purpose};
use knit_dev::progress::Step;
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// The number of pods, and of links that are deleted at once.
const PODS: usize = 60;

const ROUND_TRIP: &str = "netlink round trip";
const SETNS: &str = "setns and back";
const SOCKET: &str = "open a socket in another netns";
const NETNS: &str = "create a netns";
const VETH_IN_POD: &str = "veth, peer created in the pod's netns";
const VETH_IN_HOST: &str = "veth created in the host";
const MOVED: &str = "one end moved to the pod's netns";
const ENSLAVE: &str = "add to a bridge and set up";
const CONFIGURE: &str = "lo up, eth0 up, address, route in one batch";
const ATTACH: &str = "complete attach to an existing netns";
const ATTACH_NETNS: &str = "complete attach with a new netns";
const DELETE: &str = "delete a veth, synchronously";
const DELETE_GROUP: &str = "delete by link group, 60 at once, each";
const ADD: &str = "reference CNI bridge plugin ADD";
const DEL: &str = "reference CNI bridge plugin DEL";
const WITH_DAD: &str = "IPv6 address usable, with duplicate detection";
const WITHOUT_DAD: &str = "IPv6 address usable, without duplicate detection";

/// Measures everything in a separate network namespace; the machine's own is not changed.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench])?;
    let host = Netns::unnamed().context("cannot create a network namespace")?;
    // The host's namespace and its links end with this thread and its handles.
    host.enter(|| measure_all(&host, rounds as usize + WARM_UP))?
}

fn measure_all(host: &Netns, rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let step = Step::start(format!("create a host, a bridge and {PODS} pods"));
    let mut host = NetlinkHost::new(host, PODS)?;
    step.done();

    measure(&mut report, "small calls", |report| small_calls(report, &mut host, rounds))?;
    let spare = measure(&mut report, NETNS, |report| create_namespaces(report, rounds))?;
    measure(&mut report, "the steps of an attach", |report| steps(report, &mut host, rounds))?;
    measure(&mut report, "moved links", |report| moved(report, &mut host, rounds))?;
    measure(&mut report, "complete attaches", |report| attaches(report, &mut host, rounds))?;
    measure(&mut report, "deletes", |report| deletes(report, &mut host, rounds))?;
    measure(&mut report, "the reference CNI plugin", |report| {
        let (add, del) = reference::measure(host.pod(0), rounds)?;
        report.add(ADD, &add)?;
        report.add(DEL, &del)
    })?;
    measure(&mut report, "IPv6 addresses", |report| {
        report.add(WITH_DAD, &ipv6::with_detection(&mut host, rounds)?)?;
        report.add(WITHOUT_DAD, &ipv6::without_detection(&mut host, rounds)?)
    })?;
    // Kept until now: the kernel destroys namespaces in the background while it holds the rtnl lock.
    drop(spare);

    report.compare(MOVED, VETH_IN_POD, None)?;
    report.compare(ATTACH, ADD, Some(Goal::AtMost(0.1)))?;
    report.compare(ATTACH_NETNS, ATTACH, None)?;
    report.compare(DELETE, DEL, None)?;
    report.compare(DELETE_GROUP, DELETE, None)?;
    report.compare(WITHOUT_DAD, WITH_DAD, None)?;
    Ok(report)
}

/// One part of the benchmark, shown as a step.
fn measure<T>(report: &mut Report, what: &str, part: impl FnOnce(&mut Report) -> Result<T>) -> Result<T> {
    let step = Step::start(what);
    let outcome = part(report).with_context(|| format!("cannot measure: {what}"))?;
    step.done();
    Ok(outcome)
}

fn small_calls(report: &mut Report, host: &mut NetlinkHost, rounds: usize) -> Result<()> {
    // Cheap enough for many more rounds.
    let rounds = rounds * 10;
    let mut samples = Samples::new();
    for _ in 0..rounds {
        samples.time(|| host.round_trip())?;
    }
    report.add(ROUND_TRIP, &samples)?;

    let (home, away) = (Netns::current()?, host.pod(0));
    let mut samples = Samples::new();
    for _ in 0..rounds {
        samples.time(|| {
            setns(away, CloneFlags::CLONE_NEWNET).and_then(|()| setns(&home, CloneFlags::CLONE_NEWNET))
        })?;
    }
    report.add(SETNS, &samples)?;

    let mut samples = Samples::new();
    for _ in 0..rounds {
        samples.time(|| Socket::open_in(away, Protocol::Route).map(drop))?;
    }
    report.add(SOCKET, &samples)
}

fn create_namespaces(report: &mut Report, rounds: usize) -> Result<Vec<Netns>> {
    let mut samples = Samples::new();
    let created = (0..rounds).map(|_| samples.time(Netns::unnamed)).collect::<Result<_, _>>()?;
    report.add(NETNS, &samples)?;
    Ok(created)
}

fn steps(report: &mut Report, host: &mut NetlinkHost, rounds: usize) -> Result<()> {
    let [mut create, mut enslave, mut configure] = [const { Samples::new() }; 3];
    for_each_pod(host, rounds, |host, pod| {
        create.time(|| host.create_veth(pod))?;
        enslave.time(|| host.enslave(pod))?;
        let batch = host.configuration(pod)?;
        let mut socket = host.pod_socket(pod)?;
        configure.time(|| Ok(socket.batch(&batch)?))
    })?;
    report.add(VETH_IN_POD, &create)?;
    report.add(ENSLAVE, &enslave)?;
    report.add(CONFIGURE, &configure)
}

fn moved(report: &mut Report, host: &mut NetlinkHost, rounds: usize) -> Result<()> {
    let [mut create, mut moved] = [const { Samples::new() }; 2];
    for_each_pod(host, rounds, |host, pod| {
        create.time(|| host.create_veth_in_host(pod))?;
        moved.time(|| host.move_into(pod))
    })?;
    report.add(VETH_IN_HOST, &create)?;
    report.add(MOVED, &moved)
}

fn attaches(report: &mut Report, host: &mut NetlinkHost, rounds: usize) -> Result<()> {
    let mut samples = Samples::new();
    for_each_pod(host, rounds, |host, pod| samples.time(|| host.attach(pod)))?;
    report.add(ATTACH, &samples)?;

    let mut samples = Samples::new();
    let mut replaced = Vec::with_capacity(rounds);
    for_each_pod(host, rounds, |host, pod| {
        samples.time(|| {
            replaced.push(host.replace_pod(pod, Netns::unnamed()?));
            host.attach(pod)
        })
    })?;
    report.add(ATTACH_NETNS, &samples)
}

fn deletes(report: &mut Report, host: &mut NetlinkHost, rounds: usize) -> Result<()> {
    let mut samples = Samples::new();
    for _ in 0..rounds {
        host.create_veth(0)?;
        host.enslave(0)?;
        samples.time(|| host.delete(0))?;
    }
    report.add(DELETE, &samples)?;

    let mut samples = Samples::new();
    for _ in 0..rounds {
        host.connect_all()?;
        let start = Instant::now();
        host.delete_group()?;
        samples.add(start.elapsed() / PODS as u32);
    }
    report.add(DELETE_GROUP, &samples)
}

/// Runs an operation for one pod after the other; after the last pod all links are deleted, and it starts over.
fn for_each_pod(
    host: &mut NetlinkHost,
    rounds: usize,
    mut work: impl FnMut(&mut NetlinkHost, usize) -> Result<()>,
) -> Result<()> {
    for round in 0..rounds {
        let pod = round % PODS;
        work(host, pod)?;
        if pod == PODS - 1 || round == rounds - 1 {
            host.delete_group()?;
        }
    }
    Ok(())
}
