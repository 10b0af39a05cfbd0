//! Nodes that share ranges, over an API server made of plain data whose news come late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use knit_engine::blocks::{Block, News, Order};
use knit_engine::spans::Underlay;
use knit_engine::{Event, StoredObject};
use knit_model::NetState;
use knit_model::intent::{IntentSpec, NetworkIntent, OverlayIntent, TunnelEndpoint};
use knit_model::provenance::Dialect;

use super::node::{Node, object, sandbox, veth};

/// An API server that holds blocks, and what it has yet to tell each node.
#[derive(Default)]
pub struct Api {
    pub blocks: BTreeMap<String, Block>,
    made: usize,
    news: Vec<VecDeque<News>>,
    /// Whether it does not answer.
    pub away: bool,
}

/// Nodes that share it.
pub struct Cluster {
    pub api: Api,
    pub nodes: Vec<Node>,
}

impl Api {
    fn tell(&mut self, news: &News) {
        for (reader, queue) in self.news.iter_mut().enumerate() {
            let mut news = news.clone();
            if let News::Applied(block) = &mut news {
                block.mine = block.node == name(reader);
            }
            queue.push_back(news);
        }
    }

    /// Creates a block, unless there is one.
    pub fn create(&mut self, node: usize, block: &str, pool: &str, cidr: ipnet::IpNet) -> Block {
        if let Some(there) = self.blocks.get(block) {
            return Block { mine: there.node == name(node), ..there.clone() };
        }
        self.made += 1;
        let new = Block {
            name: block.to_owned(),
            uid: format!("uid-{}", self.made),
            pool: pool.to_owned(),
            cidr,
            node: name(node),
            mine: true,
        };
        self.blocks.insert(block.to_owned(), new.clone());
        self.tell(&News::Applied(new.clone()));
        new
    }

    /// Deletes a block, if it is the one that is meant.
    pub fn delete(&mut self, block: &str, uid: Option<&str>) {
        if self.blocks.get(block).is_some_and(|there| uid.is_none_or(|uid| there.uid == uid))
            && let Some(gone) = self.blocks.remove(block)
        {
            self.tell(&News::Deleted { name: gone.name, uid: gone.uid });
        }
    }

    fn list(&mut self, node: usize) -> News {
        // What comes after a list is news since then.
        self.news[node].clear();
        let all = self.blocks.values();
        News::Listed(all.map(|block| Block { mine: block.node == name(node), ..block.clone() }).collect())
    }
}

fn name(node: usize) -> String {
    format!("node{node}")
}

/// An object of the cluster: pods with the label get an interface on a bridge.
pub fn shared(range: &str) -> StoredObject {
    let mut object = object("Veth", "shop", "net", vec![veth("x", "net", "br0", range)]);
    object.intents.iter_mut().for_each(|intent| intent.origin.dialect = Dialect::Kubernetes);
    object
}

/// A network that is one on all nodes.
pub fn spanning(namespace: &str, name: &str, range: &str) -> StoredObject {
    let network = NetworkIntent {
        name: name.to_owned(),
        ranges: vec![range.parse().unwrap()],
        isolated: false,
        mtu: None,
        span: Some(OverlayIntent::default()),
    };
    let mut object = object("VirtualNetwork", namespace, name, vec![IntentSpec::Network(network)]);
    object.intents[0].origin.dialect = Dialect::Kubernetes;
    object
}

/// An object whose pods, those with this label, are on a network, and have these addresses by value, too.
pub fn on_network(namespace: &str, network: &str, label: &str, fixed: &[&str]) -> StoredObject {
    let mut want = veth(label, "net", &NetworkIntent::bridge_name(network), "10.0.0.0/24");
    let IntentSpec::Interface(interface) = &mut want else { unreachable!() };
    interface.ranges.clear();
    interface.network = Some(network.to_owned());
    interface.fixed = fixed.iter().map(|address| address.parse().unwrap()).collect();
    let mut object = object("Veth", namespace, label, vec![want]);
    object.intents[0].origin.dialect = Dialect::Kubernetes;
    object
}

/// What tunnels lie on, for a node of a cluster with this many.
pub fn underlay(node: usize, nodes: usize) -> Underlay {
    let address = |node: usize| IpAddr::from([192, 0, 2, node as u8 + 1]);
    let others = (0..nodes).filter(|other| *other != node);
    Underlay {
        taken: 7_500,
        port: 7_475,
        ends: vec![TunnelEndpoint { address: address(node), mtu: 1_500 }],
        nodes: others.map(|other| (name(other), vec![address(other)])).collect(),
    }
}

impl Cluster {
    /// So many nodes that know an object with this range, and which blocks there are.
    pub fn new(nodes: usize, range: &str) -> Self {
        Self::knowing(nodes, &[shared(range)])
    }

