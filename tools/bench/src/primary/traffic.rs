//! TCP between pods on one node and across two, and the same between the nodes themselves, which no pod network can beat.

use anyhow::{Context, Result};

use super::side::Side;
use super::{Extent, Sides};
use crate::cri::Sandbox;
use crate::wire::{KINDS, SLICE, Wire, median};
use knit_report::{Goal, Report};

const ONE_NODE: &str = "pod to pod, one node";
const ACROSS: &str = "pod to pod, across nodes";
const HOST_ONE_NODE: &str = "host to itself";
const HOST_ACROSS: &str = "host to host, across nodes";

/// Measures all ways of both clusters, in turn.
pub fn run(report: &mut Report, sides: &Sides, extent: Extent) -> Result<()> {
    let (knit, reference) = (Ways::open(&sides.knit)?, Ways::open(&sides.reference)?);
    for (kind, unit, measure) in KINDS {
        for way in [ONE_NODE, HOST_ONE_NODE, ACROSS, HOST_ACROSS] {
            let mut rates: [Vec<f64>; 2] = [const { Vec::new() }; 2];
            for slice in 0..extent.slices {
                // The other one first each time.
                for turn in [slice % 2, (slice + 1) % 2] {
                    let ways = if turn == 0 { &knit } else { &reference };
                    rates[turn].push(measure(ways.wire(way)?, SLICE)?);
                }
            }
            let [of_knit, of_reference] = rates;
            for (side, rates) in [(&sides.knit, of_knit), (&sides.reference, of_reference)] {
                report.add_once(&side.row(&format!("{way}: {kind}")), median(rates), unit, None);
            }
        }
        for (way, floor) in [(ONE_NODE, HOST_ONE_NODE), (ACROSS, HOST_ACROSS)] {
            let (name, floor) = (format!("{way}: {kind}"), format!("{floor}: {kind}"));
            let goal = Some(Goal::AtLeast(1.0));
            report.compare_once(&sides.knit.row(&name), &sides.reference.row(&name), goal)?;
            for side in [&sides.knit, &sides.reference] {
                report.compare_once(&side.row(&name), &side.row(&floor), None)?;
            }
        }
    }
    knit.close()?;
    reference.close()
}

/// The ways of one cluster.
struct Ways<'a> {
    side: &'a Side,
    wires: Vec<(&'static str, Wire)>,
    /// Pods and their nodes.
    pods: Vec<(usize, Sandbox)>,
}

impl<'a> Ways<'a> {
    /// Starts two pods on one node, one on the other, and listens wherever traffic is to go.
    fn open(side: &'a Side) -> Result<Self> {
        let start = |node: usize, name: &str| -> Result<_> {
            let pod = side.nodes[node].cri.run(name)?;
            let netns = side.nodes[node].netns_of(&pod)?;
            Ok((pod, netns))
        };
        let (client, client_space) = start(0, "client")?;
        let (near, near_space) = start(0, "near")?;
        let (far, far_space) = start(1, "far")?;
        let (here, there) = (side.nodes[0].netns()?, side.nodes[1].netns()?);
        let wires = vec![
            (ONE_NODE, Wire::new(&near_space, &client_space, near.address)?),
            (ACROSS, Wire::new(&far_space, &client_space, far.address)?),
            (HOST_ONE_NODE, Wire::new(&here, &here, side.nodes[0].address)?),
            (HOST_ACROSS, Wire::new(&there, &here, side.nodes[1].address)?),
        ];
        Ok(Self { side, wires, pods: vec![(0, client), (0, near), (1, far)] })
    }

    fn wire(&self, way: &str) -> Result<&Wire> {
        let found = self.wires.iter().find(|(name, _)| *name == way);
        Ok(&found.with_context(|| format!("there is no way {way}"))?.1)
    }

    fn close(self) -> Result<()> {
        drop(self.wires);
        self.pods.iter().try_for_each(|(node, pod)| self.side.nodes[*node].cri.remove(&pod.id))
    }
}
