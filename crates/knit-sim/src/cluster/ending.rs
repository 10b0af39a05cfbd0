//! After everything has gone wrong: the cluster has to come to rest, and then nothing may be left of its pods.

use knit_engine::Unit;

use super::kubelet::Step;
use super::{Cluster, Due, Phase};
use crate::queue::{MINUTE, Moment, SECOND};

/// By then everything has come to rest.
const REST: Moment = 15 * MINUTE;
/// By then nothing is left; the blocks of a node that left are kept for five minutes.
const NOTHING: Moment = 15 * MINUTE;
/// All pods end within this time.
const DRAIN: Moment = MINUTE;

impl Cluster {
    /// Pods stay as they are, and nothing goes wrong any more.
    pub(crate) fn calm_down(&mut self) {
        self.phase = Phase::Calm { since: self.queue.now() };
        for node in 0..self.nodes.len() {
            self.heal(node);
        }
    }

    /// Looks whether the next phase can begin.
    pub(crate) fn second(&mut self) {
        self.queue.after(SECOND, Due::Second);
        let now = self.queue.now();
        match self.phase {
            Phase::Calm { since } => match self.restless() {
                None => {
                    self.counts.to_rest = now - since;
                    self.check();
                    self.drain();
                }
                Some((node, why)) if now - since > REST => {
                    self.fail(&[node], format!("the cluster does not come to rest: {why}"));
                }
                Some(_) => {}
            },
            Phase::Drain { since } => match self.left_over() {
                None => {
                    self.counts.to_nothing = now - since;
                    self.check();
                    (0..self.nodes.len()).for_each(|node| self.compare_with_journal(node));
                    self.phase = Phase::Done;
                }
                Some((node, why)) if now - since > NOTHING => {
                    self.fail(&[node], format!("something is left of pods that are gone: {why}"));
                }
                Some(_) => {}
            },
            Phase::Busy | Phase::Done => {}
        }
    }

    fn drain(&mut self) {
        self.counts.told = self.told();
        self.phase = Phase::Drain { since: self.queue.now() };
        for pod in self.live.clone() {
            let delay = self.dice.below(DRAIN);
            self.queue.after(delay, Due::Stop(pod));
        }
    }

    /// What is not at rest, if anything is not.
    fn restless(&self) -> Option<(usize, String)> {
        for number in &self.live {
            let pod = &self.pods[*number as usize];
            if pod.step != Step::Runs {
                return Some((pod.node, format!("pod-{number} is not running ({:?})", pod.step)));
            }
            if let Some(why) = self.lacks_second(*number) {
                return Some((pod.node, why));
            }
        }
        let busy = |node: &usize| {
            let here = &self.nodes[*node];
            let is_asking = !here.asked.is_empty() || here.resting > 0;
            !here.is_gone && (!here.is_up || here.state.pending().next().is_some() || is_asking)
        };
        let busy = (0..self.nodes.len()).find(busy)?;
        let pending: Vec<String> = self.nodes[busy].state.pending().map(ToString::to_string).collect();
        Some((busy, format!("{} is busy with {}", self.nodes[busy].name, pending.join(", "))))
    }

    /// A tenant's pod has its address, or was told why not.
    fn lacks_second(&self, number: u32) -> Option<String> {
        let pod = &self.pods[number as usize];
        let (Some(_), Some(id)) = (pod.tenant, &pod.sandbox) else { return None };
        let state = &self.nodes[pod.node].state;
        let unit = Unit::Sandbox(id.clone());
        let has_both = state.made.get(&unit).is_some_and(|made| made.interfaces.len() == 2);
        let is_told = state.problems.get(&unit).is_some_and(|problems| !problems.is_empty());
        (!has_both && !is_told)
            .then(|| format!("pod-{number} of a tenant has no second interface and was not told why"))
    }

    /// How many pods of tenants were told why they have no second interface.
    fn told(&self) -> u64 {
        let is_told = |number: &&u32| {
            let pod = &self.pods[**number as usize];
            let unit = pod.sandbox.clone().map(Unit::Sandbox);
            unit.is_some_and(|unit| self.nodes[pod.node].state.problems.contains_key(&unit))
        };
        self.live.iter().filter(is_told).count() as u64
    }

    /// What is left of pods, if anything is.
    fn left_over(&self) -> Option<(usize, String)> {
        if let Some(number) = self.live.first() {
            let node = self.pods[*number as usize].node;
            return Some((node, format!("pod-{number} does not end")));
        }
        if let Some(block) = self.api.blocks().next() {
            let node = self.nodes.iter().position(|node| node.name == block.node);
            let what = format!("podaddressblock/{} of {} was not given back", block.name, block.node);
            return Some((node.unwrap_or_default(), what));
        }
        if let Some(number) = self.api.pod_states.first() {
            let node = self.pods[*number as usize].node;
            return Some((node, format!("there is a state of pod-{number}, which is gone")));
        }
        if let Some((address, (node, id))) = self.holders.iter().next() {
            return Some((*node, format!("{address} of sandbox {id} is there")));
        }
        let alive = self.nodes.iter().enumerate().filter(|(_, node)| !node.is_gone);
        for (at, node) in alive {
            let state = &node.state;
            let name = &node.name;
            let left = [
                ("a sandbox", state.sandboxes.keys().next().map(ToString::to_string)),
                ("a change that did not end", state.unfinished.keys().next().map(ToString::to_string)),
                ("work", state.pending().next().map(ToString::to_string)),
                ("a problem", state.problems.keys().next().map(ToString::to_string)),
                (
                    "what a sandbox had",
                    state.made.keys().find(|unit| unit.sandbox().is_some()).map(ToString::to_string),
                ),
                (
                    "a lease",
                    state
                        .leases
                        .iter()
                        .find(|(_, _, lease)| lease.is_live())
                        .map(|(_, address, _)| address.to_string()),
                ),
                ("a link", node.own_links().into_iter().find(|link| link != "knit0")),
                ("a call", node.calls.keys().next().map(ToString::to_string)),
            ];
            if let Some((what, Some(which))) = left.into_iter().find(|(_, which)| which.is_some()) {
                return Some((at, format!("{name} still has {what}: {which}")));
            }
        }
        None
    }
}
