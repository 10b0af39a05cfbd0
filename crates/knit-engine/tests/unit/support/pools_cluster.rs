//! Nodes that take their pod ranges from address pools, and the blocks of an API server.

use std::collections::BTreeMap;

use ipnet::IpNet;
use knit_engine::blocks::{Block, BlockEvent, BlockRequest};
use knit_engine::call::{AttachmentMetadata, DetachScope, InterfaceRequest, SandboxRequest};
use knit_engine::{AttachRequest, CallId, CallResult, DetachRequest, Event, ObjectKey, cluster};
use knit_model::SandboxId;
use knit_model::intent::{AddressPoolIntent, BridgeIntent, IntentSpec, NetworkIntent, NodeRoutesIntent};
use knit_model::link::{Attrs, Bridge};
use knit_model::problem::Problem;
use knit_model::provenance::Dialect;

use super::executor::new_sandboxes;
use super::node::{Node, object};

/// Nodes, and the blocks of the API server.
pub struct PoolCluster {
    pub nodes: Vec<Node>,
    pub blocks: BTreeMap<String, Block>,
    created: usize,
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn pool(name: &str, range: &str, block: u8) -> Event {
    pool_for(&[], name, range, block)
}

/// A pool for pods of these namespaces.
pub fn pool_for(namespaces: &[&str], name: &str, range: &str, block: u8) -> Event {
    let namespaces = namespaces.iter().map(ToString::to_string).collect();
    let spec = IntentSpec::AddressPool(AddressPoolIntent {
        name: name.to_owned(),
        range: net(range),
        block,
        namespaces,
        masquerade: None,
    });
    Event::ObjectApplied(object("PodAddressPool", "", name, vec![spec]))
}

pub fn pool_deleted(name: &str) -> Event {
    Event::ObjectDeleted(ObjectKey {
        kind: "PodAddressPool".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    })
}

impl PoolCluster {
    pub fn new(nodes: usize) -> Self {
        let mut cluster = Self { nodes: Vec::new(), blocks: BTreeMap::new(), created: 0 };
        for number in 0..nodes {
            let names: Vec<String> = (0..12).flat_map(|n| [format!("p{n}"), format!("q{n}")]).collect();
            let names = names.iter().map(String::as_str).chain(["a", "b", "old", "new"]);
            let mut node = Node::with_kernel(new_sandboxes(&names.collect::<Vec<_>>()));
            node.handle(Event::Blocks(BlockEvent::UsePools { node: format!("node{number}") }));
            node.handle(Event::Blocks(BlockEvent::Listed(Vec::new())));
            cluster.nodes.push(node);
        }
        cluster
    }

    pub fn with_pool(nodes: usize, range: &str, block: u8) -> Self {
        let mut cluster = Self::new(nodes);
        cluster.broadcast(|| pool("pods", range, block));
        cluster
    }

    pub fn broadcast(&mut self, event: impl Fn() -> Event) {
        self.nodes.iter_mut().for_each(|node| node.handle(event()));
        self.settle();
    }

