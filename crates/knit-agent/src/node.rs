//! The engine's host: events in, effects carried out.

mod older;
mod repair;
mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use knit_engine::blocks::Order;
use knit_engine::extension::Invocation;
use knit_engine::forward::Forwarding;
use knit_engine::sockets::Listener;
use knit_engine::{Answer, Applied, CallId, Effect, Event, ObjectKey, Record, State, Unit, step};
use knit_ipam::Time;
use knit_kernel::fault::Observer;
use knit_kernel::redirect::{Redirect, Way};
use knit_kernel::{Places, memory};
use knit_model::link::OwnerId;
use knit_model::{Plan, Sandbox, SandboxId, Scope};
use knit_store::{Journal, Seq, Size};

pub use repair::Repair;
pub use start::FORMAT;

use crate::chain;
use crate::error::{Error, Result};
use crate::forward::LastFilter;
use crate::hands::{Done, Hands, Job, Task};
use crate::keys::KeyFolder;
use crate::sockets;

/// The journal is rewritten as a snapshot after so many records.
const MOST_RECORDS: u64 = 5_000;

/// A node: what it knows, where that is written down, and hands that change the kernel.
///
/// [`Node::hear`] does everything that follows from an event before it returns. A daemon takes the same steps one by
/// one instead: [`Node::begin`], the tasks on other hands, [`Node::end`].
pub struct Node {
    state: State,
    journal: Journal<Record, State>,
    hands: Hands,
    keys: Arc<KeyFolder>,
    /// Namespaces at hand for units that are being worked on.
    places: BTreeMap<Unit, Places>,
    /// Scopes where cut-off links wait to be deleted.
    to_reap: BTreeSet<Scope>,
    /// The sandboxes among them: one may be forgotten before its links are deleted.
    reaped: BTreeMap<SandboxId, Sandbox>,
    /// Whether links with Knit's mark that no unit knows are another's, and stay.
    spares_strays: bool,
    /// What is to go past the bridge, once nobody waits.
    direct: Option<Box<Forwarding>>,
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
    /// Answers to calls.
    pub answers: Vec<(CallId, Answer)>,
}

/// What follows from an event at once.
#[derive(Debug, Default)]
pub struct Heard {
    /// What the hands have to do.
    pub tasks: Vec<Task>,
    /// Objects about which something changed.
    pub changed: BTreeSet<ObjectKey>,
    /// Answers to calls.
    pub answers: Vec<(CallId, Answer)>,
    /// Extensions that have to be called.
    pub invocations: Vec<Invocation>,
    /// What is to be done with blocks of addresses.
    pub orders: Vec<Order>,
    /// Sockets that pods may ask for from now on: these, and no others.
    pub offers: Option<Vec<Listener>>,
    /// What was written down.
    pub records: Vec<(Seq, Record)>,
}

impl Node {
    /// What the node knows.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Writes down and takes in a change that needs no decision.
    pub fn record(&mut self, record: &Record) -> Result<Seq> {
        self.state.record(record);
        Ok(self.journal.append_durable(record)?)
    }

    /// Hears an event and does all that follows from it.
    pub fn hear(&mut self, event: Event) -> Result<Outcome> {
        self.hear_together(vec![event])
    }

    /// Hears events and does all that follows from them. A unit that several of them change is changed for the first of
    /// them, and then for all others at once.
    pub fn hear_together(&mut self, events: Vec<Event>) -> Result<Outcome> {
        let heard = self.do_all(events.into());
        // A socket keeps its namespace alive.
        self.places.clear();
        heard
    }

    fn do_all(&mut self, mut events: VecDeque<Event>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        while let Some(event) = events.pop_front() {
            let Heard { tasks, changed, answers, offers, .. } = self.begin(event)?;
            events.extend(offers.map(|offers| sockets::without_agent(&offers)));
            outcome.changed.extend(changed);
            outcome.answers.extend(answers);
            for task in tasks {
                if let Task::Apply { unit, plan } = &task {
                    outcome.plans.push((unit.clone(), Arc::clone(plan)));
                }
                let job = self.job(task);
                let done = self.hands.work(job)?;
                events.extend(self.end(done));
            }
        }
        Ok(outcome)
    }

    /// Hears an event: decides, writes down, and says what the hands have to do.
    pub fn begin(&mut self, event: Event) -> Result<Heard> {
        let mut heard = Heard::default();
        let looked = if let Event::Observed { unit, .. } = &event { Some(unit.clone()) } else { None };
        for effect in step(&mut self.state, event, now()) {
            match effect {
                Effect::Journal(record) => {
                    let seq = self.write(&record)?;
                    heard.records.push((seq, record));
                }
                Effect::Changed(objects) => heard.changed.extend(objects),
                Effect::Answer { call, answer } => heard.answers.push((call, answer)),
                Effect::Invoke(invocation) => heard.invocations.push(*invocation),
                Effect::Block(order) => heard.orders.push(order),
                Effect::Offer(offers) => heard.offers = Some(offers),
                effect => heard.tasks.extend(task(effect, true)),
            }
        }
        let goes_on = |unit: &Unit| {
            heard.tasks.iter().any(|task| matches!(task, Task::Apply { unit: of, .. } if of == unit))
        };
        if let Some(unit) = looked.filter(|unit| !goes_on(unit)) {
            // A socket keeps its namespace alive.
            self.places.remove(&unit);
        }
        Ok(heard)
    }

