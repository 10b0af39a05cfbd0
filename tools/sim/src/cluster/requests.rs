//! Requests of agents to the API server: claims of blocks and quotas. Requests and responses may be lost or slow.

use std::sync::Arc;

use knit_engine::Event;
use knit_engine::blocks::{Block, BlockEvent, BlockRequest};
use knit_engine::quota::{ClaimRequest, QuotaEvent};

use super::{Cluster, ScheduledEvent};
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

/// A request of an agent.
#[derive(Clone, Debug)]
pub(crate) enum ApiRequest {
    Block(BlockRequest),
    Claim(ClaimRequest),
}

impl ApiRequest {
    /// The name of its object.
    fn name(&self) -> String {
        match self {
            Self::Block(BlockRequest::Claim { name, .. } | BlockRequest::Return { name, .. }) => name.clone(),
            Self::Claim(request) => format!("{} version {}", request.key, request.version),
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Self::Block(BlockRequest::Return { .. }) => "releases",
            Self::Block(BlockRequest::Claim { .. }) | Self::Claim(_) => "claims",
        }
    }
}

impl Cluster {
    pub(crate) fn latency(&mut self) -> SimTime {
        if self.is_busy() && self.rng.per_mille(SLOW_PER_MILLE) {
            return self.rng.between(SECOND, 8 * SECOND);
        }
        self.rng.between(MILLIS, 30 * MILLIS)
    }

    pub(crate) fn is_lost(&mut self, node: usize) -> bool {
        self.nodes[node].is_partitioned
            || self.nodes[node].is_removed
            || (self.is_busy() && self.rng.per_mille(LOST_PER_MILLE))
    }

    /// An agent sends a request to the API server.
    pub(crate) fn send_request(&mut self, node: usize, request: ApiRequest) {
        self.attempts += 1;
        let (incarnation, attempt) = (self.nodes[node].incarnation, self.attempts);
        self.record_trace(node, request.verb(), TraceSubject::Name(request.name()));
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
        request: ApiRequest,
        attempt: u64,
    ) {
        if self.is_lost(node) {
            return;
        }
        let event = match request {
            ApiRequest::Block(BlockRequest::Claim { name, pool, cidr }) => {
                let holder = self.nodes[node].name.clone();
                let block = Block { name, uid: String::new(), pool, cidr, node: holder, is_local: false };
                let stored = self.api.create(block);
                Some(Event::Blocks(BlockEvent::Applied(self.as_seen_by(node, &stored))))
            }
            ApiRequest::Block(BlockRequest::Return { name, uid }) => {
                let title = TraceSubject::Name(format!("{name} {uid}"));
                self.record_trace(node, "deletes at the API server", title);
                self.api.delete(&name, &uid);
                Some(Event::Blocks(BlockEvent::Returned { name }))
            }
            ApiRequest::Claim(request) => self.claim_quota(node, &request),
        };
        self.propagate_changes();
        let delay = self.latency();
        let event = event.map(Box::new);
        self.queue.schedule(delay, ScheduledEvent::Response(node, incarnation, event, attempt));
    }

    /// Writes a claim. The response to a request that another write preceded has no event.
    fn claim_quota(&mut self, node: usize, request: &ClaimRequest) -> Option<Event> {
        let tenant = self.tenant_of(&request.key.namespace)?;
        let written = self.api.claim_quota(tenant, node, request)?;
        self.check_claims(tenant, &written, request.used);
        let claims = written.read(&self.tenants[tenant], node)?;
        Some(Event::Quotas(QuotaEvent::ClaimWritten(claims)))
    }

    pub(crate) fn deliver_response(&mut self, node: usize, event: Option<Event>, attempt: u64) {
        if self.is_lost(node) {
            return;
        }
        // A response after the timeout is ignored.
        if self.nodes[node].requests_in_flight.remove(&attempt) {
            match event {
                Some(Event::Blocks(event)) => self.handle_block_event(node, event),
                Some(event) => self.handle(node, event),
                None => {}
            }
        }
    }

    pub(crate) fn time_out_request(&mut self, node: usize, request: ApiRequest, attempt: u64) {
        if !self.nodes[node].requests_in_flight.remove(&attempt) {
            return;
        }
        let incarnation = self.nodes[node].incarnation;
        self.nodes[node].requests_in_backoff += 1;
        self.queue.schedule(
            RETRY_INTERVAL,
            ScheduledEvent::RetryRequest(node, incarnation, Box::new(request.clone())),
        );
        if let ApiRequest::Block(BlockRequest::Claim { name, .. }) = request {
            let why = "no response from the API server within 10 s".to_owned();
            self.handle_block_event(node, BlockEvent::ClaimFailed { name, error: why });
        }
    }

    pub(crate) fn retry_request(&mut self, node: usize, request: ApiRequest) {
        self.nodes[node].requests_in_backoff -= 1;
        let state = &self.nodes[node].state;
        let is_needed = match &request {
            ApiRequest::Block(BlockRequest::Return { .. }) => true,
            ApiRequest::Block(BlockRequest::Claim { name, .. }) => state.blocks.is_claiming(name),
            ApiRequest::Claim(claim) => state.is_claiming_quota(&claim.key, claim.version),
        };
        if is_needed {
            self.send_request(node, request);
        }
    }

    pub(crate) fn handle_block_event(&mut self, node: usize, event: BlockEvent) {
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
            BlockEvent::LocalNode(_) => ("receives its name", String::new()),
            BlockEvent::UsePools { .. } => ("receives the pools", String::new()),
            BlockEvent::ReviewDue => ("reviews its blocks", String::new()),
        };
        self.record_trace(node, what, TraceSubject::Name(name));
        self.handle(node, Event::Blocks(event));
    }

    /// A block from a node's point of view.
    pub(crate) fn as_seen_by(&self, node: usize, block: &Arc<Block>) -> Block {
        Block { is_local: block.node == self.nodes[node].name, ..(**block).clone() }
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
