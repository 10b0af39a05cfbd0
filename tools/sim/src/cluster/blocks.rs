//! Block requests between agents and the API server: requests and responses may be lost, and watch events arrive
//! late.

use std::sync::Arc;

use knit_engine::Event;
use knit_engine::blocks::{Block, BlockEvent, BlockRequest};

use super::{Cluster, ScheduledEvent};
use crate::api_server::BlockChange;
use crate::queue::{MILLIS, SECOND, SimTime};
use crate::trace::TraceSubject;

/// The agent's own interval: a block that is empty at two reviews in a row is released.
const REVIEW_INTERVAL: SimTime = 5 * SECOND;
/// Retry interval of failed requests.
const RETRY_INTERVAL: SimTime = SECOND;
/// Timeout of requests.
const REQUEST_TIMEOUT: SimTime = 10 * SECOND;
/// Lost requests and responses, per mille.
const LOST_PER_MILLE: u64 = 3;
/// Slow requests and responses, per mille.
const SLOW_PER_MILLE: u64 = 10;

impl Cluster {
    fn latency(&mut self) -> SimTime {
        if self.is_busy() && self.rng.per_mille(SLOW_PER_MILLE) {
            return self.rng.between(SECOND, 8 * SECOND);
        }
        self.rng.between(MILLIS, 30 * MILLIS)
    }

    fn is_lost(&mut self, node: usize) -> bool {
        self.nodes[node].is_partitioned
            || self.nodes[node].is_removed
            || (self.is_busy() && self.rng.per_mille(LOST_PER_MILLE))
    }

    /// An agent sends a request to the API server.
    pub(crate) fn send_request(&mut self, node: usize, request: BlockRequest) {
        self.attempts += 1;
        let (incarnation, attempt) = (self.nodes[node].incarnation, self.attempts);
        let what = if matches!(request, BlockRequest::Claim { .. }) { "claims" } else { "releases" };
        self.record_trace(node, what, TraceSubject::Name(block_name(&request).to_owned()));
        self.nodes[node].requests_in_flight.insert(attempt);
        let delay = self.latency();
        self.queue.schedule(
            delay,
            ScheduledEvent::RequestArrival(node, incarnation, Box::new(request.clone()), attempt),
        );
        self.queue.schedule(
            REQUEST_TIMEOUT,
            ScheduledEvent::RequestTimeout(node, incarnation, Box::new(request), attempt),
        );
    }

    /// The API server processes the request and responds.
    pub(crate) fn process_request(
        &mut self,
        node: usize,
        incarnation: u32,
        request: BlockRequest,
        attempt: u64,
    ) {
        if self.is_lost(node) {
            return;
        }
        let event = match request {
            BlockRequest::Claim { name, pool, cidr } => {
                let holder = self.nodes[node].name.clone();
                let block = Block { name, uid: String::new(), pool, cidr, node: holder, is_local: false };
                let stored = self.api.create(block);
                BlockEvent::Applied(self.as_seen_by(node, &stored))
            }
            BlockRequest::Return { name, uid } => {
                self.record_trace(
                    node,
                    "deletes at the API server",
                    TraceSubject::Name(format!("{name} {uid}")),
                );
                self.api.delete(&name, &uid);
                BlockEvent::Returned { name }
            }
        };
        self.propagate_changes();
        let delay = self.latency();
        self.queue.schedule(delay, ScheduledEvent::Response(node, incarnation, Box::new(event), attempt));
    }

    pub(crate) fn deliver_response(&mut self, node: usize, event: BlockEvent, attempt: u64) {
        if self.is_lost(node) {
            return;
        }
        // A response after the timeout is ignored.
        if self.nodes[node].requests_in_flight.remove(&attempt) {
            self.handle_block_event(node, event);
        }
    }

    pub(crate) fn time_out_request(&mut self, node: usize, request: BlockRequest, attempt: u64) {
        if !self.nodes[node].requests_in_flight.remove(&attempt) {
            return;
        }
        let (incarnation, name) = (self.nodes[node].incarnation, block_name(&request).to_owned());
        self.nodes[node].requests_in_backoff += 1;
        self.queue.schedule(
            RETRY_INTERVAL,
            ScheduledEvent::RetryRequest(node, incarnation, Box::new(request.clone())),
        );
        if matches!(request, BlockRequest::Claim { .. }) {
            let why = "no response from the API server within 10 s".to_owned();
            self.handle_block_event(node, BlockEvent::ClaimFailed { name, error: why });
        }
    }

    pub(crate) fn retry_request(&mut self, node: usize, request: BlockRequest) {
        self.nodes[node].requests_in_backoff -= 1;
        let is_claiming = || self.nodes[node].state.blocks.is_claiming(block_name(&request));
        if matches!(request, BlockRequest::Return { .. }) || is_claiming() {
            self.send_request(node, request);
        }
    }

