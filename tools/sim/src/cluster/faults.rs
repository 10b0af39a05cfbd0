//! Faults: killed agents, API server partitions, clock jumps, extensions that stop or are replaced. And pod churn.

use knit_engine::event::ChangeEnded;
use knit_engine::{Event, Record};
use knit_model::SandboxId;

use super::{Cluster, RAMP_UP, RESYNC_INTERVAL, ScheduledEvent};
use crate::node::{ScheduledFlags, with_settings};
use crate::queue::{MINUTE, SECOND, SimTime};
use crate::trace::TraceSubject;

/// Faults per minute, per mille of nodes.
const FAULTS_PER_MILLE: u64 = 40;
/// A clock jumps by at most two hours, in milliseconds.
const MAX_CLOCK_JUMP: u64 = 2 * 3_600_000;

impl Cluster {
    fn churn_ends(&self) -> SimTime {
        RAMP_UP + self.options.minutes * MINUTE
    }

    /// Replaces one pod.
    pub(crate) fn replace_pod(&mut self) {
        if self.queue.now() >= self.churn_ends() {
            return self.end_faults();
        }
        if !self.live.is_empty() {
            let live = std::mem::take(&mut self.live);
            let old = *self.rng.choose(&live);
            self.live = live;
            self.queue.schedule(self.rng.below(SECOND), ScheduledEvent::StopPod(old));
            let new = self.new_pod();
            self.queue.schedule(self.rng.below(SECOND), ScheduledEvent::StartPod(new));
        }
        let per_minute = (self.options.pods as u64 * self.options.churn / 100).max(1);
        let delay = self.rng.between(0, 2 * MINUTE / per_minute);
        self.queue.schedule(delay, ScheduledEvent::ReplacePod);
    }

    /// Injects a fault on one node.
    pub(crate) fn inject_fault(&mut self) {
        if !self.is_busy() {
            return;
        }
        let per_minute = (self.nodes.len() as u64 * FAULTS_PER_MILLE / 1_000).max(4);
        let delay = self.rng.between(0, 2 * MINUTE / per_minute);
        self.queue.schedule(delay, ScheduledEvent::InjectFault);
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        if self.nodes[node].is_removed {
            return;
        }
        match self.rng.below(100) {
            0..35 => self.partition(node),
            35..70 => self.kill_agent(node),
            70..85 => self.jump_clock(node),
            85..93 => self.stop_extensions(node),
            _ => self.replace_extension(node),
        }
    }

    fn partition(&mut self, node: usize) {
        if std::mem::replace(&mut self.nodes[node].is_partitioned, true) {
            return;
        }
        self.stats.partitions += 1;
        self.record_trace(node, "is partitioned from the API server", TraceSubject::Node);
        let duration = self.rng.between(5 * SECOND, 90 * SECOND);
        self.queue.schedule(duration, ScheduledEvent::HealPartition(node));
    }

    /// The API server is reachable: the watch continues or restarts.
    pub(crate) fn heal_partition(&mut self, node: usize) {
        if !std::mem::replace(&mut self.nodes[node].is_partitioned, false) || self.nodes[node].is_removed {
            return;
        }
        self.record_trace(node, "reaches the API server again", TraceSubject::Node);
        if !self.nodes[node].is_up {
            return;
        }
        if self.nodes[node].watch_version.is_none() || self.rng.chance(50) {
            self.list_all(node);
        } else {
            self.schedule_watch(node);
        }
        self.schedule_pod_sync(node);
        self.schedule_status_write(node);
    }

    fn jump_clock(&mut self, node: usize) {
        self.stats.clock_jumps += 1;
        let by =
            i64::try_from(self.rng.below(2 * MAX_CLOCK_JUMP)).unwrap_or_default() - MAX_CLOCK_JUMP as i64;
        if self.rng.chance(10) {
            self.controller.skew += by;
        } else {
            self.nodes[node].skew = by;
        }
        self.record_trace(node, "clock jumps", TraceSubject::Node);
    }

    /// Kills the agent. Plans in progress are half applied, and rolled back at the restart.
    fn kill_agent(&mut self, at: usize) {
        if !self.nodes[at].is_up {
            return;
        }
        self.stats.agent_restarts += 1;
        self.record_trace(at, "agent is killed", TraceSubject::Node);
        let node = &mut self.nodes[at];
        (node.is_up, node.incarnation) = (false, node.incarnation + 1);
        (node.watch_version, node.scheduled) = (None, ScheduledFlags::default());
        node.requests_in_flight.clear();
        node.requests_in_backoff = 0;
        let in_progress = std::mem::take(&mut node.applying);
        let calls = std::mem::take(&mut node.calls);
        for (unit, plan) in in_progress {
            let is_removed = unit.sandbox().is_some_and(|id| !self.nodes[at].netns.contains_key(id));
            let steps = self.rng.below(plan.steps.len() as u64 + 1) as usize;
            if !is_removed && let Err(why) = self.nodes[at].apply_and_roll_back(&plan, steps) {
                self.fail(
                    &[at],
                    format!("a plan of {unit} cannot be rolled back after {steps} steps: {why}"),
                );
            }
        }
        for call in calls.into_values() {
            self.call_lost(call);
        }
        let duration = self.rng.between(SECOND / 5, 5 * SECOND);
        self.queue.schedule(duration, ScheduledEvent::RestartAgent(at));
    }

    /// Restarts the agent from its journal.
    pub(crate) fn restart_agent(&mut self, at: usize) {
        // A node that was reinstalled meanwhile runs another agent.
        if self.nodes[at].is_removed || self.nodes[at].is_up {
            return;
        }
        self.record_trace(at, "agent restarts", TraceSubject::Node);
        self.compare_with_journal(at);
        let node = &mut self.nodes[at];
        node.state = with_settings(node.state.persistent());
        node.is_up = true;
        node.network = None;
        self.roll_back_unfinished(at);
        let state = &self.nodes[at].state;
        let deleted = state.sandboxes.keys().filter(|id| !self.nodes[at].netns.contains_key(*id));
        let deleted: Vec<SandboxId> = deleted.cloned().collect();
        for id in deleted {
            self.handle(at, Event::SandboxRemoved(id));
        }
        self.handle(at, Event::Restarted);
        self.handle(at, Event::Resync);
        self.nodes[at].must_list_pods = true;
        if !self.nodes[at].is_partitioned {
            self.list_all(at);
        }
        let incarnation = self.nodes[at].incarnation;
        self.queue.schedule(5 * SECOND, ScheduledEvent::ReviewBlocks(at, incarnation));
        self.queue.schedule(RESYNC_INTERVAL, ScheduledEvent::Resync(at, incarnation));
        self.schedule_pod_sync(at);
        self.schedule_status_write(at);
    }

    /// Rolls back changes that started and did not end.
    fn roll_back_unfinished(&mut self, at: usize) {
        let now = self.nodes[at].clock(self.queue.now());
        let unfinished: Vec<_> = self.nodes[at].state.unfinished.keys().cloned().collect();
        for unit in unfinished {
            let problems = self.nodes[at].state.problems.get(&unit).cloned().unwrap_or_default();
            let ended = ChangeEnded { unit, unit_state: None, problems, restored: Vec::new(), at: now };
            let record = Record::ChangeEnded(Box::new(ended));
            self.nodes[at].state.record(&record);
            self.journal(at, &record);
        }
    }
}
