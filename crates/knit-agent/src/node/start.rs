//! Opening a node: what was written down, what the kernel shows, and everything unfinished taken back.

use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use knit_engine::event::Ended;
use knit_engine::{Event, Record, Settings, State, Unit};
use knit_kernel::fault::Unobserved;
use knit_kernel::observe::{Look, ScopeLook};
use knit_kernel::{Kernel, Netns, Places};
use knit_model::Scope;
use knit_store::{Format, Journal, Opened, Options};

use super::{Node, now};
use crate::error::Result;
use crate::keys::KeyFolder;

/// How many older parts of the journal are kept, to answer what changed when.
const HISTORY: usize = 4;

/// The version of what is written. An older one is read by `migrate`, a newer one is refused.
pub const FORMAT: Format = Format::first();

impl Node {
    /// Opens the node whose state is in `folder`. The second value says what was found wrong there.
    pub fn open(folder: &Path) -> Result<(Self, Vec<String>)> {
        let options = Options { format: FORMAT, segments: HISTORY };
        let Opened { journal, snapshot, records, findings } =
            Journal::<Record, State>::open(folder, options)?;
        let mut state = snapshot.map(|(_, state)| state).unwrap_or_default();
        records.iter().for_each(|(_, record)| state.record(record));
        let keys = Arc::new(KeyFolder::new(folder));
        let kernel = Kernel::open(Netns::current()?)?.with_secrets(keys.clone());
        let to_reap = [Scope::Host].into();
        let mut node = Self { state, journal, kernel, keys, to_reap, faults: Box::new(Unobserved) };
        let mut notes: Vec<String> = findings.iter().map(ToString::to_string).collect();
        node.state.settings = node.settings()?;
        notes.extend(node.take_back_unfinished()?);
        node.forget_dead_sandboxes()?;
        Ok((node, notes))
    }

    /// The host's own addresses: no tenant's network may overlap them.
    fn settings(&mut self) -> Result<Settings> {
        let look = Look::default().at(Scope::Host, ScopeLook::everything());
        let seen = self.kernel.observe(&look, &mut Places::new())?;
        let host = seen.scopes.get(&Scope::Host);
        let foreign =
            host.into_iter().flat_map(|host| host.addresses.values()).filter(|address| !address.owned);
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
            let scopes: Vec<Scope> = began.plan.steps.iter().flat_map(super::scopes_of).collect();
            let mut places = self.places_of(&self.state, scopes.iter());
            let left = self.kernel.take_back(&began.plan, &mut places);
            notes.push(format!("{}: a change was cut short and has been taken back", began.unit));
            notes.extend(left);
            let problems = self.state.problems.get(&began.unit).cloned().unwrap_or_default();
            let ended = Ended { unit: began.unit, made: None, problems, given_back: Vec::new(), at: now() };
            self.record(&Record::Ended(Box::new(ended)))?;
        }
        Ok(notes)
    }

    /// Sandboxes whose namespace is gone, or that lived before the last boot.
    fn forget_dead_sandboxes(&mut self) -> Result<()> {
        let dead: Vec<_> = self
            .state
            .sandboxes
            .keys()
            .filter(|id| self.namespace_of(&self.state, id).is_none())
            .cloned()
            .collect();
        for id in dead {
            self.hear(Event::SandboxGone(id))?;
        }
        // What a crash left half-told: units of sandboxes that nobody knows any more.
        let orphans: Vec<Unit> = self
            .state
            .made
            .keys()
            .filter(|unit| matches!(unit, Unit::Sandbox(id) if !self.state.sandboxes.contains_key(id)))
            .cloned()
            .collect();
        if !orphans.is_empty() {
            self.hear(Event::Resync)?;
        }
        Ok(())
    }
}

fn is_link_local(address: &IpNet) -> bool {
    match address {
        IpNet::V4(net) => net.addr().is_link_local(),
        IpNet::V6(net) => net.addr().is_unicast_link_local(),
    }
}
