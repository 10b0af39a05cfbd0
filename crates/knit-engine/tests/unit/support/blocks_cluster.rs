//! Nodes that share address ranges, and an in-memory API server whose watch events arrive late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use knit_engine::blocks::{Block, BlockEvent, BlockRequest};
use knit_engine::nodes::{NodeEvent, NodeInfo};
use knit_engine::overlay::TunnelConfig;
use knit_engine::{Event, StoredObject};
use knit_model::NetState;
use knit_model::intent::{IntentSpec, NetworkIntent, OverlayIntent, TunnelEndpoint};
use knit_model::provenance::Dialect;

use super::node::{Node, object, sandbox, veth};

/// An API server that holds address blocks, and the undelivered watch events of each node.
#[derive(Default)]
pub struct ApiServer {
    pub blocks: BTreeMap<String, Block>,
    created: usize,
    pending: Vec<VecDeque<BlockEvent>>,
    /// Requests fail.
    pub unavailable: bool,
}

/// Nodes of one cluster.
pub struct BlockCluster {
    pub api: ApiServer,
    pub nodes: Vec<Node>,
}

impl ApiServer {
    fn enqueue(&mut self, event: &BlockEvent) {
        for (reader, queue) in self.pending.iter_mut().enumerate() {
            let mut event = event.clone();
            if let BlockEvent::Applied(block) = &mut event {
                block.is_local = block.node == name(reader);
            }
            queue.push_back(event);
        }
    }

    /// Creates a block, unless it exists.
    pub fn create(&mut self, node: usize, block: &str, pool: &str, cidr: ipnet::IpNet) -> Block {
        if let Some(existing) = self.blocks.get(block) {
            return Block { is_local: existing.node == name(node), ..existing.clone() };
        }
        self.created += 1;
        let new = Block {
            name: block.to_owned(),
            uid: format!("uid-{}", self.created),
            pool: pool.to_owned(),
            cidr,
            node: name(node),
            is_local: true,
        };
        self.blocks.insert(block.to_owned(), new.clone());
        self.enqueue(&BlockEvent::Applied(new.clone()));
        new
    }

    /// Deletes a block, if the UID matches.
    pub fn delete(&mut self, block: &str, uid: Option<&str>) {
        if self.blocks.get(block).is_some_and(|block| uid.is_none_or(|uid| block.uid == uid))
            && let Some(deleted) = self.blocks.remove(block)
        {
            self.enqueue(&BlockEvent::Deleted { name: deleted.name, uid: deleted.uid });
        }
    }

    fn list(&mut self, node: usize) -> BlockEvent {
        // A list supersedes earlier watch events.
        self.pending[node].clear();
        let all = self.blocks.values();
        BlockEvent::Listed(
            all.map(|block| Block { is_local: block.node == name(node), ..block.clone() }).collect(),
        )
    }
}

fn name(node: usize) -> String {
    format!("node{node}")
}

/// A Kubernetes object: selected pods get an interface on a bridge.
pub fn shared_range_object(range: &str) -> StoredObject {
    let mut object = object("Veth", "shop", "net", vec![veth("x", "net", "br0", range)]);
    object.intents.iter_mut().for_each(|intent| intent.origin.dialect = Dialect::Kubernetes);
    object
}

/// A VirtualNetwork with an overlay between nodes.
pub fn overlay_network(namespace: &str, name: &str, range: &str) -> StoredObject {
    let network = NetworkIntent {
        name: name.to_owned(),
        ranges: vec![range.parse().unwrap()],
        isolated: false,
        mtu: None,
        overlay: Some(OverlayIntent::default()),
    };
    let mut object = object("VirtualNetwork", namespace, name, vec![IntentSpec::Network(network)]);
    object.intents[0].origin.dialect = Dialect::Kubernetes;
    object
}

/// An object whose pods, selected by this label, are on a network with these fixed addresses.
pub fn interface_on_network(namespace: &str, network: &str, label: &str, fixed: &[&str]) -> StoredObject {
    let mut intent = veth(label, "net", &NetworkIntent::bridge_name(network), "10.0.0.0/24");
    let IntentSpec::Interface(interface) = &mut intent else { unreachable!() };
    interface.ranges.clear();
    interface.network = Some(network.to_owned());
    interface.fixed = fixed.iter().map(|address| address.parse().unwrap()).collect();
    let mut object = object("Veth", namespace, label, vec![intent]);
    object.intents[0].origin.dialect = Dialect::Kubernetes;
    object
}

/// The overlay tunnels of a node.
pub fn tunnels(node: usize) -> TunnelConfig {
    let endpoints = vec![TunnelEndpoint { address: address(node), mtu: 1_500 }];
    TunnelConfig { reserved_vni: 7_500, port: 7_475, endpoints }
}

/// The address of a node.
fn address(node: usize) -> IpAddr {
    IpAddr::from([192, 0, 2, node as u8 + 1])
}

impl BlockCluster {
    /// Nodes that have an object with this range and have listed the blocks.
    pub fn new(nodes: usize, range: &str) -> Self {
        Self::with_objects(nodes, &[shared_range_object(range)])
    }

