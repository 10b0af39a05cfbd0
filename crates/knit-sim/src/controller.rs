//! The controller: its own decisions, fed by watches that tell a moment later.

use knit_controller::labels::Labels;
use knit_controller::{Effect, Event, HeldBlock, State, step};
use knit_crds::Object;
use knit_crds::states::{NodeNetworkStatus, PodNetworkStateStatus};
use knit_kube::Seen;

use crate::api::{Change, NODE_STATES};
use crate::cluster::{Cluster, Due};
use crate::node::{EPOCH, Name};
use crate::queue::{MILLIS, Moment, SECOND};
use crate::scenario::{Tenant, node_name};

/// Between two looks the controller writes what follows from the first; in a large cluster that takes about so long.
const GROUP: Moment = 2 * SECOND;
/// Something that waits is looked at again after this long.
const WAITING: Moment = 2 * SECOND;
/// The same for nodes that are gone.
const GONE: Moment = 10 * SECOND;

pub(crate) struct Controller {
    state: State,
    news: Vec<Event>,
    is_due: bool,
    /// How far its clock is off, in milliseconds.
    pub(crate) skew: i64,
}

impl Controller {
    /// A controller that has listed everything there is at the beginning.
    pub(crate) fn new(nodes: usize, tenants: &[Tenant]) -> Self {
        let mut news = Vec::new();
        for kind in Object::kinds() {
            let objects: Vec<Object> = match kind.kind.as_str() {
                "Veth" => tenants.iter().map(Tenant::object).collect(),
                _ => Vec::new(),
            };
            news.push(Event::Objects(&kind.kind, Box::new(Seen::Listed(objects))));
        }
        news.push(Event::Alive(Seen::Listed(
            (0..nodes).map(|node| (node_name(node), Labels::new())).collect(),
        )));
        news.push(Event::Pods(Seen::Listed(Vec::new())));
        news.push(Event::Nodes(Seen::Listed(Vec::new())));
        news.push(Event::Samples(Seen::Listed(Vec::new())));
        news.push(Event::Blocks(Seen::Listed(Vec::new())));
        Self { state: State::default(), news, is_due: true, skew: 0 }
    }

    pub(crate) fn hear_pod(&mut self, name: Name, state: PodNetworkStateStatus) {
        self.news.push(Event::Pods(Seen::Applied((name, state))));
    }

    pub(crate) fn forget_pod(&mut self, name: Name) {
        self.news.push(Event::Pods(Seen::Deleted((name, PodNetworkStateStatus::default()))));
    }

    pub(crate) fn hear_node(&mut self, name: String, state: NodeNetworkStatus) {
        self.news.push(Event::Nodes(Seen::Applied((name, state))));
    }

    pub(crate) fn node_left(&mut self, name: &str) {
        self.news.push(Event::Alive(Seen::Deleted((name.to_owned(), Labels::new()))));
    }

    pub(crate) fn hear_block(&mut self, change: &Change) {
        let (Change::Applied(block) | Change::Deleted(block)) = change;
        let held = (block.name.clone(), HeldBlock { uid: block.uid.clone(), node: block.node.clone() });
        self.news.push(Event::Blocks(match change {
            Change::Applied(_) => Seen::Applied(held),
            Change::Deleted(_) => Seen::Deleted(held),
        }));
    }
}

impl Cluster {
    /// The controller looks in a moment.
    pub(crate) fn controller_soon(&mut self) {
        if !self.controller.news.is_empty() && !std::mem::replace(&mut self.controller.is_due, true) {
            self.queue.after(GROUP, Due::Look);
        }
    }

    /// The controller hears what is new, and does what follows.
    pub(crate) fn controller_looks(&mut self) {
        let now = EPOCH + self.controller.skew + (self.queue.now() / MILLIS) as i64;
        let controller = &mut self.controller;
        for event in std::mem::take(&mut controller.news) {
            step(&mut controller.state, event, now);
        }
        let effects = step(&mut controller.state, Event::Look, now);
        for effect in effects {
            match effect {
                Effect::WriteStatus(..) => self.api.count("patch", "objects' status"),
                Effect::SetFinalizers { .. } => self.api.count("patch", "objects"),
                Effect::Tell { .. } => self.api.count("create", "events"),
                Effect::DeleteNodeState(name) => {
                    self.api.count("delete", NODE_STATES);
                    let gone = (name, NodeNetworkStatus::default());
                    self.controller.news.push(Event::Nodes(Seen::Deleted(gone)));
                }
                Effect::DeleteBlock { name, uid } => self.api.delete(&name, &uid),
                other => self.fail(&[], format!("the controller does what nobody asked for: {other:?}")),
            }
        }
        self.spread_news();
        let state = &self.controller.state;
        let again = match (self.controller.news.is_empty(), state.is_waiting(), state.waits_for_nodes()) {
            (false, _, _) => Some(GROUP),
            (_, true, _) => Some(WAITING),
            (_, _, true) => Some(GONE),
            _ => None,
        };
        self.controller.is_due = again.is_some();
        if let Some(delay) = again {
            self.queue.after(delay, Due::Look);
        }
    }
}