    /// A task with all that hands need for it.
    pub fn job(&mut self, task: Task) -> Job {
        let unit = match &task {
            Task::Observe { unit, .. } | Task::Apply { unit, .. } => Some(unit),
            _ => None,
        };
        let places = unit.and_then(|unit| self.places.remove(unit)).unwrap_or_default();
        let is_reaping = matches!(task, Task::Reap(_));
        let mut job = task.with(&self.state, places);
        if is_reaping {
            let known: BTreeSet<SandboxId> = job.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
            let forgotten = std::mem::take(&mut self.reaped).into_iter();
            job.sandboxes.extend(forgotten.filter(|(id, _)| !known.contains(id)).map(|(_, sandbox)| sandbox));
        }
        job
    }

    /// Takes in what hands have done; the events are to be heard next.
    pub fn end(&mut self, done: Done) -> Vec<Event> {
        for scope in done.to_reap {
            if let Scope::Sandbox(id) = &scope
                && let Some(sandbox) = self.state.sandboxes.get(id)
            {
                self.reaped.insert(id.clone(), sandbox.clone());
            }
            self.to_reap.insert(scope);
        }
        if let Some((unit, places)) = done.places {
            self.places.insert(unit, places);
        }
        if done.direct.is_some() {
            self.direct = done.direct;
        }
        done.events
    }

    /// Has packets go past the bridge as they may by now, if that is news.
    pub(crate) fn go_direct(&mut self) {
        if let Some(all) = self.direct.take() {
            self.hands.direct(&all);
        }
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
                        Effect::Answer { call, answer } => outcome.answers.push((call, answer)),
                        Effect::Apply { unit, plan } => {
                            outcome.plans.push((unit.clone(), plan));
                            queue.push_back(Event::Applied(Applied { unit, result: Ok(()) }));
                        }
                        // Nobody is called for a rehearsal: everyone is taken to do their part.
                        Effect::Invoke(one) => {
                            let told = Ok(BTreeMap::new());
                            queue.push_back(Event::Invoked { id: one.id, told });
                        }
                        // Nothing is made for a rehearsal, and nothing goes.
                        Effect::MakeDomain { .. } | Effect::RemoveDomain { .. } | Effect::Forward(_) => {}
                        Effect::Block(_) => {}
                        Effect::Offer(offers) => queue.push_back(sockets::without_agent(&offers)),
                        Effect::RunChain { verb, chained } => {
                            let result = chained.result.clone().ok_or_else(chain::not_rehearsed);
                            queue.push_back(Event::ChainDone { key: chained.key(), verb, result });
                        }
                        effect => {
                            if let Some(task) = task(effect, false) {
                                queue.extend(self.hands.work(task.with(&state, Places::new()))?.events);
                            }
                        }
                    }
                }
            }
        }
        Ok((state, outcome))
    }

    /// Deletes what was cut off, and keeps the journal short. Called when nobody waits.
    pub fn tidy(&mut self) -> Result<()> {
        let scopes = self.take_reaping();
        let job = self.job(Task::Reap(scopes));
        self.hands.work(job)?;
        self.shorten()
    }

    /// Where links wait to be deleted; whoever asks deletes them.
    pub fn take_reaping(&mut self) -> BTreeSet<Scope> {
        std::mem::take(&mut self.to_reap)
    }

    /// Whether links wait to be deleted.
    pub(crate) fn waits_to_reap(&self) -> bool {
        !self.to_reap.is_empty()
    }

    /// Keeps the journal short.
    pub fn shorten(&mut self) -> Result<()> {
        self.forget_keys()?;
        if self.journal.size().records > MOST_RECORDS {
            self.journal.compact(&self.state.remembered(), self.journal.last())?;
            memory::give_back();
        }
        Ok(())
    }

    /// The number of the last record.
    pub fn last(&self) -> Seq {
        self.journal.last()
    }

    /// How long the journal is.
    pub fn journal_size(&self) -> Size {
        self.journal.size()
    }

    /// All records from this one on that are still kept.
    pub fn history(&self, from: Seq) -> Result<knit_store::History<Record>> {
        Ok(self.journal.history(from)?)
    }

    /// Everything written down so far is on disk.
    pub fn sync(&self) -> Result<()> {
        Ok(self.journal.sync()?)
    }

    /// Another pair of hands, for another thread, that works for this node.
    pub fn spare_hands(&self) -> Result<Hands> {
        self.hands.another()
    }

    /// From here on packets between pods may go past the bridge, or what an earlier process left of that is taken away.
    pub fn set_redirect(&mut self, redirect: Arc<Redirect>) {
        self.hands.set_redirect(Some(redirect));
    }

    /// From here on it is known what an earlier node of this process told the packet filter.
    pub(crate) fn set_filter(&mut self, filter: LastFilter) {
        self.hands.set_filter(filter);
    }

    /// How packets between pods of this node go.
    pub fn way(&self) -> Way {
        self.hands.redirect().map_or(Way::Bridge, |redirect| redirect.way())
    }

    /// The node's own hands, for whoever has the node.
    pub fn work(&mut self, job: Job) -> Result<Done> {
        self.hands.work(job)
    }

    /// Every attachment whose sandbox's namespace is still there.
    pub fn still_there(&mut self) -> Result<BTreeSet<(knit_model::SandboxId, Option<knit_model::IfName>)>> {
        let job = self.job(Task::Census);
        let gone: BTreeSet<_> = self
            .hands
            .work(job)?
            .events
            .into_iter()
            .filter_map(|event| match event {
                Event::SandboxGone(id) => Some(id),
                _ => None,
            })
            .collect();
        let known = self.state.sandboxes.keys().filter(|id| !gone.contains(*id));
        Ok(known.map(|id| (id.clone(), None)).collect())
    }

    /// Has something go wrong at chosen steps of plans, for tests.
    pub fn set_faults(&mut self, faults: Box<dyn Observer + Send>) {
        let shared = self.hands.faults();
        *shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = faults;
    }

    /// Tells the fault points that something is about to happen beside the steps of plans.
    pub(crate) fn moment(&self, what: &'static str) {
        self.hands.faults().lock().unwrap_or_else(std::sync::PoisonError::into_inner).moment(what);
    }

    fn write(&mut self, record: &Record) -> Result<Seq> {
        self.moment("record");
        let written =
            if must_last(record) { self.journal.append_durable(record) } else { self.journal.append(record) };
        Ok(written?)
    }

    /// Removes keys that were made for attachments that are gone.
    fn forget_keys(&self) -> Result<()> {
        let mut used = self.marks();
        used.extend(self.state.key_of_ways());
        self.keys.retain(|id| used.contains(id)).map_err(|source| Error::Keys { source })
    }

    /// The marks of what pods have.
    fn marks(&self) -> BTreeSet<String> {
        let sandboxes = self.state.made.iter().filter_map(|(unit, made)| match unit {
            Unit::Sandbox(id) => Some((id, made)),
            Unit::Bridge(_) | Unit::NodeRoutes => None,
        });
        sandboxes
            .flat_map(|(id, made)| made.interfaces.iter().map(move |(_, interface)| (id, &interface.name)))
            .map(|(id, name)| OwnerId::derived(&format!("{id}/{name}")).0)
            .collect()
    }
}

