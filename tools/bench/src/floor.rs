//! `bench floor`: what the kernel takes for each operation that Knit is made of, by raw netlink, and what the reference
//! CNI plugin takes for the whole. Nothing that Knit does can be faster than these.

mod ipv6;

use std::time::Instant;

use anyhow::{Context, Result};
use knit_kernel::netlink::Protocol;
use knit_kernel::{Netns, Socket};
use nix::sched::{CloneFlags, setns};

use super::ground::Ground;
use super::reference;
use knit_dev::packages::{self, Purpose};
use knit_dev::progress::Step;
use knit_report::{Goal, Report};
use knit_report::{Samples, WARM_UP};

/// How many pods there are; also how many links are deleted at once.
const PODS: usize = 60;

const ROUND_TRIP: &str = "netlink round trip";
const SETNS: &str = "setns there and back";
const SOCKET: &str = "open a socket in another netns";
const NETNS: &str = "create a netns";
const BORN: &str = "veth, its peer born in the pod's netns";
const MADE: &str = "veth made in the host";
const MOVED: &str = "one end then moved to the pod's netns";
const ENSLAVE: &str = "enslave to a bridge and set up";
const INSIDE: &str = "lo up, eth0 up, address, route in one batch";
const ATTACH: &str = "whole attach to an existing netns";
const ATTACH_NETNS: &str = "whole attach with the netns";
const DELETE: &str = "delete a veth, synchronously";
const DELETE_GROUP: &str = "delete by link group, 60 at once, each";
const ADD: &str = "reference CNI bridge plugin ADD";
const DEL: &str = "reference CNI bridge plugin DEL";
const WITH_DAD: &str = "IPv6 address usable, with duplicate detection";
const WITHOUT_DAD: &str = "IPv6 address usable, without";

/// Measures everything, inside a host namespace of its own: this machine's stays as it is.
pub fn run(rounds: u32) -> Result<Report> {
    packages::ensure(&[Purpose::Bench])?;
    let host = Netns::unnamed().context("cannot make a network namespace to measure in")?;
    // The scratch host's namespace, and all links in it, end with this thread and the handles it holds.
    host.enter(|| measure_all(&host, rounds as usize + WARM_UP))?
}

fn measure_all(host: &Netns, rounds: usize) -> Result<Report> {
    let mut report = Report::default();
    let step = Step::start(format!("lay out a host, a bridge and {PODS} pods"));
    let mut ground = Ground::new(host, PODS)?;
    step.done();

    measure(&mut report, "small calls", |report| small_calls(report, &mut ground, rounds))?;
    let spare = measure(&mut report, NETNS, |report| create_namespaces(report, rounds))?;
    measure(&mut report, "the steps of an attach", |report| steps(report, &mut ground, rounds))?;
    measure(&mut report, "links that are moved", |report| moved(report, &mut ground, rounds))?;
    measure(&mut report, "whole attaches", |report| attaches(report, &mut ground, rounds))?;
    measure(&mut report, "deletes", |report| deletes(report, &mut ground, rounds))?;
    measure(&mut report, "the reference CNI plugin", |report| {
        let (add, del) = reference::measure(ground.pod(0), rounds)?;
        report.add(ADD, &add)?;
        report.add(DEL, &del)
    })?;
    measure(&mut report, "IPv6 addresses", |report| {
        report.add(WITH_DAD, &ipv6::with_detection(&mut ground, rounds)?)?;
        report.add(WITHOUT_DAD, &ipv6::without_detection(&mut ground, rounds)?)
    })?;
    // Held until now: the kernel takes namespaces down behind one's back, with its network lock held.
    drop(spare);

    report.compare(MOVED, BORN, None)?;
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

fn small_calls(report: &mut Report, ground: &mut Ground, rounds: usize) -> Result<()> {
    // Cheap enough for many more rounds.
    let rounds = rounds * 10;
    let mut samples = Samples::new();
    for _ in 0..rounds {
        samples.time(|| ground.round_trip())?;
    }
    report.add(ROUND_TRIP, &samples)?;

    let (home, away) = (Netns::current()?, ground.pod(0));
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
    let made = (0..rounds).map(|_| samples.time(Netns::unnamed)).collect::<Result<_, _>>()?;
    report.add(NETNS, &samples)?;
    Ok(made)
}

fn steps(report: &mut Report, ground: &mut Ground, rounds: usize) -> Result<()> {
    let [mut born, mut enslave, mut inside] = [const { Samples::new() }; 3];
    for_each_pod(ground, rounds, |ground, pod| {
        born.time(|| ground.born(pod))?;
        enslave.time(|| ground.enslave(pod))?;
        let batch = ground.inside(pod)?;
        let mut socket = ground.pod_socket(pod)?;
        inside.time(|| Ok(socket.batch(&batch)?))
    })?;
    report.add(BORN, &born)?;
    report.add(ENSLAVE, &enslave)?;
    report.add(INSIDE, &inside)
}

fn moved(report: &mut Report, ground: &mut Ground, rounds: usize) -> Result<()> {
    let [mut made, mut moved] = [const { Samples::new() }; 2];
    for_each_pod(ground, rounds, |ground, pod| {
        made.time(|| ground.made_here(pod))?;
        moved.time(|| ground.move_into(pod))
    })?;
    report.add(MADE, &made)?;
    report.add(MOVED, &moved)
}

fn attaches(report: &mut Report, ground: &mut Ground, rounds: usize) -> Result<()> {
    let mut samples = Samples::new();
    for_each_pod(ground, rounds, |ground, pod| samples.time(|| ground.attach(pod)))?;
    report.add(ATTACH, &samples)?;

    let mut samples = Samples::new();
    let mut held = Vec::with_capacity(rounds);
    for_each_pod(ground, rounds, |ground, pod| {
        samples.time(|| {
            held.push(ground.replace_pod(pod, Netns::unnamed()?));
            ground.attach(pod)
        })
    })?;
    report.add(ATTACH_NETNS, &samples)
}

fn deletes(report: &mut Report, ground: &mut Ground, rounds: usize) -> Result<()> {
    let mut samples = Samples::new();
    for _ in 0..rounds {
        ground.born(0)?;
        ground.enslave(0)?;
        samples.time(|| ground.delete(0))?;
    }
    report.add(DELETE, &samples)?;

    let mut samples = Samples::new();
    for _ in 0..rounds {
        ground.connect_all()?;
        let began = Instant::now();
        ground.delete_group()?;
        samples.add(began.elapsed() / PODS as u32);
    }
    report.add(DELETE_GROUP, &samples)
}

/// Does something for one pod after the other; when all had their turn their links are deleted, and it begins anew.
fn for_each_pod(
    ground: &mut Ground,
    rounds: usize,
    mut work: impl FnMut(&mut Ground, usize) -> Result<()>,
) -> Result<()> {
    for round in 0..rounds {
        let pod = round % PODS;
        work(ground, pod)?;
        if pod == PODS - 1 || round == rounds - 1 {
            ground.delete_group()?;
        }
    }
    Ok(())
}
