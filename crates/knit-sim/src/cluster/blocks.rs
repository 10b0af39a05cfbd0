//! Blocks between agents and the API server: orders, answers that may be lost, and a watch that comes late.

use std::sync::Arc;

use knit_engine::Event;
use knit_engine::blocks::{Block, News, Order};

use super::{Cluster, Due};
use crate::api::Change;
use crate::queue::{MILLIS, Moment, SECOND};
use crate::trace::About;

/// As long as the agent's own: empty at two looks in a row goes back.
const REVIEW: Moment = 5 * SECOND;
/// What could not be done is tried again after this long.
const AGAIN: Moment = SECOND;
/// An API server that has not answered by then does not.
const PATIENCE: Moment = 10 * SECOND;
/// So many of a thousand requests and answers are lost.
const LOST: u64 = 3;
/// So many of a thousand take long.
const SLOW: u64 = 10;

impl Cluster {
    fn latency(&mut self) -> Moment {
        if self.is_busy() && self.dice.rarely(SLOW) {
            return self.dice.between(SECOND, 8 * SECOND);
        }
        self.dice.between(MILLIS, 30 * MILLIS)
    }

    fn is_lost(&mut self, node: usize) -> bool {
        self.nodes[node].is_cut || self.nodes[node].is_gone || (self.is_busy() && self.dice.rarely(LOST))
    }

    /// An agent asks the API server for something.
    pub(crate) fn send(&mut self, node: usize, order: Order) {
        self.tries += 1;
        let (life, attempt) = (self.nodes[node].life, self.tries);
        let what = if matches!(order, Order::Claim { .. }) { "claims" } else { "gives back" };
        self.note(node, what, About::Name(name_of(&order).to_owned()));
        self.nodes[node].asked.insert(attempt);
        let delay = self.latency();
        self.queue.after(delay, Due::Arrive(node, life, Box::new(order.clone()), attempt));
        self.queue.after(PATIENCE, Due::Late(node, life, Box::new(order), attempt));
    }

    /// The API server does what was asked, and answers.
    pub(crate) fn arrive(&mut self, node: usize, life: u32, order: Order, attempt: u64) {
        if self.is_lost(node) {
            return;
        }
        let news = match order {
            Order::Claim { name, pool, cidr } => {
                let holder = self.nodes[node].name.clone();
                let asked = Block { name, uid: String::new(), pool, cidr, node: holder, mine: false };
                let there = self.api.create(asked);
                News::Applied(self.seen_by(node, &there))
            }
            Order::Return { name, uid } => {
                self.note(node, "has the API server delete", About::Name(format!("{name} {uid}")));
                self.api.delete(&name, &uid);
                News::Returned { name }
            }
        };
        self.spread_news();
        let delay = self.latency();
        self.queue.after(delay, Due::Reply(node, life, Box::new(news), attempt));
    }

    pub(crate) fn reply(&mut self, node: usize, news: News, attempt: u64) {
        if self.is_lost(node) {
            return;
        }
        // An answer that nobody waits for any longer is not heard.
        if self.nodes[node].asked.remove(&attempt) {
            self.tell_block(node, news);
        }
    }

    pub(crate) fn late(&mut self, node: usize, order: Order, attempt: u64) {
        if !self.nodes[node].asked.remove(&attempt) {
            return;
        }
        let (life, name) = (self.nodes[node].life, name_of(&order).to_owned());
        self.nodes[node].resting += 1;
        self.queue.after(AGAIN, Due::Again(node, life, Box::new(order.clone())));
        if matches!(order, Order::Claim { .. }) {
            let why = "the API server has not answered for 10 s".to_owned();
            self.tell_block(node, News::Refused { name, why });
        }
    }

    pub(crate) fn again(&mut self, node: usize, order: Order) {
        self.nodes[node].resting -= 1;
        let is_claiming = || self.nodes[node].state.blocks.is_claiming(name_of(&order));
        if matches!(order, Order::Return { .. }) || is_claiming() {
            self.send(node, order);
        }
    }

