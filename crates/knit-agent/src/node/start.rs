//! Opening a node: what was written down, what the kernel shows, and everything unfinished taken back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use knit_engine::event::Ended;
use knit_engine::{Event, Record, Settings, State, Unit};
use knit_kernel::netns::may_visit;
use knit_kernel::{Netns, memory};
use knit_model::Scope;
use knit_store::{Finding, Format, Journal, Opened, Options, Part};
use serde_json::Value;

use super::{Node, no_faults, now, older};
use crate::error::Result;
use crate::hands::Hands;
use crate::keys::{Fetched, KeyFolder};
use crate::sandboxes;

/// How many older parts of the journal are kept, to answer what changed when.
const HISTORY: usize = 4;

/// The version of what is written. An older one is read by `migrate`, a newer one is refused.
///
/// 2: objects may ask for routes, rules, neighbours and sysctls by themselves, and plans may replace a neighbour. All of
/// that is only added, so that what format 1 has is read as it is.
/// 3: what calls ask for has limits of each way together, and whole routes.
/// 4: there are blocks of addresses, parts of ranges and devices that calls ask for, and ways to other nodes. Only added.
pub const FORMAT: Format = Format { version: 4, migrate };

fn migrate(from: u32, _: Part, mut value: Value) -> std::result::Result<Value, String> {
    match from {
        1 | 2 => {
            older::attachments(&mut value);
            Ok(value)
        }
        3 => Ok(value),
        other => Err(format!("there is no format {other}")),
    }
}

impl Node {
    /// Opens the node whose state is in `folder`. The second value says what was found wrong there.
    ///
    /// What a crash cut short is taken back and then done again or left, as the objects say; other differences between
    /// the kernel and what was written down are for [`Node::repair`].
    ///
    /// The calling thread becomes the node's: it waits for the kernel and visits sandboxes' namespaces, so that it must
    /// not be one of an async runtime.
    pub fn open(folder: &Path) -> Result<(Self, Vec<String>)> {
        Self::open_with(folder, None)
    }

    /// The same, with Secrets of an API server.
    pub fn open_with(folder: &Path, secrets: Option<Arc<Fetched>>) -> Result<(Self, Vec<String>)> {
        let options = Options { format: FORMAT, segments: HISTORY };
        let Opened { journal, snapshot, records, findings } =
            Journal::<Record, State>::open(folder, options)?;
        let mut state = snapshot.map(|(_, state)| state).unwrap_or_default();
        records.into_iter().for_each(|(_, record)| state.record(&record));
        may_visit()?;
        let keys = Arc::new(KeyFolder::new(folder).with_secrets(secrets));
        let hands = Hands::new(Netns::current()?, sandboxes::boot_id()?, Arc::clone(&keys), no_faults())?;
        let (places, reaped) = (BTreeMap::new(), BTreeMap::new());
        let to_reap = [Scope::Host].into();
        let spares_strays = false;
        let direct = None;
        let mut node = Self { state, journal, hands, keys, places, to_reap, reaped, spares_strays, direct };
        let mut notes: Vec<String> = findings.iter().map(ToString::to_string).collect();
        if findings.iter().any(Finding::loses) {
            // Records after a loss would not be read without a snapshot that they follow.
            node.journal.compact(&node.state.remembered(), node.journal.last())?;
        }
        node.state.settings = node.settings()?;
        let taken_back = node.take_back_unfinished()?;
        let mut gone = node.forget_dead_sandboxes()?;
        gone.extend(node.forget_dead_domains()?);
        node.hear(Event::Restarted)?;
        if !taken_back.is_empty() || !gone.is_empty() {
            node.hear(Event::Resync)?;
        }
        notes.extend(taken_back);
        notes.extend(gone);
        node.tidy()?;
        // What the journal was read into is free, and nothing as large comes again.
        memory::give_back();
        Ok((node, notes))
    }

    /// The host's own addresses: no tenant's network may overlap them.
    fn settings(&mut self) -> Result<Settings> {
        let host = self.observe_host()?;
        let foreign = host.addresses.values().filter(|address| !address.owned);
        let of_nodes = |address: &IpNet| !address.addr().is_loopback() && !is_link_local(address);
        let forbidden = foreign.map(|address| address.address).filter(of_nodes);
        Ok(Settings {
            forbidden: forbidden.map(|range| ("node's range".to_owned(), range.trunc())).collect(),
        })
    }

    /// A change that began and did not end is taken back: the kernel is then as it was before it began.
    fn take_back_unfinished(&mut self) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let unfinished: Vec<_> = self.state.unfinished.values().cloned().collect();
        for began in unfinished {
            let sandboxes: Vec<_> = match &began.unit {
                Unit::Sandbox(id) => self.state.sandboxes.get(id).cloned().into_iter().collect(),
                Unit::Bridge(_) | Unit::NodeRoutes => Vec::new(),
            };
            let (left, scopes) = self.hands.take_back(&began.plan, &sandboxes);
            self.to_reap.extend(scopes);
            notes.push(format!("{}: a change was cut short and has been taken back", began.unit));
            notes.extend(left);
            let problems = self.state.problems.get(&began.unit).cloned().unwrap_or_default();
            let ended = Ended { unit: began.unit, made: None, problems, given_back: Vec::new(), at: now() };
            self.record(&Record::Ended(Box::new(ended)))?;
        }
        Ok(notes)
    }

    /// Namespaces that Knit made and that are none any more: a reboot leaves at most an empty file of one.
    fn forget_dead_domains(&mut self) -> Result<Vec<String>> {
        let known: Vec<String> = self.state.called.domains().map(|domain| domain.path.clone()).collect();
        let mut notes = Vec::new();
        for path in known {
            // Anything else that keeps it from being looked at is no reason to give it up.
            if !matches!(Netns::open(Path::new(&path)), Err(knit_kernel::Error::NotANamespace { .. })) {
                continue;
            }
            if let Err(why) = Netns::delete(Path::new(&path)) {
                notes.push(why.to_string());
            }
            notes.push(format!("namespace {path}: it is gone, so it is forgotten"));
            self.record(&Record::DomainGone { path, instance: None })?;
        }
        Ok(notes)
    }

    /// Sandboxes whose namespace is gone, or that lived before the last boot. Units of sandboxes that nobody knows any
    /// more are what a crash left half-told.
    fn forget_dead_sandboxes(&mut self) -> Result<Vec<String>> {
        let known: Vec<_> = self.state.sandboxes.keys().cloned().collect();
        let mut notes = Vec::new();
        for id in known {
            let sandbox = self.state.sandboxes.get(&id).cloned();
            if !sandbox.is_some_and(|sandbox| self.hands.is_there(&sandbox)) {
                notes.push(format!("sandbox {id}: its namespace is gone, so it is forgotten"));
                self.hear(Event::SandboxGone(id))?;
            }
        }
        let is_orphan =
            |unit: &&Unit| matches!(unit, Unit::Sandbox(id) if !self.state.sandboxes.contains_key(id));
        let orphans = self.state.made.keys().filter(is_orphan);
        notes.extend(orphans.map(|unit| format!("{unit}: a crash left something of it")));
        Ok(notes)
    }
}

fn is_link_local(address: &IpNet) -> bool {
    match address {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    }
}