    fn handle_block_event(&mut self, node: usize, event: BlockEvent) {
        let (what, name) = match &event {
            BlockEvent::Applied(block) if block.is_local => {
                ("holds", format!("{} {}", block.name, block.uid))
            }
            BlockEvent::Applied(block) => {
                ("receives block of another node:", format!("{} {} of {}", block.name, block.uid, block.node))
            }
            BlockEvent::Deleted { name, uid } => ("receives deletion of", format!("{name} {uid}")),
            BlockEvent::ClaimFailed { name, .. } => ("failed to claim", name.clone()),
            BlockEvent::Returned { name } => ("has released", name.clone()),
            BlockEvent::Listed(_) => ("receives the list of blocks", String::new()),
            BlockEvent::UsePools { .. } => ("receives the pools", String::new()),
            BlockEvent::ReviewDue => ("reviews its blocks", String::new()),
        };
        self.record_trace(node, what, TraceSubject::Name(name));
        self.handle(node, Event::Blocks(event));
    }

    /// A block from a node's point of view.
    fn as_seen_by(&self, node: usize, block: &Block) -> Block {
        Block { is_local: block.node == self.nodes[node].name, ..block.clone() }
    }

    /// Schedules watch events for all nodes and the controller.
    pub(crate) fn propagate_changes(&mut self) {
        let version = self.api.version();
        if version == self.propagated_version {
            return;
        }
        for change in self.propagated_version..version {
            if let Some(change) = self.api.change(change) {
                self.controller.block_changed(&change);
            }
        }
        self.propagated_version = version;
        self.schedule_controller();
        let held = self.api.blocks().count() as u64;
        self.stats.max_blocks = self.stats.max_blocks.max(held);
        for node in 0..self.nodes.len() {
            self.schedule_watch(node);
        }
    }

    pub(crate) fn schedule_watch(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        let is_watching = here.watch_version.is_some() && here.can_reach_api();
        if is_watching && !std::mem::replace(&mut here.scheduled.watch, true) {
            let incarnation = here.incarnation;
            let delay = self.rng.between(2 * MILLIS, 300 * MILLIS);
            self.queue.schedule(delay, ScheduledEvent::WatchDelivery(node, incarnation));
        }
    }

    /// The watch delivers events, some twice, and not always all of them.
    pub(crate) fn deliver_watch_events(&mut self, node: usize) {
        self.nodes[node].scheduled.watch = false;
        if self.nodes[node].is_partitioned {
            return;
        }
        while let Some(version) = self.nodes[node].watch_version
            && let Some(change) = self.api.change(version)
        {
            self.nodes[node].watch_version = Some(version + 1);
            let times = if self.is_busy() && self.rng.per_mille(20) { 2 } else { 1 };
            for _ in 0..times {
                let (BlockChange::Applied(block) | BlockChange::Deleted(block)) = &change;
                let is_holder = block.node == self.nodes[node].name;
                let event = match &change {
                    BlockChange::Applied(block) => BlockEvent::Applied(self.as_seen_by(node, block)),
                    BlockChange::Deleted(block) => {
                        BlockEvent::Deleted { name: block.name.clone(), uid: block.uid.clone() }
                    }
                };
                if is_holder {
                    self.handle_block_event(node, event);
                } else {
                    self.handle(node, Event::Blocks(event));
                }
            }
            if self.is_busy() && self.rng.per_mille(30) {
                return self.schedule_watch(node);
            }
        }
    }

    /// The agent lists blocks; the list is as of now, and arrives later.
    pub(crate) fn list_blocks(&mut self, node: usize) {
        if !self.nodes[node].can_reach_api() {
            return;
        }
        self.nodes[node].watch_version = None;
        let (all, version) = (Arc::new(self.api.list()), self.api.version());
        let delay = self.latency() * 4;
        let incarnation = self.nodes[node].incarnation;
        self.queue.schedule(delay, ScheduledEvent::ListResponse(node, incarnation, all, version));
    }

    pub(crate) fn deliver_list(&mut self, node: usize, all: &[Arc<Block>], version: usize) {
        if self.is_lost(node) {
            // A partitioned agent lists again when the partition heals.
            return self.list_blocks(node);
        }
        if self.nodes[node].watch_version.is_some() {
            return;
        }
        self.nodes[node].watch_version = Some(version);
        let all = all.iter().map(|block| self.as_seen_by(node, block)).collect();
        self.handle_block_event(node, BlockEvent::Listed(all));
        self.schedule_watch(node);
    }

    /// Releases blocks that are empty for long.
    pub(crate) fn review_blocks(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        self.queue.schedule(REVIEW_INTERVAL, ScheduledEvent::ReviewBlocks(node, incarnation));
        if self.nodes[node].state.blocks.has_any() {
            self.handle(node, Event::Blocks(BlockEvent::ReviewDue));
        }
    }
}

fn block_name(request: &BlockRequest) -> &str {
    match request {
        BlockRequest::Claim { name, .. } | BlockRequest::Return { name, .. } => name,
    }
}