/// Whether a record has to reach the disk before going on. Links do not outlive a boot, and neither do pods, so what is about them
/// need not; objects do.
fn must_last(record: &Record) -> bool {
    match record {
        Record::ObjectApplied(_)
        | Record::ObjectDeleted(_)
        | Record::Revision(_)
        | Record::Undone
        | Record::ExtensionRegistered(_)
        | Record::ExtensionRemoved { .. }
        // Another node may hold it from now on.
        | Record::BlockGone { .. } => true,
        // What the host had before is given back by whoever comes after a boot, too.
        Record::Began(began) => began.held.iter().any(|(key, _)| key.scope == Scope::Host),
        _ => false,
    }
}

/// What an effect means for the hands, if it does. A rehearsal makes no keys.
fn task(effect: Effect, make_keys: bool) -> Option<Task> {
    match effect {
        Effect::Observe { unit, look } => Some(Task::Observe { unit, look, make_keys }),
        Effect::Apply { unit, plan } => Some(Task::Apply { unit, plan }),
        Effect::Inspect { call, path } => Some(Task::Inspect { call, path }),
        Effect::MakeDomain { call, path } => Some(Task::MakeDomain { call, path }),
        Effect::RemoveDomain { call, path } => Some(Task::RemoveDomain { call, path }),
        Effect::RunChain { verb, chained } => Some(Task::Chain { verb, chained }),
        Effect::Forward(all) => Some(Task::Forward(all)),
        Effect::Journal(_)
        | Effect::Changed(_)
        | Effect::Answer { .. }
        | Effect::Invoke(_)
        | Effect::Block(_)
        | Effect::Offer(_) => None,
    }
}

/// No fault points.
pub(crate) fn no_faults() -> crate::hands::Faults {
    Arc::new(Mutex::new(Box::new(knit_kernel::fault::Unobserved)))
}

/// Milliseconds since 1970, for people.
pub(crate) fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use knit_engine::event::Began;
    use knit_engine::state::HeldKey;

    use super::*;

    #[test]
    fn only_what_outlives_a_boot_waits_for_the_disk() {
        let began = |scope: Scope| {
            let key = HeldKey { scope, link: Some("lo".parse().unwrap()), field: "up".to_owned() };
            Record::Began(Box::new(Began {
                unit: Unit::Sandbox(SandboxId("a".to_owned())),
                plan: Arc::default(),
                leases: Vec::new(),
                held: BTreeMap::from([(key, serde_json::Value::Bool(false))]),
            }))
        };
        assert!(!must_last(&began(Scope::Sandbox(SandboxId("a".to_owned())))));
        assert!(must_last(&began(Scope::Host)));
    }
}
