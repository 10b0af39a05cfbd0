//! The engine's host: events in, effects carried out.

mod repair;
mod start;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use knit_engine::{Applied, Effect, Event, Failure, Keys, Lack, Look, ObjectKey, Record, State, Unit, step};
use knit_ipam::Time;
use knit_kernel::apply::{Applied as AppliedPlan, ApplyError, Deletes, RollBack};
use knit_kernel::fault::Observer;
use knit_kernel::observe::{Links, ScopeLook};
use knit_kernel::{Kernel, Netns, Places};
use knit_model::link::OwnerId;
use knit_model::problem::{Problem, Reason};
use knit_model::{KeyRef, NetState, Plan, Scope, Step};
use knit_store::Journal;

pub use repair::Repair;

use crate::error::{Error, Result};
use crate::keys::KeyFolder;

/// The journal is rewritten as a snapshot after so many records.
const MOST_RECORDS: u64 = 5_000;

/// A node: what it knows, where that is written down, and the kernel that it changes.
pub struct Node {
    state: State,
    journal: Journal<Record, State>,
    kernel: Kernel,
    keys: Arc<KeyFolder>,
    /// The sandboxes of the transaction that is under way. Between events there are none.
    places: Places,
    /// Scopes where cut-off links wait to be deleted.
    to_reap: BTreeSet<Scope>,
    faults: Box<dyn Observer + Send>,
    /// This boot of the machine. A sandbox of another boot is gone, whatever its namespace's number says.
    boot: String,
}

/// Plans, each with the unit that it changes.
pub type Plans = Vec<(Unit, Arc<Plan>)>;

/// What came of an event.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Objects about which something changed.
    pub changed: BTreeSet<ObjectKey>,
    /// The plans that were carried out, or would be.
    pub plans: Plans,
}