    /// Processes the block requests of all nodes and updates each node's network, until nothing changes.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            let mut is_idle = true;
            for number in 0..self.nodes.len() {
                while let Some(request) = self.nodes[number].block_requests.pop_front() {
                    is_idle = false;
                    self.execute(number, request);
                }
                is_idle &= !self.sync_network(number);
            }
            if is_idle {
                return;
            }
        }
        panic!("the nodes do not settle");
    }

    pub fn execute(&mut self, number: usize, request: BlockRequest) {
        let event = match request {
            BlockRequest::Claim { name, pool, cidr } => {
                self.created += 1;
                let (uid, node) = (format!("uid-{}", self.created), format!("node{number}"));
                let new = Block { name: name.clone(), uid, pool, cidr, node, is_local: true };
                BlockEvent::Applied(self.blocks.entry(name).or_insert(new).clone())
            }
            BlockRequest::Return { name, uid } => {
                let deleted = self.blocks.remove(&name).unwrap();
                assert_eq!(deleted.uid, uid);
                self.nodes[number].handle(Event::Blocks(BlockEvent::Returned { name: name.clone() }));
                BlockEvent::Deleted { name, uid }
            }
        };
        self.notify_all(&event);
    }

    pub fn notify_all(&mut self, event: &BlockEvent) {
        for (reader, node) in self.nodes.iter_mut().enumerate() {
            let mut event = event.clone();
            if let BlockEvent::Applied(block) = &mut event {
                block.is_local = block.node == format!("node{reader}");
            }
            node.handle(Event::Blocks(event));
        }
    }

    /// Updates a node's network from its ranges, as the agent does; true if it changed.
    pub fn sync_network(&mut self, number: usize) -> bool {
        let node = &mut self.nodes[number];
        let ranges = node.state.ranges(&[net(&format!("10.1.{number}.0/24"))]);
        if !ranges.pending_pools.is_empty() {
            return false;
        }
        let network = NetworkIntent {
            name: cluster::NAME.to_owned(),
            ranges: ranges.own.clone(),
            isolated: false,
            mtu: None,
            overlay: None,
        };
        let bridge = BridgeIntent {
            name: "knit0".parse().unwrap(),
            ranges: ranges.own,
            attrs: Attrs::default(),
            bridge: Bridge::default(),
            port: None,
        };
        let node_routes = NodeRoutesIntent { pools: ranges.pools, ..NodeRoutesIntent::default() };
        let specs = vec![
            IntentSpec::Network(network),
            IntentSpec::Bridge(bridge),
            IntentSpec::NodeRoutes(node_routes),
        ];
        let new = object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, specs);
        let current = node.state.objects.get(&cluster::key());
        if current.is_some_and(|current| current.intents == new.intents) {
            return false;
        }
        node.handle(Event::ObjectApplied(new));
        true
    }

    pub fn attach(&mut self, number: usize, id: &str) -> Result<Vec<String>, Problem> {
        self.attach_as(number, "", id, InterfaceRequest::default())
    }

    /// Attaches a pod of a namespace with these options.
    pub fn attach_as(
        &mut self,
        number: usize,
        namespace: &str,
        id: &str,
        options: InterfaceRequest,
    ) -> Result<Vec<String>, Problem> {
        let node = &mut self.nodes[number];
        let options = InterfaceRequest { default_route: true, ..options };
        node.handle(Event::AttachRequested(Box::new(AttachRequest {
            call: CallId(format!("{id}-{}", node.journal.len())),
            dialect: Dialect::Cni,
            sandbox: SandboxRequest {
                id: id.to_owned(),
                netns: format!("/{id}"),
                namespace: namespace.to_owned(),
                ..SandboxRequest::default()
            },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), options)],
            metadata: AttachmentMetadata::default(),
            fail_if_present: false,
            ticket: 7,
            started_at: 0,
        })));
        match node.results.pop().unwrap() {
            CallResult::Attached { interfaces, .. } => {
                let addresses = interfaces.iter().flat_map(|(_, report)| &report.addresses);
                Ok(addresses.map(ToString::to_string).collect())
            }
            CallResult::Failed(problem) => Err(problem),
            other => panic!("{other:?}"),
        }
    }

    pub fn detach(&mut self, number: usize, id: &str) {
        let (call, sandbox) = (CallId(format!("{id}-detach")), SandboxId(id.to_owned()));
        let (which, netns) = (DetachScope::All, String::new());
        let node = &mut self.nodes[number];
        node.handle(Event::DetachRequested(DetachRequest {
            call,
            sandbox,
            netns,
            scope: which,
            forget_sandbox: true,
            started_at: 0,
        }));
        assert_eq!(node.results.pop(), Some(CallResult::Detached));
    }

    pub fn review(&mut self, number: usize) {
        self.nodes[number].handle(Event::Blocks(BlockEvent::ReviewDue));
        self.settle();
    }

    pub fn blocks_of(&self, number: usize) -> Vec<IpNet> {
        let name = format!("node{number}");
        self.blocks.values().filter(|block| block.node == name).map(|block| block.cidr).collect()
    }
}