    /// Nodes that have these objects and have listed the blocks.
    pub fn with_objects(nodes: usize, objects: &[StoredObject]) -> Self {
        let mut api = ApiServer::default();
        api.pending.resize_with(nodes, VecDeque::new);
        let nodes = (0..nodes).map(|_| Node::with_kernel(NetState::default())).collect();
        let mut cluster = Self { api, nodes };
        for node in 0..cluster.nodes.len() {
            for object in objects {
                cluster.nodes[node].handle(Event::ObjectApplied(object.clone()));
            }
            cluster.list(node);
        }
        cluster
    }

    /// Gives a node the addresses of all nodes, as the agent does when blocks change.
    pub fn update_underlay(&mut self, node: usize) {
        let info = |other: usize| NodeInfo {
            name: name(other),
            is_local: other == node,
            addresses: vec![address(other)],
            ..NodeInfo::default()
        };
        let listed = NodeEvent::Listed((0..self.nodes.len()).map(info).collect());
        self.nodes[node].handle(Event::Nodes(listed));
        self.nodes[node].handle(Event::TunnelEndpoints(tunnels(node)));
    }

    /// Adds a pod with this label.
    pub fn add_pod_labelled(&mut self, node: usize, pod: u32, label: &str) {
        self.nodes[node].handle(Event::SandboxUpdated(sandbox(&format!("p{pod}"), pod, "shop", label)));
    }

    pub fn add_pod(&mut self, node: usize, pod: u32) {
        self.nodes[node].handle(Event::SandboxUpdated(sandbox(&format!("p{pod}"), pod, "shop", "x")));
    }

    pub fn remove_pod(&mut self, node: usize, pod: u32) {
        self.nodes[node].handle(Event::SandboxRemoved(knit_model::SandboxId(format!("p{pod}"))));
    }

    /// A node lists all blocks.
    pub fn list(&mut self, node: usize) {
        let list = self.api.list(node);
        self.nodes[node].handle(Event::Blocks(BlockEvent::LocalNode(name(node))));
        self.nodes[node].handle(Event::Blocks(list));
    }

    /// A node's watch restarts: the list is taken now and delivered later.
    pub fn restart_watch(&mut self, node: usize) {
        let list = self.api.list(node);
        self.api.pending[node].push_back(list);
    }

    /// Delivers the next watch event to a node.
    pub fn deliver_watch_event(&mut self, node: usize) {
        if let Some(event) = self.api.pending[node].pop_front() {
            self.nodes[node].handle(Event::Blocks(event));
        }
    }

    /// The API server processes the next block request of a node; `answers` is false when the node misses the
    /// response.
    pub fn process_request(&mut self, node: usize, answers: bool) {
        let Some(order) = self.nodes[node].block_requests.pop_front() else { return };
        if self.api.unavailable {
            if let BlockRequest::Claim { name, .. } = &order {
                let why = "the API server does not answer".to_owned();
                self.nodes[node]
                    .handle(Event::Blocks(BlockEvent::ClaimFailed { name: name.clone(), error: why }));
            }
            self.nodes[node].block_requests.push_back(order);
            return;
        }
        let answer = match &order {
            BlockRequest::Claim { name, pool, cidr } => {
                BlockEvent::Applied(self.api.create(node, name, pool, *cidr))
            }
            BlockRequest::Return { name, uid } => {
                self.api.delete(name, Some(uid));
                BlockEvent::Returned { name: name.clone() }
            }
        };
        if answers {
            self.nodes[node].handle(Event::Blocks(answer));
        }
    }

    pub fn review(&mut self, node: usize) {
        self.nodes[node].handle(Event::Blocks(BlockEvent::ReviewDue));
    }

    /// Restarts a node from its journal, and its watch: undelivered watch events are lost. With `was_sent`, one
    /// request reached the API server and its response is lost.
    pub fn restart(&mut self, node: usize, was_sent: bool) {
        if was_sent {
            self.process_request(node, false);
        }
        self.restart_watch(node);
        let node = &mut self.nodes[node];
        node.block_requests.clear();
        node.state = node.replayed();
        node.handle(Event::Restarted);
        node.handle(Event::Resync);
    }

    /// Delivers all events and processes all requests.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            let mut is_idle = true;
            for node in 0..self.nodes.len() {
                is_idle &= self.api.pending[node].is_empty() && self.nodes[node].block_requests.is_empty();
                self.deliver_watch_event(node);
                self.process_request(node, true);
            }
            if is_idle {
                return;
            }
        }
        panic!("the nodes do not settle");
    }

    /// Live leases of a node.
    pub fn addresses(&self, node: usize) -> Vec<IpAddr> {
        let leases = self.nodes[node].state.leases.iter();
        leases.filter(|(_, _, lease)| lease.is_live()).map(|(_, address, _)| address).collect()
    }

    /// Addresses that two nodes allocated.
    pub fn duplicate_addresses(&self) -> BTreeSet<IpAddr> {
        let mut seen = BTreeSet::new();
        let all = (0..self.nodes.len()).flat_map(|node| self.addresses(node));
        all.filter(|address| !seen.insert(*address)).collect()
    }

    /// Blocks as `node:cidr`.
    pub fn held_blocks(&self) -> Vec<String> {
        let blocks = self.api.blocks.values();
        blocks.map(|block| format!("{}:{}", block.node, block.cidr)).collect()
    }
}
