//! Nodes that share one quota, and an in-memory API server with resource versions whose watch events arrive late.

use std::collections::{BTreeMap, VecDeque};

use knit_engine::quota::{ClaimRequest, QuotaClaims, QuotaEvent};
use knit_engine::{Event, StoredObject};
use knit_model::intent::IntentSpec;
use knit_model::provenance::Dialect;
use knit_model::quota::{QuotaIntent, ResourceCounts};
use knit_model::{NetState, SandboxId};

use super::node::{Node, key, object, sandbox, veth};

/// An API server that holds one quota, and the undelivered watch events of each node.
pub struct QuotaApi {
    pub hard: QuotaIntent,
    pub claims: BTreeMap<usize, ResourceCounts>,
    version: u64,
    pending: Vec<VecDeque<QuotaEvent>>,
}

/// Nodes of one cluster.
pub struct QuotaCluster {
    pub api: QuotaApi,
    pub nodes: Vec<Node>,
}

/// A quota of namespace `shop` from an API server.
pub fn shared_quota(hard: QuotaIntent) -> StoredObject {
    let mut quota = object("NetworkQuota", "shop", "most", vec![IntentSpec::Quota(hard)]);
    quota.intents[0].origin.dialect = Dialect::Kubernetes;
    quota
}

/// An object of namespace `shop` that gives each pod an interface with one address.
pub fn network() -> StoredObject {
    object("Veth", "shop", "one", vec![veth("x", "one", "br0", "10.0.0.0/24")])
}

impl QuotaApi {
    /// The quota as a node reads it.
    pub fn read(&self, node: usize) -> QuotaClaims {
        let others = self.claims.iter().filter(|(other, _)| **other != node);
        QuotaClaims {
            key: key(&shared_quota(self.hard)),
            uid: "uid-most".to_owned(),
            version: self.version,
            hard: self.hard.counts(),
            own: self.claims.get(&node).copied().unwrap_or_default(),
            others: others.fold(ResourceCounts::default(), |all, (_, one)| all + *one),
        }
    }

    /// The sum of all claims.
    pub fn claimed(&self) -> ResourceCounts {
        self.claims.values().fold(ResourceCounts::default(), |all, one| all + *one)
    }

    /// Writes a claim unless the quota has changed since it was read. Returns whether it was written.
    fn write(&mut self, node: usize, request: &ClaimRequest) -> bool {
        if request.version != self.version {
            return false;
        }
        self.claims.insert(node, request.claim);
        assert_eq!(request.used, self.claimed());
        self.publish();
        true
    }

    fn publish(&mut self) {
        self.version += 1;
        for node in 0..self.pending.len() {
            let event = QuotaEvent::Applied(self.read(node));
            self.pending[node].push_back(event);
        }
    }
}

impl QuotaCluster {
    /// Nodes that know the quota and have a network for pods of its namespace.
    pub fn new(nodes: usize, hard: QuotaIntent) -> Self {
        let pending = vec![VecDeque::new(); nodes];
        let api = QuotaApi { hard, claims: BTreeMap::new(), version: 1, pending };
        let nodes = (0..nodes).map(|_| Node::with_kernel(NetState::default())).collect();
        let mut cluster = Self { api, nodes };
        for node in 0..cluster.nodes.len() {
            cluster.nodes[node].start_recording();
            cluster.nodes[node].handle(Event::ObjectApplied(shared_quota(hard)));
            cluster.nodes[node].handle(Event::ObjectApplied(network()));
            cluster.restart_watch(node);
            cluster.deliver_watch_event(node);
        }
        cluster
    }

    pub fn add_pod(&mut self, node: usize, pod: u32) {
        self.nodes[node].handle(Event::SandboxUpdated(sandbox(&format!("p{pod}"), pod, "shop", "x")));
    }

    pub fn remove_pod(&mut self, node: usize, pod: u32) {
        self.nodes[node].handle(Event::SandboxRemoved(SandboxId(format!("p{pod}"))));
    }

    /// Changes the limits.
    pub fn set_limits(&mut self, hard: QuotaIntent) {
        self.api.hard = hard;
        self.api.publish();
        for (generation, node) in (2..).zip(&mut self.nodes) {
            let mut quota = shared_quota(hard);
            quota.object.generation = generation;
            node.handle(Event::ObjectApplied(quota));
        }
    }

    /// A node's watch restarts: the list is taken now and delivered later. It supersedes earlier watch events.
    pub fn restart_watch(&mut self, node: usize) {
        let list = QuotaEvent::Listed(vec![self.api.read(node)]);
        self.api.pending[node] = VecDeque::from([list]);
    }

    /// Delivers the next watch event to a node.
    pub fn deliver_watch_event(&mut self, node: usize) {
        if let Some(event) = self.api.pending[node].pop_front() {
            self.nodes[node].handle(Event::Quotas(event));
        }
    }

    /// The API server processes a request of a node, not necessarily the oldest. Without an answer, the node's host
    /// repeats it.
    pub fn process_request(&mut self, node: usize, index: usize, answers: bool) {
        let requests = &mut self.nodes[node].claim_requests;
        if requests.is_empty() {
            return;
        }
        let index = index % requests.len();
        let request = requests[index].clone();
        if answers {
            requests.remove(index);
        }
        if self.api.write(node, &request) && answers {
            let written = self.api.read(node);
            self.nodes[node].handle(Event::Quotas(QuotaEvent::ClaimWritten(written)));
        }
    }

    /// Restarts a node from its journal, and its watch: undelivered watch events and requests are lost. With
    /// `was_sent`, one request reached the API server and its response is lost.
    pub fn restart(&mut self, node: usize, was_sent: bool) {
        if was_sent {
            self.process_request(node, 0, false);
        }
        self.restart_watch(node);
        let node = &mut self.nodes[node];
        node.claim_requests.clear();
        node.recording = None;
        node.state = node.replayed();
        node.handle(Event::Restarted);
        node.handle(Event::Resync);
    }

    /// Delivers all events and processes all requests.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            let mut is_idle = true;
            for node in 0..self.nodes.len() {
                is_idle &= self.api.pending[node].is_empty() && self.nodes[node].claim_requests.is_empty();
                self.deliver_watch_event(node);
                self.process_request(node, 0, true);
            }
            if is_idle {
                return;
            }
        }
        panic!("the nodes do not settle");
    }

    /// What a node uses.
    pub fn used(&self, node: usize) -> ResourceCounts {
        self.nodes[node].state.used_by("shop")
    }

    /// What a node may use.
    pub fn granted(&self, node: usize) -> ResourceCounts {
        self.nodes[node].state.granted_quota(&key(&shared_quota(self.api.hard))).unwrap_or_default()
    }
}