impl Node {
    /// What the node knows.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Writes down and takes in a change that needs no decision.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        self.state.record(record);
        self.journal.append_durable(record)?;
        Ok(())
    }

    /// Hears an event and does all that follows from it.
    pub fn hear(&mut self, event: Event) -> Result<Outcome> {
        let heard = self.do_all(event);
        // A socket keeps its namespace alive.
        self.places = Places::new();
        heard
    }

    fn do_all(&mut self, event: Event) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in step(&mut self.state, event, now()) {
                events.extend(self.carry_out(effect, &mut outcome)?);
            }
        }
        Ok(outcome)
    }

    /// What an event would lead to. Looks at the kernel and changes nothing.
    pub fn rehearse(&mut self, events: impl IntoIterator<Item = Event>) -> Result<(State, Outcome)> {
        let mut state = self.state.clone();
        let mut outcome = Outcome::default();
        for event in events {
            let mut queue = VecDeque::from([event]);
            while let Some(event) = queue.pop_front() {
                for effect in step(&mut state, event, now()) {
                    match effect {
                        Effect::Journal(_) => {}
                        Effect::Changed(objects) => outcome.changed.extend(objects),
                        Effect::Observe { unit, look } => {
                            let keys = self.look_at_keys(&look, false);
                            queue.push_back(self.observe(Some(&state), unit, &look, keys)?);
                        }
                        Effect::Apply { unit, plan } => {
                            outcome.plans.push((unit.clone(), plan));
                            queue.push_back(Event::Applied(Applied { unit, result: Ok(()) }));
                        }
                    }
                }
            }
        }
        self.places = Places::new();
        Ok((state, outcome))
    }

    /// Deletes what was cut off, and keeps the journal short. Called when nobody waits.
    pub fn tidy(&mut self) -> Result<()> {
        for scope in std::mem::take(&mut self.to_reap) {
            let scopes = BTreeSet::from([scope]);
            self.reach(&scopes);
            // What is cut off in a sandbox that is gone by now went with it.
            let reaped = match self.kernel.reap(&scopes, &mut self.places) {
                Err(knit_kernel::Error::NoNamespace { .. }) => Ok(()),
                reaped => reaped,
            };
            self.places = Places::new();
            reaped?;
        }
        self.forget_keys()?;
        if self.journal.size().records > MOST_RECORDS {
            self.journal.compact(&self.state.remembered(), self.journal.last())?;
        }
        Ok(())
    }

    /// Has something go wrong at chosen steps of plans, for tests.
    pub fn set_faults(&mut self, faults: Box<dyn Observer + Send>) {
        self.faults = faults;
    }

    fn carry_out(&mut self, effect: Effect, outcome: &mut Outcome) -> Result<Option<Event>> {
        match effect {
            Effect::Journal(record) => {
                self.write(&record)?;
                Ok(None)
            }
            Effect::Changed(objects) => {
                outcome.changed.extend(objects);
                Ok(None)
            }
            Effect::Observe { unit, look } => {
                let keys = self.look_at_keys(&look, true);
                self.observe(None, unit, &look, keys).map(Some)
            }
            Effect::Apply { unit, plan } => {
                let result = self.apply(&unit, &plan)?;
                outcome.plans.push((unit.clone(), plan));
                Ok(Some(Event::Applied(Applied { unit, result })))
            }
        }
    }

    /// Links do not outlive a boot, so what is about them need not reach the disk before going on; objects do.
    fn write(&mut self, record: &Record) -> Result<()> {
        match record {
            Record::ObjectApplied(_) | Record::ObjectDeleted(_) | Record::Revision(_) | Record::Undone => {
                self.journal.append_durable(record)?;
            }
            Record::Began(began) if !began.held.is_empty() => {
                self.journal.append_durable(record)?;
            }
            _ => {
                self.journal.append(record)?;
            }
        }
        Ok(())
    }

    /// Looks at what a unit is about, for the node's state or for one that is only rehearsed. A sandbox whose namespace is
    /// gone, or is another by now, is reported as gone.
    fn observe(&mut self, rehearsed: Option<&State>, unit: Unit, look: &Look, keys: Keys) -> Result<Event> {
        let mut wanted = knit_kernel::observe::Look::default();
        let mut host = ScopeLook::named(look.host_links.union(&look.host_parents).cloned());
        host.rules = look.host_rules;
        host.vlans = look.vlans;
        if look.ports_of.is_some() || !look.lent.is_empty() {
            // Who its ports are, or where a NIC came to lie, only all links can tell. That is asked when a bridge goes, or
            // when a sandbox ended with a NIC, which is rare.
            host.links = Links::All;
        }
        wanted.scopes.insert(Scope::Host, host);
        if let Some(id) = &look.sandbox {
            let scope = Scope::Sandbox(id.clone());
            let (state, scopes) = (rehearsed.unwrap_or(&self.state), BTreeSet::from([scope.clone()]));
            reach(&mut self.places, self.kernel.host(), &self.boot, state, &scopes);
            if !self.places.contains(id) {
                return Ok(Event::SandboxGone(id.clone()));
            }
            let inside = ScopeLook {
                sysctls: look.sysctls.clone(),
                only_if_marked: look.is_new,
                ..ScopeLook::everything()
            };
            wanted.scopes.insert(scope, inside);
        }
        let seen: NetState = self.kernel.observe(&wanted, &mut self.places)?;
        Ok(Event::Observed { unit, seen, keys })
    }

    /// Which public key belongs to each key that is there. One that cannot be used is as good as missing.
    fn look_at_keys(&self, look: &Look, may_make: bool) -> Keys {
        let found = look.keys.iter().filter_map(|key| {
            let found = match key {
                KeyRef::Made { id } if may_make => self.keys.make(id).ok(),
                key => self.keys.find(key).ok().flatten(),
            };
            found.map(|found| (key.clone(), found.public()))
        });
        found.collect()
    }

    /// Removes keys that were made for attachments that are gone.
    fn forget_keys(&self) -> Result<()> {
        let sandboxes = self.state.made.iter().filter_map(|(unit, made)| match unit {
            Unit::Sandbox(id) => Some((id, made)),
            Unit::Bridge(_) => None,
        });
        let used: BTreeSet<String> = sandboxes
            .flat_map(|(id, made)| made.interfaces.iter().map(move |(_, interface)| (id, &interface.name)))
            .map(|(id, name)| OwnerId::derived(&format!("{id}/{name}")).0)
            .collect();
        self.keys.retain(|id| used.contains(id)).map_err(|source| Error::Keys { source })
    }

    fn apply(&mut self, unit: &Unit, plan: &Plan) -> Result<Result<(), Failure>> {
        let scopes: BTreeSet<Scope> = plan.steps.iter().flat_map(scopes_of).collect();
        self.reach(&scopes);
        let applied = self.kernel.apply(plan, Deletes::Deferred, &mut self.places, &mut *self.faults);
        match applied {
            Ok(AppliedPlan { to_reap }) => {
                self.to_reap.extend(to_reap);
                Ok(self.verify(unit, plan))
            }
            Err(error) if error.roll_back == RollBack::Left => Err(Error::Stopped { unit: unit.to_string() }),
            Err(error) => {
                // What was cut off and came back came back as a new link: the old one still waits.
                self.to_reap.extend(scopes);
                Ok(Err(failure(&error, plan)))
            }
        }
    }

    fn reach(&mut self, scopes: &BTreeSet<Scope>) {
        reach(&mut self.places, self.kernel.host(), &self.boot, &self.state, scopes);
    }

    /// An answer is given only once the kernel shows what was asked for; otherwise it is taken back.
    fn verify(&mut self, unit: &Unit, plan: &Plan) -> Result<(), Failure> {
        let missing = match self.kernel.verify(plan, &mut self.places) {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => missing.join("; "),
            Err(error) => error.to_string(),
        };
        let left = self.kernel.take_back(plan, &mut self.places);
        let message = format!("{unit}: the kernel took it, but does not show it: {missing}");
        Err(Failure {
            problem: Problem { field: String::new(), reason: Reason::KernelRefused, message },
            taken_back: left.is_empty(),
            lacks: None,
        })
    }
}

