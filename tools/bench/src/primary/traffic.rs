//! TCP between pods on one node and across two, and between the nodes themselves, which is the upper bound.

use anyhow::{Context, Result};

use super::cluster::BenchCluster;
use super::{Clusters, Scale};
use crate::cri::Sandbox;
use crate::tcp::{METRICS, SLICE, TcpPath, median};
use knit_report::{Goal, Report};

const ONE_NODE: &str = "pod to pod, one node";
const ACROSS: &str = "pod to pod, across nodes";
const HOST_ONE_NODE: &str = "host to itself";
const HOST_ACROSS: &str = "host to host, across nodes";

/// Measures all paths of both clusters alternately.
pub fn run(report: &mut Report, clusters: &Clusters, scale: Scale) -> Result<()> {
    let (knit, reference) = (TcpPaths::open(&clusters.knit)?, TcpPaths::open(&clusters.reference)?);
    for (kind, unit, measure) in METRICS {
        for path in [ONE_NODE, HOST_ONE_NODE, ACROSS, HOST_ACROSS] {
            let mut rates: [Vec<f64>; 2] = [const { Vec::new() }; 2];
            for slice in 0..scale.slices {
                // The order alternates.
                for turn in [slice % 2, (slice + 1) % 2] {
                    let paths = if turn == 0 { &knit } else { &reference };
                    rates[turn].push(measure(paths.find(path)?, SLICE)?);
                }
            }
            let [of_knit, of_reference] = rates;
            for (cluster, rates) in [(&clusters.knit, of_knit), (&clusters.reference, of_reference)] {
                report.add_value(&cluster.row(&format!("{path}: {kind}")), median(rates), unit, None);
            }
        }
        for (path, floor) in [(ONE_NODE, HOST_ONE_NODE), (ACROSS, HOST_ACROSS)] {
            let (name, floor) = (format!("{path}: {kind}"), format!("{floor}: {kind}"));
            let goal = Some(Goal::AtLeast(1.0));
            report.compare_value(&clusters.knit.row(&name), &clusters.reference.row(&name), goal)?;
            for cluster in [&clusters.knit, &clusters.reference] {
                report.compare_value(&cluster.row(&name), &cluster.row(&floor), None)?;
            }
        }
    }
    knit.close()?;
    reference.close()
}

/// The paths of one cluster.
struct TcpPaths<'a> {
    cluster: &'a BenchCluster,
    paths: Vec<(&'static str, TcpPath)>,
    /// Pods and the indexes of their nodes.
    pods: Vec<(usize, Sandbox)>,
}

impl<'a> TcpPaths<'a> {
    /// Starts two pods on one node and one on the other, and listens at each destination.
    fn open(cluster: &'a BenchCluster) -> Result<Self> {
        let start = |node: usize, name: &str| -> Result<_> {
            let pod = cluster.nodes[node].cri.run(name)?;
            let netns = cluster.nodes[node].netns_of(&pod)?;
            Ok((pod, netns))
        };
        let (client, client_netns) = start(0, "client")?;
        let (near, near_netns) = start(0, "near")?;
        let (far, far_netns) = start(1, "far")?;
        let (host, other_host) = (cluster.nodes[0].netns()?, cluster.nodes[1].netns()?);
        let paths = vec![
            (ONE_NODE, TcpPath::new(&near_netns, &client_netns, near.address)?),
            (ACROSS, TcpPath::new(&far_netns, &client_netns, far.address)?),
            (HOST_ONE_NODE, TcpPath::new(&host, &host, cluster.nodes[0].address)?),
            (HOST_ACROSS, TcpPath::new(&other_host, &host, cluster.nodes[1].address)?),
        ];
        Ok(Self { cluster, paths, pods: vec![(0, client), (0, near), (1, far)] })
    }

    fn find(&self, path: &str) -> Result<&TcpPath> {
        let found = self.paths.iter().find(|(name, _)| *name == path);
        Ok(&found.with_context(|| format!("no path {path}"))?.1)
    }

    fn close(self) -> Result<()> {
        drop(self.paths);
        self.pods.iter().try_for_each(|(node, pod)| self.cluster.nodes[*node].cri.remove(&pod.id))
    }
}
