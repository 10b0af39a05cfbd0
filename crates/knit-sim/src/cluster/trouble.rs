//! What goes wrong: agents are killed, the API server cannot be reached, clocks jump, nodes leave. And pods that come and go.

use knit_engine::event::Ended;
use knit_engine::{Event, Record};
use knit_model::SandboxId;

use super::{Cluster, Due, FILL, RESYNC};
use crate::node::{DueFlags, Node};
use crate::queue::{MINUTE, Moment, SECOND};
use crate::trace::About;

/// In a minute so many of a thousand nodes have trouble.
const TROUBLED: u64 = 40;
/// Of so many nodes one may leave.
const LEAVING: usize = 500;
/// A clock jumps by at most two hours, in milliseconds.
const JUMP: u64 = 2 * 3_600_000;

impl Cluster {
    fn churn_ends(&self) -> Moment {
        FILL + self.options.minutes * MINUTE
    }

    /// One pod goes and another comes.
    pub(crate) fn churn(&mut self) {
        if self.queue.now() >= self.churn_ends() {
            return self.calm_down();
        }
        if !self.live.is_empty() {
            let live = std::mem::take(&mut self.live);
            let old = *self.dice.one(&live);
            self.live = live;
            self.queue.after(self.dice.below(SECOND), Due::Stop(old));
            let new = self.new_pod();
            self.queue.after(self.dice.below(SECOND), Due::Start(new));
        }
        let in_a_minute = (self.options.pods as u64 * self.options.churn / 100).max(1);
        let pause = self.dice.between(0, 2 * MINUTE / in_a_minute);
        self.queue.after(pause, Due::Churn);
    }

    /// Something goes wrong on one node.
    pub(crate) fn trouble(&mut self) {
        if !self.is_busy() {
            return;
        }
        let in_a_minute = (self.nodes.len() as u64 * TROUBLED / 1_000).max(4);
        let pause = self.dice.between(0, 2 * MINUTE / in_a_minute);
        self.queue.after(pause, Due::Trouble);
        let node = self.dice.below(self.nodes.len() as u64) as usize;
        if self.nodes[node].is_gone {
            return;
        }
        match self.dice.below(100) {
            0..40 => self.cut(node),
            40..80 => self.kill(node),
            80..98 => self.jump(node),
            _ => self.leave(node),
        }
    }

    fn cut(&mut self, node: usize) {
        if std::mem::replace(&mut self.nodes[node].is_cut, true) {
            return;
        }
        self.counts.partitions += 1;
        self.note(node, "cannot reach the API server any more", About::Nothing);
        let long = self.dice.between(5 * SECOND, 90 * SECOND);
        self.queue.after(long, Due::Heal(node));
    }

    /// The API server can be reached: the watch goes on, or begins anew.
    pub(crate) fn heal(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].is_cut, false) || self.nodes[node].is_gone {
            return;
        }
        self.note(node, "reaches the API server again", About::Nothing);
        if !self.nodes[node].is_up {
            return;
        }
        if let Some(pods) = self.nodes[node].unlisted.take() {
            self.nodes[node].pods = pods;
        }
        if self.nodes[node].watched.is_none() || self.dice.chance(50) {
            self.list(node);
        } else {
            self.watch_soon(node);
        }
        self.feed_soon(node);
        self.write_soon(node);
    }

    fn jump(&mut self, node: usize) {
        self.counts.jumps += 1;
        let by = i64::try_from(self.dice.below(2 * JUMP)).unwrap_or_default() - JUMP as i64;
        if self.dice.chance(10) {
            self.controller.skew += by;
        } else {
            self.nodes[node].skew = by;
        }
        self.note(node, "has another clock", About::Nothing);
    }

    /// The node is taken out of the cluster, with its pods. Its blocks are for the controller to delete.
    fn leave(&mut self, node: usize) {
        if self.counts.left as usize >= self.nodes.len().div_ceil(LEAVING) || self.nodes.len() < 10 {
            return;
        }
        self.counts.left += 1;
        self.note(node, "leaves", About::Nothing);
        let sandboxes: Vec<SandboxId> = self.nodes[node].netns.keys().cloned().collect();
        for id in sandboxes {
            self.namespace_died(node, &id);
        }
        self.nodes[node] = Node { is_gone: true, ..Node::new(node, false) };
        let here: Vec<u32> =
            self.live.iter().copied().filter(|pod| self.pods[*pod as usize].node == node).collect();
        for pod in here {
            self.pod_gone(pod);
        }
        self.controller.node_left(&self.nodes[node].name.clone());
        self.controller_soon();
    }

    /// The agent is killed. What its hands were doing is half done, and is taken back at the start.
    fn kill(&mut self, at: usize) {
        if !self.nodes[at].is_up {
            return;
        }
        self.counts.restarts += 1;
        self.note(at, "has its agent killed", About::Nothing);
        let node = &mut self.nodes[at];
        (node.is_up, node.life) = (false, node.life + 1);
        (node.watched, node.due) = (None, DueFlags::default());
        node.asked.clear();
        node.resting = 0;
        let half_done = std::mem::take(&mut node.applying);
        let calls = std::mem::take(&mut node.calls);
        for (unit, plan) in half_done {
            let is_gone = unit.sandbox().is_some_and(|id| !self.nodes[at].netns.contains_key(id));
            let steps = self.dice.below(plan.steps.len() as u64 + 1) as usize;
            if !is_gone && let Err(why) = self.nodes[at].begin_and_take_back(&plan, steps) {
                self.fail(&[at], format!("a plan of {unit} cannot be taken back after {steps} steps: {why}"));
            }
        }
        for call in calls.into_values() {
            self.call_lost(call);
        }
        let long = self.dice.between(SECOND / 5, 5 * SECOND);
        self.queue.after(long, Due::Begin(at));
    }

    /// The agent begins anew, from what is written down.
    pub(crate) fn begin(&mut self, at: usize) {
        if self.nodes[at].is_gone {
            return;
        }
        self.note(at, "has its agent begin anew", About::Nothing);
        self.compare_with_journal(at);
        let node = &mut self.nodes[at];
        node.state = node.state.remembered();
        node.is_up = true;
        self.take_back_unfinished(at);
        let state = &self.nodes[at].state;
        let dead = state.sandboxes.keys().filter(|id| !self.nodes[at].netns.contains_key(*id));
        let dead: Vec<SandboxId> = dead.cloned().collect();
        for id in dead {
            self.hear(at, Event::SandboxGone(id));
        }
        self.hear(at, Event::Restarted);
        self.hear(at, Event::Resync);
        if self.nodes[at].is_cut {
            let pods = std::mem::take(&mut self.nodes[at].pods);
            self.nodes[at].unlisted.get_or_insert(pods);
        } else {
            self.list(at);
        }
        let life = self.nodes[at].life;
        self.queue.after(5 * SECOND, Due::Review(at, life));
        self.queue.after(RESYNC, Due::Resync(at, life));
        self.feed_soon(at);
        self.write_soon(at);
    }

    /// A change that began and did not end was taken back.
    fn take_back_unfinished(&mut self, at: usize) {
        let now = self.nodes[at].clock(self.queue.now());
        let unfinished: Vec<_> = self.nodes[at].state.unfinished.keys().cloned().collect();
        for unit in unfinished {
            let problems = self.nodes[at].state.problems.get(&unit).cloned().unwrap_or_default();
            let ended = Ended { unit, made: None, problems, given_back: Vec::new(), at: now };
            let record = Record::Ended(Box::new(ended));
            self.nodes[at].state.record(&record);
            self.journal(at, &record);
        }
    }
}
