//! Requests on an established connection with and without a policy, and during a flood of new connections.

use anyhow::{Result, ensure};

use super::flood::Flood;
use super::node::RunningPod;
use crate::tcp::{SLICE, TcpPath, median};
use knit_report::{Goal, Report};

/// The goal for requests with a policy compared with none.
const MIN_RATE: Goal = Goal::AtLeast(0.97);
/// The goal for requests during a flood that a policy drops, compared with the same flood without policies.
const MIN_RATE_IN_FLOOD: Goal = Goal::AtLeast(0.9);
const REQUESTS: &str = "requests/s";

/// The pods between which requests pass.
pub struct Pods<'a> {
    /// It has no policies.
    pub client: &'a RunningPod,
    /// A server with a policy that accepts the client.
    pub restricted: &'a RunningPod,
    /// One without policies.
    pub open: &'a RunningPod,
}

/// The request rate on a node whose packets between pods without policies take this data path.
pub fn requests(report: &mut Report, pods: &Pods<'_>, data_path: &str, slices: usize) -> Result<()> {
    let servers = [pods.restricted, pods.open];
    let paths = servers.map(|server| path(pods.client, server));
    let [restricted, open] = paths;
    let paths = [restricted?, open?];
    let mut rates: [Vec<f64>; 2] = Default::default();
    for slice in 0..slices {
        // The order alternates.
        for at in [slice % 2, (slice + 1) % 2] {
            rates[at].push(paths[at].requests(SLICE)?);
        }
    }
    let [with, without] = [
        format!("requests with a policy, dataPath {data_path}"),
        format!("requests without policy, dataPath {data_path}"),
    ];
    for (name, rates) in [&with, &without].into_iter().zip(rates) {
        report.add_value(name, median(rates), REQUESTS, None);
    }
    report.compare_value(&with, &without, Some(MIN_RATE))
}

/// The request rate during floods to a port that the policy of the server does not allow, and to one on which nothing listens.
pub fn flood(report: &mut Report, pods: &Pods<'_>, attacker: &RunningPod, slices: usize) -> Result<()> {
    let servers = [pods.restricted, pods.open];
    let floods = servers.map(|server| Flood::new(attacker.netns(), server.address()?));
    let [dropped, refused] = floods;
    let floods = [dropped?, refused?];
    ensure!(floods[0].is_dropped()?, "the policy does not drop the flood");
    ensure!(!floods[1].is_dropped()?, "the flood without a policy is dropped");
    let [restricted, open] = servers.map(|server| path(pods.client, server));
    let paths = [restricted?, open?];
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut connections: [Vec<f64>; 2] = Default::default();
    for slice in 0..slices {
        for at in [slice % 2, (slice + 1) % 2] {
            let (rate, flooded) = floods[at].during(|| paths[at].requests(SLICE))?;
            rates[at].push(rate);
            connections[at].push(flooded);
        }
    }
    let names = ["to a denied port", "without policy"];
    let requests = names.map(|name| format!("requests during a flood {name}"));
    for (name, rates) in requests.iter().zip(rates) {
        report.add_value(name, median(rates), REQUESTS, None);
    }
    report.compare_value(&requests[0], &requests[1], Some(MIN_RATE_IN_FLOOD))?;
    for (name, rates) in names.into_iter().zip(connections) {
        report.add_value(&format!("flood {name}"), median(rates), "connections/s", None);
    }
    Ok(())
}

fn path(client: &RunningPod, server: &RunningPod) -> Result<TcpPath> {
    TcpPath::new(server.netns(), client.netns(), server.address()?)
}
