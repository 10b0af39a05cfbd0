//! Several nodes that take their pods' ranges from pools, and the blocks that an API server holds.

use std::collections::BTreeMap;

use ipnet::IpNet;
use knit_engine::blocks::{Block, News, Order};
use knit_engine::call::{Asked, Notes, Which, Wished};
use knit_engine::{Answer, Attach, CallId, Detach, Event, ObjectKey, cluster};
use knit_model::SandboxId;
use knit_model::intent::{AddressPoolIntent, BridgeIntent, IntentSpec, NetworkIntent, NodeRoutesIntent};
use knit_model::link::{Attrs, Bridge};
use knit_model::problem::Problem;
use knit_model::provenance::Dialect;

use super::node::{Node, object};
use super::tasks::newborn;

/// Nodes, and the blocks that an API server holds.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub blocks: BTreeMap<String, Block>,
    made: usize,
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
    let want = IntentSpec::AddressPool(AddressPoolIntent {
        name: name.to_owned(),
        range: net(range),
        block,
        namespaces,
        masquerade: None,
    });
    Event::ObjectApplied(object("PodAddressPool", "", name, vec![want]))
}

pub fn pool_gone(name: &str) -> Event {
    Event::ObjectDeleted(ObjectKey {
        kind: "PodAddressPool".to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
    })
}

impl Cluster {
    pub fn new(nodes: usize) -> Self {
        let mut cluster = Self { nodes: Vec::new(), blocks: BTreeMap::new(), made: 0 };
        for number in 0..nodes {
            let names: Vec<String> = (0..12).flat_map(|n| [format!("p{n}"), format!("q{n}")]).collect();
            let names = names.iter().map(String::as_str).chain(["a", "b", "old", "new"]);
            let mut node = Node::holding(newborn(&names.collect::<Vec<_>>()));
            node.hear(Event::Blocks(News::Pooled { node: format!("node{number}") }));
            node.hear(Event::Blocks(News::Listed(Vec::new())));
            cluster.nodes.push(node);
        }
        cluster
    }

    pub fn with_pool(nodes: usize, range: &str, block: u8) -> Self {
        let mut cluster = Self::new(nodes);
        cluster.all_hear(|| pool("pods", range, block));
        cluster
    }

    pub fn all_hear(&mut self, event: impl Fn() -> Event) {
        self.nodes.iter_mut().for_each(|node| node.hear(event()));
        self.settle();
    }

    /// Does what nodes order, tells everyone, and has each node's network as its ranges are then.
    pub fn settle(&mut self) {
        for _ in 0..50 {
            let mut is_quiet = true;
            for number in 0..self.nodes.len() {
                while let Some(order) = self.nodes[number].orders.pop_front() {
                    is_quiet = false;
                    self.carry_out(number, order);
                }
                is_quiet &= !self.refresh(number);
            }
            if is_quiet {
                return;
            }
        }
        panic!("the nodes do not come to rest");
    }

    pub fn carry_out(&mut self, number: usize, order: Order) {
        let news = match order {
            Order::Claim { name, pool, cidr } => {
                self.made += 1;
                let (uid, node) = (format!("uid-{}", self.made), format!("node{number}"));
                let new = Block { name: name.clone(), uid, pool, cidr, node, mine: true };
                News::Applied(self.blocks.entry(name).or_insert(new).clone())
            }
            Order::Return { name, uid } => {
                let gone = self.blocks.remove(&name).unwrap();
                assert_eq!(gone.uid, uid);
                self.nodes[number].hear(Event::Blocks(News::Returned { name: name.clone() }));
                News::Deleted { name, uid }
            }
        };
        self.tell(&news);
    }

    pub fn tell(&mut self, news: &News) {
        for (reader, node) in self.nodes.iter_mut().enumerate() {
            let mut news = news.clone();
            if let News::Applied(block) = &mut news {
                block.mine = block.node == format!("node{reader}");
            }
            node.hear(Event::Blocks(news));
        }
    }

    /// Has a node's network as the agent would; says whether that was another one.
    pub fn refresh(&mut self, number: usize) -> bool {
        let node = &mut self.nodes[number];
        let ranges = node.state.ranges(&[net(&format!("10.1.{number}.0/24"))]);
        if !ranges.waits.is_empty() {
            return false;
        }
        let network = NetworkIntent {
            name: cluster::NAME.to_owned(),
            ranges: ranges.own.clone(),
            isolated: false,
            mtu: None,
            span: None,
        };
        let on_node = BridgeIntent {
            name: "knit0".parse().unwrap(),
            ranges: ranges.own,
            attrs: Attrs::default(),
            bridge: Bridge::default(),
            port: None,
        };
        let ways = NodeRoutesIntent { pools: ranges.pools, ..NodeRoutesIntent::default() };
        let wants =
            vec![IntentSpec::Network(network), IntentSpec::Bridge(on_node), IntentSpec::NodeRoutes(ways)];
        let new = object(cluster::KIND, cluster::NAMESPACE, cluster::NAME, wants);
        let known = node.state.objects.get(&cluster::key());
        if known.is_some_and(|known| known.intents == new.intents) {
            return false;
        }
        node.hear(Event::ObjectApplied(new));
        true
    }

    pub fn attach(&mut self, number: usize, id: &str) -> Result<Vec<String>, Problem> {
        self.attach_as(number, "", id, Asked::default())
    }

    /// Attaches a pod of a namespace, which asks for this.
    pub fn attach_as(
        &mut self,
        number: usize,
        namespace: &str,
        id: &str,
        asked: Asked,
    ) -> Result<Vec<String>, Problem> {
        let node = &mut self.nodes[number];
        let asked = Asked { default_route: true, ..asked };
        node.hear(Event::AttachRequested(Box::new(Attach {
            call: CallId(format!("{id}-{}", node.journal.len())),
            dialect: Dialect::Cni,
            sandbox: Wished {
                id: id.to_owned(),
                netns: format!("/{id}"),
                namespace: namespace.to_owned(),
                ..Wished::default()
            },
            interfaces: vec![("eth0".parse().unwrap(), String::new(), asked)],
            notes: Notes::default(),
            fail_if_present: false,
            ticket: 7,
            began: 0,
        })));
        match node.answers.pop().unwrap() {
            Answer::Attached { interfaces, .. } => {
                let addresses = interfaces.iter().flat_map(|(_, report)| &report.addresses);
                Ok(addresses.map(ToString::to_string).collect())
            }
            Answer::Failed(problem) => Err(problem),
            other => panic!("{other:?}"),
        }
    }

    pub fn detach(&mut self, number: usize, id: &str) {
        let (call, sandbox) = (CallId(format!("{id}-away")), SandboxId(id.to_owned()));
        let (which, netns) = (Which::All, String::new());
        let node = &mut self.nodes[number];
        node.hear(Event::DetachRequested(Detach { call, sandbox, netns, which, forget: true, began: 0 }));
        assert_eq!(node.answers.pop(), Some(Answer::Detached));
    }

    pub fn review(&mut self, number: usize) {
        self.nodes[number].hear(Event::Blocks(News::Reviewed));
        self.settle();
    }

    pub fn held_by(&self, number: usize) -> Vec<IpNet> {
        let name = format!("node{number}");
        self.blocks.values().filter(|block| block.node == name).map(|block| block.cidr).collect()
    }
}