/// Has the namespaces of these scopes' sandboxes at hand, those that are still there, and no others. A namespace that is
/// at hand already is the same one still: it is held.
fn reach(places: &mut Places, host: &Netns, boot: &str, state: &State, scopes: &BTreeSet<Scope>) {
    places.keep(|id| scopes.contains(&Scope::Sandbox(id.clone())));
    for scope in scopes {
        let Scope::Sandbox(id) = scope else { continue };
        let Some(sandbox) = state.sandboxes.get(id).filter(|_| !places.contains(id)) else { continue };
        let Ok(netns) = Netns::open_sandbox(Path::new(&sandbox.netns), host) else { continue };
        places.add(id.clone(), netns);
        let is_same = |cookie| sandbox.instance.boot == boot && sandbox.instance.cookie == cookie;
        if !matches!(places.cookie(id), Ok(Some(cookie)) if is_same(cookie)) {
            places.keep(|other| other != id);
        }
    }
}

fn scopes_of(planned: &knit_model::plan::Planned) -> Vec<Scope> {
    let mut scopes = vec![planned.scope.clone()];
    if let knit_model::Step::CreateLink { link, peer } | knit_model::Step::DeleteLink { link, peer } =
        &planned.step
    {
        scopes.extend(link.born_from.clone());
        scopes.extend(peer.as_ref().map(|(scope, _)| scope.clone()));
    }
    scopes
}

fn failure(error: &ApplyError, plan: &Plan) -> Failure {
    let reason = match &error.error {
        knit_kernel::Error::Lacks { .. } => Reason::KernelLacks,
        other if other.reason() == "NotFound" => Reason::NotFound,
        _ => Reason::KernelRefused,
    };
    let lacks = match (&error.error, plan.steps.get(error.step).map(|planned| &planned.step)) {
        (knit_kernel::Error::Lacks { what, config, .. }, Some(Step::CreateLink { link, .. })) => Some(Lack {
            kind: link.kind.name().to_owned(),
            words: format!("this kernel has no {what}: {config}"),
        }),
        _ => None,
    };
    let problem = Problem { field: String::new(), reason, message: error.to_string() };
    Failure { problem, taken_back: matches!(error.roll_back, RollBack::Complete), lacks }
}

/// Milliseconds since 1970, for people.
pub(crate) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