    /// So many nodes that know these objects, and which blocks there are.
    pub fn knowing(nodes: usize, objects: &[StoredObject]) -> Self {
        let mut api = Api::default();
        api.news.resize_with(nodes, VecDeque::new);
        let nodes = (0..nodes).map(|_| Node::holding(NetState::default())).collect();
        let mut cluster = Self { api, nodes };
        for node in 0..cluster.nodes.len() {
            for object in objects {
                cluster.nodes[node].hear(Event::ObjectApplied(object.clone()));
            }
            cluster.list(node);
        }
        cluster
    }

    /// Tells a node the addresses of all nodes, as its host does whenever blocks change.
    pub fn tell_addresses(&mut self, node: usize) {
        let underlay = underlay(node, self.nodes.len());
        if let Some(event) = self.nodes[node].state.underlay_news(underlay) {
            self.nodes[node].hear(event);
        }
    }

    /// A pod with this label.
    pub fn add_labelled(&mut self, node: usize, pod: u32, label: &str) {
        self.nodes[node].hear(Event::SandboxSeen(sandbox(&format!("p{pod}"), pod, "shop", label)));
    }

    pub fn add(&mut self, node: usize, pod: u32) {
        self.nodes[node].hear(Event::SandboxSeen(sandbox(&format!("p{pod}"), pod, "shop", "x")));
    }

    pub fn remove(&mut self, node: usize, pod: u32) {
        self.nodes[node].hear(Event::SandboxGone(knit_model::SandboxId(format!("p{pod}"))));
    }

    /// The API server tells a node all there is.
    pub fn list(&mut self, node: usize) {
        let list = self.api.list(node);
        self.nodes[node].hear(Event::Blocks(list));
    }

    /// A node's watch begins anew: the list is as of now, and heard later.
    pub fn relist(&mut self, node: usize) {
        let list = self.api.list(node);
        self.api.news[node].push_back(list);
    }

    /// A node hears the next thing that its watch tells.
    pub fn watch(&mut self, node: usize) {
        if let Some(news) = self.api.news[node].pop_front() {
            self.nodes[node].hear(Event::Blocks(news));
        }
    }

    /// The API server does the next thing that a node ordered, and answers if the node still listens.
    pub fn order(&mut self, node: usize, answers: bool) {
        let Some(order) = self.nodes[node].orders.pop_front() else { return };
        if self.api.away {
            if let Order::Claim { name, .. } = &order {
                let why = "the API server does not answer".to_owned();
                self.nodes[node].hear(Event::Blocks(News::Refused { name: name.clone(), why }));
            }
            self.nodes[node].orders.push_back(order);
            return;
        }
        let answer = match &order {
            Order::Claim { name, pool, cidr } => News::Applied(self.api.create(node, name, pool, *cidr)),
            Order::Return { name, uid } => {
                self.api.delete(name, Some(uid));
                News::Returned { name: name.clone() }
            }
        };
        if answers {
            self.nodes[node].hear(Event::Blocks(answer));
        }
    }

    pub fn review(&mut self, node: usize) {
        self.nodes[node].hear(Event::Blocks(News::Reviewed));
    }

    /// The node begins anew from what it wrote down, and so does its watch: what was on its way to it is lost. One order may
    /// have reached the API server, whose answer nobody hears.
    pub fn restart(&mut self, node: usize, was_sent: bool) {
        if was_sent {
            self.order(node, false);
        }
        self.relist(node);
        let node = &mut self.nodes[node];
        node.orders.clear();
        node.state = node.replayed();
        node.hear(Event::Restarted);
        node.hear(Event::Resync);
    }

    /// Everything is told and done.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            let mut is_quiet = true;
            for node in 0..self.nodes.len() {
                is_quiet &= self.api.news[node].is_empty() && self.nodes[node].orders.is_empty();
                self.watch(node);
                self.order(node, true);
            }
            if is_quiet {
                return;
            }
        }
        panic!("the nodes do not come to rest");
    }

    /// The addresses of a node's pods, as the state has them.
    pub fn addresses(&self, node: usize) -> Vec<IpAddr> {
        let leases = self.nodes[node].state.leases.iter();
        leases.filter(|(_, _, lease)| lease.is_live()).map(|(_, address, _)| address).collect()
    }

    /// Addresses that two nodes gave.
    pub fn twice(&self) -> BTreeSet<IpAddr> {
        let mut seen = BTreeSet::new();
        let all = (0..self.nodes.len()).flat_map(|node| self.addresses(node));
        all.filter(|address| !seen.insert(*address)).collect()
    }

    /// Names of blocks, as short as they can be told apart: node and index.
    pub fn held(&self) -> Vec<String> {
        let blocks = self.api.blocks.values();
        blocks.map(|block| format!("{}:{}", block.node, block.cidr)).collect()
    }
}