    fn tell_block(&mut self, node: usize, news: News) {
        let (what, name) = match &news {
            News::Applied(block) if block.mine => {
                ("hears that it holds", format!("{} {}", block.name, block.uid))
            }
            News::Applied(block) => {
                ("hears of another's", format!("{} {} of {}", block.name, block.uid, block.node))
            }
            News::Deleted { name, uid } => ("hears of the end of", format!("{name} {uid}")),
            News::Refused { name, .. } => ("cannot claim yet", name.clone()),
            News::Returned { name } => ("has given back", name.clone()),
            News::Listed(_) => ("hears which blocks there are", String::new()),
            News::Pooled { .. } => ("hears of pools", String::new()),
            News::Reviewed => ("looks for empty blocks", String::new()),
        };
        self.note(node, what, About::Name(name));
        self.hear(node, Event::Blocks(news));
    }

    /// A block as a node takes it.
    fn seen_by(&self, node: usize, block: &Block) -> Block {
        Block { mine: block.node == self.nodes[node].name, ..block.clone() }
    }

    /// Watches will tell what is new; the controller's, too.
    pub(crate) fn spread_news(&mut self) {
        let version = self.api.version();
        if version == self.spread {
            return;
        }
        for change in self.spread..version {
            if let Some(change) = self.api.change(change) {
                self.controller.hear_block(&change);
            }
        }
        self.spread = version;
        self.controller_soon();
        let held = self.api.blocks().count() as u64;
        self.counts.most_blocks = self.counts.most_blocks.max(held);
        for node in 0..self.nodes.len() {
            self.watch_soon(node);
        }
    }

    pub(crate) fn watch_soon(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        let is_told = here.watched.is_some() && here.is_reached();
        if is_told && !std::mem::replace(&mut here.due.watch, true) {
            let life = here.life;
            let delay = self.dice.between(2 * MILLIS, 300 * MILLIS);
            self.queue.after(delay, Due::Watch(node, life));
        }
    }

    /// The watch tells what is new, some of it twice, and not always all of it.
    pub(crate) fn watch(&mut self, node: usize) {
        self.nodes[node].due.watch = false;
        if self.nodes[node].is_cut {
            return;
        }
        while let Some(version) = self.nodes[node].watched
            && let Some(change) = self.api.change(version)
        {
            self.nodes[node].watched = Some(version + 1);
            let times = if self.is_busy() && self.dice.rarely(20) { 2 } else { 1 };
            for _ in 0..times {
                let (Change::Applied(block) | Change::Deleted(block)) = &change;
                let is_holder = block.node == self.nodes[node].name;
                let news = match &change {
                    Change::Applied(block) => News::Applied(self.seen_by(node, block)),
                    Change::Deleted(block) => {
                        News::Deleted { name: block.name.clone(), uid: block.uid.clone() }
                    }
                };
                if is_holder {
                    self.tell_block(node, news);
                } else {
                    self.hear(node, Event::Blocks(news));
                }
            }
            if self.is_busy() && self.dice.rarely(30) {
                return self.watch_soon(node);
            }
        }
    }

    /// The agent asks which blocks there are; the list is as of now, and arrives later.
    pub(crate) fn list(&mut self, node: usize) {
        if !self.nodes[node].is_reached() {
            return;
        }
        self.nodes[node].watched = None;
        let (all, version) = (Arc::new(self.api.list()), self.api.version());
        let delay = self.latency() * 4;
        let life = self.nodes[node].life;
        self.queue.after(delay, Due::Listed(node, life, all, version));
    }

    pub(crate) fn listed(&mut self, node: usize, all: &[Arc<Block>], version: usize) {
        if self.is_lost(node) {
            // Whoever is cut off asks when that is over.
            return self.list(node);
        }
        if self.nodes[node].watched.is_some() {
            return;
        }
        self.nodes[node].watched = Some(version);
        let all = all.iter().map(|block| self.seen_by(node, block)).collect();
        self.tell_block(node, News::Listed(all));
        self.watch_soon(node);
    }

    /// What is empty for long goes back.
    pub(crate) fn review(&mut self, node: usize) {
        let life = self.nodes[node].life;
        self.queue.after(REVIEW, Due::Review(node, life));
        if self.nodes[node].state.blocks.has_any() {
            self.hear(node, Event::Blocks(News::Reviewed));
        }
    }
}

fn name_of(order: &Order) -> &str {
    match order {
        Order::Claim { name, .. } | Order::Return { name, .. } => name,
    }
}
