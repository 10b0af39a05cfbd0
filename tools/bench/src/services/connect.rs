//! Connections from a pod to another pod of its node, through a Service and directly: the TCP handshake, and requests on one
//! connection.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::node::{ServiceNode, reset};
use super::proxy::Kind;
use super::{Side, Sides};
use crate::tcp::{SLICE, TcpPath, median, pin_to_cpu};
use knit_report::{Goal, Report, Samples};

/// The goals for a handshake through a Service: compared with few Services, and with a direct one.
const MAX_GROWTH: Goal = Goal::AtMost(1.1);
const MAX_OVERHEAD: Goal = Goal::AtMost(1.05);
/// The goal for the request rate through a Service compared with a direct one.
const MIN_RATE: Goal = Goal::AtLeast(0.98);
/// Handshakes of one node before it is the other one's turn.
const BATCH: usize = 100;
const THROUGH: &str = "through a Service";
const DIRECT: &str = "to the pod";
const KINDS: [Kind; 2] = [Kind::Knit, Kind::KubeProxy];

/// Measures handshakes on both nodes in turn, each through a Service and directly in turn.
pub fn handshakes(report: &mut Report, sides: &Sides, rounds: usize, size: &str) -> Result<()> {
    let mut all: [[Samples; 2]; 2] = Default::default();
    // The first batch is the warm-up.
    for batch in 0..=rounds.div_ceil(BATCH) {
        for (kind, samples) in KINDS.into_iter().zip(&mut all) {
            let Side { node, connect, .. } = sides.of(kind);
            let destinations = [connect.destination(), node.backends[0].destination()];
            let times = node.client.enter(|| connect_batch(node, destinations))??;
            for (samples, times) in samples.iter_mut().zip(times).filter(|_| batch > 0) {
                times.into_iter().for_each(|time| samples.add_warm(time));
            }
        }
    }
    for (kind, [through, direct]) in KINDS.into_iter().zip(&all) {
        report.add_times(&kind.row(&row(THROUGH, size)), through)?;
        report.add_times(&kind.row(&row(DIRECT, size)), direct)?;
        let goal = (kind == Kind::Knit).then_some(MAX_OVERHEAD);
        report.compare(&kind.row(&row(THROUGH, size)), &kind.row(&row(DIRECT, size)), goal)?;
    }
    Ok(())
}

/// Connects to both destinations in turn. Returns the times of each.
fn connect_batch(node: &ServiceNode, destinations: [SocketAddr; 2]) -> Result<[Vec<Duration>; 2]> {
    pin_to_cpu(0)?;
    let listener = node.backends[0].listener()?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..2 * BATCH {
        // Each destination is the first one equally often.
        let at = (round + round / 2) % 2;
        let start = Instant::now();
        let connected = TcpStream::connect(destinations[at]);
        let time = start.elapsed();
        let connected = connected.with_context(|| format!("cannot connect to {}", destinations[at]))?;
        listener.accept().context("cannot accept a connection")?;
        reset(&connected)?;
        times[at].push(time);
    }
    Ok(times)
}

/// Compares handshakes with most Services with those with the fewest.
pub fn compare_growth(report: &mut Report, sizes: &[String]) -> Result<()> {
    let Some((first, others)) = sizes.split_first() else { return Ok(()) };
    for kind in KINDS {
        for (index, size) in others.iter().enumerate() {
            let is_last = index + 1 == others.len();
            let goal = (kind == Kind::Knit && is_last).then_some(MAX_GROWTH);
            report.compare(&kind.row(&row(THROUGH, size)), &kind.row(&row(THROUGH, first)), goal)?;
            report.compare(&kind.row(&row(DIRECT, size)), &kind.row(&row(DIRECT, first)), None)?;
        }
    }
    Ok(())
}

/// Measures the request rate on both nodes in turn, through a Service and directly in turn.
pub fn requests(report: &mut Report, sides: &Sides, slices: usize, size: &str) -> Result<()> {
    for kind in KINDS {
        let Side { node, connect, .. } = sides.of(kind);
        let backend = &node.backends[0];
        let path = |destination| TcpPath::through(backend.listener()?, &node.client, destination);
        let paths = [path(connect.destination())?, path(backend.destination())?];
        let mut rates: [Vec<f64>; 2] = Default::default();
        for slice in 0..slices {
            // The order alternates.
            for at in [slice % 2, (slice + 1) % 2] {
                rates[at].push(paths[at].requests(SLICE)?);
            }
        }
        let [through, direct] = rates.map(median);
        let name = |path: &str| kind.row(&format!("request rate {path}, {size}"));
        report.add_value(&name(THROUGH), through, "requests/s", None);
        report.add_value(&name(DIRECT), direct, "requests/s", None);
        let goal = (kind == Kind::Knit).then_some(MIN_RATE);
        report.compare_value(&name(THROUGH), &name(DIRECT), goal)?;
    }
    Ok(())
}

fn row(path: &str, size: &str) -> String {
    format!("connect {path}, {size}")
}
