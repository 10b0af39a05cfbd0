//! One event in, effects out.

mod affected;
pub(crate) mod blocks;
mod held;
mod quota;
mod seen;
pub(crate) mod standing;

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use knit_ipam::{Key, Time};
use knit_model::link::{Bridge, LinkKind};
use knit_model::plan::diff;
use knit_model::problem::{Problem, Reason};
use knit_model::report::{BridgeReport, InterfaceReport};
use knit_model::{NetState, SandboxId};

use self::affected::{affected, bridges_named};
use self::held::{given_back, held};
use self::quota::{allowed, give_room};
use self::seen::{blame, focus, in_the_name_of};
use self::standing::Standing;
use crate::call::{Answer, CallId};
use crate::calls;
use crate::cluster;
use crate::egress;
use crate::event::{Applied, Began, Effect, Ended, Event, Failure, Keys, Lack, Record, Unit};
use crate::extensions;
use crate::forward;
use crate::pools;
use crate::resolve::{self, Resolved};
use crate::sockets;
use crate::spans;
use crate::starting;
use crate::state::{BridgeKey, HeldKey, LeaseTaken, Made, ObjectKey, State, StoredObject};

/// A unit that is being worked on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flight {
    pub(crate) resolved: Resolved,
    given_back: Vec<HeldKey>,
}

/// Hears an event and says what is to be done. `now` is remembered for people; nothing is decided by it.
pub fn step(state: &mut State, event: Event, now: Time) -> Vec<Effect> {
    let mut effects = Effects::default();
    let asks_again = matches!(event, Event::Resync);
    match event {
        Event::ObjectApplied(object) => object_applied(state, object, &mut effects),
        Event::ObjectDeleted(key) => object_deleted(state, &key, &mut effects),
        Event::SandboxSeen(sandbox) => {
            if state.sandboxes.get(&sandbox.id) != Some(&sandbox) {
                let unit = Unit::Sandbox(sandbox.id.clone());
                effects.record(state, Record::SandboxSeen(sandbox));
                state.dirty.insert(unit);
            }
        }
        Event::Starting(id) => starting::note(state, &id, &mut effects),
        Event::SandboxGone(id) => sandbox_gone(state, &id, now, &mut effects),
        Event::Observed { unit, seen, keys } => observed(state, &unit, seen, &keys, now, &mut effects),
        Event::Applied(applied) => ended(state, applied, now, &mut effects),
        Event::Compare(units) => {
            let is_known = |unit: &Unit| match unit {
                Unit::Sandbox(id) => state.sandboxes.contains_key(id) || state.made.contains_key(unit),
                Unit::Bridge(_) | Unit::NodeRoutes => state.made.contains_key(unit),
            };
            let known: Vec<Unit> = units.into_iter().filter(is_known).collect();
            state.dirty.extend(known);
        }
        Event::Allowed { quota, counts } => allowed(state, quota, counts),
        Event::Blocks(news) => {
            blocks::hear(state, news, &mut effects);
            spans::heed_blocks(state);
        }
        Event::Underlay(underlay) => spans::hear_underlay(state, underlay, &mut effects),
        Event::Namespaces(said) => {
            if state.namespaces != said {
                effects.record(state, Record::Namespaces(said));
                forward::heed_namespaces(state, &mut effects);
                effects.changed(BTreeSet::from([cluster::key()]));
            }
        }
        Event::Nodes(well) => egress::hear_nodes(state, well, &mut effects),
        Event::Elsewhere { namespace, addresses } => {
            egress::hear_pods(state, &namespace, &addresses, &mut effects);
        }
        Event::Resync => {
            calls::chain::try_again(state);
            state.lacking.clear();
            state.standing.clear();
            state.dirty.extend(state.sandboxes.keys().map(|id| Unit::Sandbox(id.clone())));
            state.dirty.extend(state.made.keys().cloned());
            state.dirty.extend(state.objects.values().flat_map(bridges_named).map(Unit::Bridge));
            state.dirty.extend(state.cluster().and_then(|cluster| cluster.ways).map(|_| Unit::NodeRoutes));
        }
        Event::Offered(offered) => sockets::heard(state, offered, &mut effects),
        about_a_call => calls::hear(state, about_a_call, now, &mut effects),
    }
    extensions::settle_stale(state, now, &mut effects);
    start_what_can(state, now, &mut effects);
    blocks::claim_missing(state, &mut effects);
    blocks::return_alone(state, &mut effects);
    pools::keep(state, &mut effects);
    calls::chain::keep(state, now, &mut effects);
    calls::chain::start_what_can(state, &mut effects);
    sockets::keep(state, asks_again, &mut effects);
    effects.list
}

#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) list: Vec<Effect>,
}

impl Effects {
    /// Changes the state and has the change journalled.
    pub(crate) fn record(&mut self, state: &mut State, record: Record) {
        state.record(&record);
        state.extensions.notice(&record);
        self.list.push(Effect::Journal(record));
    }

    pub(crate) fn answer(&mut self, call: &CallId, answer: Answer) {
        self.list.push(Effect::Answer { call: call.clone(), answer });
    }

    pub(crate) fn changed(&mut self, objects: BTreeSet<ObjectKey>) {
        if !objects.is_empty() {
            self.list.push(Effect::Changed(objects));
        }
    }
}

fn object_applied(state: &mut State, object: StoredObject, effects: &mut Effects) {
    let key = object.key();
    if let Some(old) = state.objects.get(&key) {
        let affected = affected(state, old);
        state.dirty.extend(affected);
    }
    effects.record(state, Record::ObjectApplied(Box::new(object)));
    let object = &state.objects[&key];
    let asked = object.intents.iter().filter_map(|intent| intent.spec.interface());
    for form in asked.flat_map(|want| want.kind.forms()) {
        state.lacking.remove(*form);
    }
    let affected = affected(state, object);
    state.dirty.extend(affected);
    forward::heed(state, &key, effects);
    egress::heed(state, &key, effects);
    effects.changed(BTreeSet::from([key]));
}

fn object_deleted(state: &mut State, key: &ObjectKey, effects: &mut Effects) {
    let Some(old) = state.objects.get(key) else { return };
    let affected = affected(state, old);
    state.allowances.remove(key);
    effects.record(state, Record::ObjectDeleted(key.clone()));
    state.dirty.extend(affected);
    forward::heed(state, key, effects);
    egress::heed(state, key, effects);
    effects.changed(BTreeSet::from([key.clone()]));
}

pub(crate) fn sandbox_gone(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    if !state.sandboxes.contains_key(id) {
        return;
    }
    calls::lost(state, id, effects);
    let unit = Unit::Sandbox(id.clone());
    state.standing.remove(&unit);
    if let Some(flight) = state.flights.remove(&unit) {
        release_claims(state, &unit, &flight);
    }
    follow(state, &unit);
    let objects = state.made.get(&unit).map(|made| made.askers().cloned().collect());
    // They may have been made for it alone a moment ago, and it never came to use them.
    let bridges = resolve::bridges_of(state, id);
    effects.record(state, Record::SandboxGone { id: id.clone(), at: now });
    try_exhausted(state);
    state.dirty.extend(bridges.into_iter().map(Unit::Bridge));
    // What is left of it on the host is cut off as a change of its own.
    state.dirty.insert(unit);
    effects.changed(objects.unwrap_or_default());
}

/// Begins every unit that waits for nothing. A sandbox waits for the bridges that it needs.
fn start_what_can(state: &mut State, now: Time, effects: &mut Effects) {
    let waiting: Vec<Unit> = state.dirty.iter().cloned().collect();
    for unit in waiting {
        if let Unit::Sandbox(id) = &unit {
            need_bridges(state, id);
        }
    }
    let ready: Vec<Unit> = state.dirty.iter().filter(|unit| is_ready(state, unit)).cloned().collect();
    for unit in ready {
        state.dirty.remove(&unit);
        if matches!(&unit, Unit::Bridge(key) if resolve::is_left(state, key)) {
            continue;
        }
        let mut resolved = match &unit {
            Unit::Bridge(key) => resolve::bridge(state, key),
            Unit::Sandbox(id) => resolve::sandbox(state, id, now),
            Unit::NodeRoutes => resolve::ways(state),
        };
        for name in &resolved.made.host_links {
            state.claims.insert(name.clone(), unit.clone());
        }
        if let Unit::Sandbox(id) = &unit {
            calls::begun(state, id);
        }
        match resolved.refused.is_zero() {
            true => state.refused.remove(&unit),
            false => state.refused.insert(unit.clone(), resolved.refused),
        };
        blocks::wait(state, &unit, std::mem::take(&mut resolved.waits));
        resolved.look.links_only = standing::suffices(state, &unit, &resolved);
        effects.list.push(Effect::Observe { unit: unit.clone(), look: resolved.look.clone() });
        state.flights.insert(unit, Flight { resolved, given_back: Vec::new() });
    }
}

/// Gives back the names that a unit was about to take: it has them now, or never will.
fn release_claims(state: &mut State, unit: &Unit, flight: &Flight) {
    for name in &flight.resolved.look.host_links {
        if state.claims.get(name) == Some(unit) {
            state.claims.remove(name);
        }
    }
}

/// Has the bridges made that a sandbox needs, unless that was tried and failed.
fn need_bridges(state: &mut State, id: &SandboxId) {
    for key in resolve::bridges_of(state, id) {
        let is_missing = !state.made.contains_key(&Unit::Bridge(key.clone()));
        let is_lacking = is_missing || resolve::needs_filter(state, id, &key);
        let unit = Unit::Bridge(key);
        if is_lacking && !state.problems.contains_key(&unit) && !state.flights.contains_key(&unit) {
            state.dirty.insert(unit);
        }
    }
}

fn is_ready(state: &State, unit: &Unit) -> bool {
    if state.flights.contains_key(unit) {
        return false;
    }
    let busy = |unit: &Unit| state.dirty.contains(unit) || state.flights.contains_key(unit);
    let is_cluster = |unit: &Unit| matches!(unit, Unit::Bridge(key) if state.cluster().is_none_or(|cluster| cluster.bridge_key() == *key));
    match unit {
        // The two share a table: one goes after the other.
        Unit::Bridge(_) => !(state.flights.contains_key(&Unit::NodeRoutes) && is_cluster(unit)),
        Unit::NodeRoutes => !state.dirty.iter().chain(state.flights.keys()).any(is_cluster),
        Unit::Sandbox(id) => !resolve::bridges_of(state, id).into_iter().any(|key| busy(&Unit::Bridge(key))),
    }
}

fn observed(state: &mut State, unit: &Unit, seen: NetState, keys: &Keys, now: Time, effects: &mut Effects) {
    let Some(mut flight) = state.flights.remove(unit) else { return };
    let had = state.made.get(unit).cloned().unwrap_or_default();
    let seen = focus(seen, &flight.resolved.look, &had, &flight.resolved);
    resolve::fill_keys(&mut flight.resolved, keys, &seen);
    resolve::settle(state, &mut flight.resolved, &seen);
    if *unit == Unit::NodeRoutes {
        resolve::judge_addresses(state, &mut flight.resolved, &seen);
        flight.resolved.goes_on = resolve::close_first(&mut flight.resolved, &seen);
    }
    let small = flight.resolved.look.links_only.then(|| standing::plan(&mut flight.resolved.desired, &seen));
    let mut plan = match small {
        Some(Some(plan)) => plan,
        Some(None) => {
            // Someone has changed more by hand.
            release_claims(state, unit, &flight);
            state.standing.remove(unit);
            state.dirty.insert(unit.clone());
            return;
        }
        None => diff(&flight.resolved.desired, &seen),
    };
    blame(unit, &plan, &mut flight.resolved);
    if matches!(unit, Unit::Bridge(_)) && !plan.problems.is_empty() {
        // A bridge is there wholly or not at all: the name is someone else's, or someone else still uses it.
        plan.steps.clear();
        flight.resolved.made.clone_from(&had);
    }
    flight.given_back = given_back(state, unit, &flight.resolved);
    if plan.is_empty() && flight.resolved.leases.is_empty() {
        release_claims(state, unit, &flight);
        finish(state, unit, flight, now, effects);
        return;
    }
    let plan = Arc::new(plan);
    let began = Began {
        unit: unit.clone(),
        held: held(state, &plan, &had, &flight.resolved, &seen),
        leases: flight.resolved.leases.clone(),
        plan: Arc::clone(&plan),
    };
    effects.record(state, Record::Began(Box::new(began)));
    effects.list.push(Effect::Apply { unit: unit.clone(), plan });
    state.flights.insert(unit.clone(), flight);
}

fn ended(state: &mut State, applied: Applied, now: Time, effects: &mut Effects) {
    let Applied { unit, result } = applied;
    let Some(mut flight) = state.flights.remove(&unit) else { return };
    release_claims(state, &unit, &flight);
    state.standing.remove(&unit);
    match result {
        Ok(()) => {
            if matches!(&unit, Unit::Bridge(key) if state.cluster().is_some_and(|one| one.bridge_key() == *key))
            {
                // With an address of a bridge the kernel drops routes that say it.
                state
                    .dirty
                    .extend(state.cluster().and_then(|cluster| cluster.ways).map(|_| Unit::NodeRoutes));
            }
            finish(state, &unit, flight, now, effects);
        }
        Err(Failure { lacks: Some(lack), taken_back: true, .. }) if is_news(state, &unit, &lack) => {
            state.lacking.insert(lack.kind, lack.words);
            // Nothing was decided by this try: what is known of the unit stays until the next one.
            let problems = state.problems.get(&unit).cloned().unwrap_or_default();
            let ended = Ended { unit: unit.clone(), made: None, problems, given_back: Vec::new(), at: now };
            effects.record(state, Record::Ended(Box::new(ended)));
            // Without that kind, the others can be had.
            state.dirty.insert(unit);
        }
        Err(Failure { problem, taken_back, .. }) => {
            if !state.unfinished.contains_key(&unit) {
                // It never began, so that nothing written down gives back what was taken for it.
                for LeaseTaken { network, address, .. } in std::mem::take(&mut flight.resolved.leases) {
                    state.leases.release_address(&Key { network, address }, now);
                }
            }
            let message = if taken_back {
                problem.message
            } else {
                format!("{} (and not all of it could be taken back)", problem.message)
            };
            let problem = Problem { message, ..problem };
            let mut askers = std::mem::take(&mut flight.resolved.askers);
            if askers.is_empty() {
                // Nobody asks any more and it could not be taken away: those who asked before are told.
                askers.extend(state.made.get(&unit).into_iter().flat_map(Made::askers).cloned());
                askers.extend(in_the_name_of(&unit));
            }
            flight.resolved.problems.extend(askers.iter().map(|object| (object.clone(), problem.clone())));
            let problems = flight.resolved.problems;
            effects.record(
                state,
                Record::Ended(Box::new(Ended {
                    unit: unit.clone(),
                    made: None,
                    problems,
                    given_back: Vec::new(),
                    at: now,
                })),
            );
            follow(state, &unit);
            after(state, &unit, askers, &BTreeSet::new(), effects);
            calls::landed(state, &unit, now, effects);
        }
    }
}

/// Whether a unit can do without a kind that the kernel lacks, and that was not known yet.
fn is_news(state: &State, unit: &Unit, lack: &Lack) -> bool {
    let is_bridge = matches!(unit, Unit::Bridge(_)) && lack.kind == Bridge::NAME;
    !is_bridge && !state.lacking.contains_key(&lack.kind)
}

/// The unit is as it should be.
fn finish(state: &mut State, unit: &Unit, flight: Flight, now: Time, effects: &mut Effects) {
    let Flight { resolved, given_back } = flight;
    let has_links = !resolved.made.interfaces.is_empty();
    if matches!(unit, Unit::Sandbox(_)) && has_links && resolved.problems.is_empty() {
        state.standing.insert(unit.clone(), Standing::of(resolved.desired.state));
    }
    let old = state.made.get(unit).cloned().unwrap_or_default();
    let unchanged = old == resolved.made && given_back.is_empty();
    let is_freed = gives_up(&old, &resolved.made);
    let same_problems = state.problems.get(unit).map_or(&[][..], Vec::as_slice) == resolved.problems;
    if !unchanged || !same_problems || state.unfinished.contains_key(unit) {
        let ended = Ended {
            unit: unit.clone(),
            made: Some(resolved.made),
            problems: resolved.problems,
            given_back,
            at: now,
        };
        effects.record(state, Record::Ended(Box::new(ended)));
    }
    if let Some(old) = &old.bridge {
        look_again(state, unit, old);
        tell_ports(state, unit, old);
    }
    if !unchanged {
        follow(state, unit);
        give_room(state, unit, &old);
    }
    if matches!(unit, Unit::Bridge(_)) {
        forward::heed_tunnels(state, effects);
    }
    if is_freed {
        try_exhausted(state);
    }
    if resolved.goes_on {
        state.dirty.insert(unit.clone());
    }
    let mut objects = resolved.askers;
    objects.extend(old.askers().cloned());
    after(state, unit, objects, &old.uses, effects);
    calls::landed(state, unit, now, effects);
}

/// When a bridge gives up an address, another one may wait for it, or may just have been told that there is none.
fn look_again(state: &mut State, unit: &Unit, old: &BridgeReport) {
    let bridge = state.made.get(unit).and_then(|made| made.bridge.as_ref());
    let has: &[IpNet] = bridge.map_or(&[], |bridge| &bridge.addresses);
    if old.addresses.iter().all(|address| has.contains(address)) {
        return;
    }
    let flying = state.flights.iter().map(|(unit, flight)| (unit, &flight.resolved.made));
    let all = state.made.iter().chain(flying);
    let waiting = all.filter(|(_, made)| made.bridge.is_some() && !made.warnings.is_empty());
    let waiting: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(waiting);
}

/// Whether interfaces had addresses that they have not any more.
fn gives_up(old: &Made, new: &Made) -> bool {
    let has = |(object, had): &(ObjectKey, InterfaceReport)| {
        let now = new.interfaces.iter().find(|(asker, now)| asker == object && now.name == had.name);
        now.is_some_and(|(_, now)| had.addresses.iter().all(|address| now.addresses.contains(address)))
    };
    !old.interfaces.iter().all(has)
}

/// Addresses may have been given back: whoever found none looks again.
fn try_exhausted(state: &mut State) {
    let is_exhausted = |(_, problem): &(ObjectKey, Problem)| problem.reason == Reason::AddressesExhausted;
    let waiting = state.problems.iter().filter(|(_, problems)| problems.iter().any(is_exhausted));
    let waiting: Vec<Unit> = waiting.map(|(unit, _)| unit.clone()).collect();
    state.dirty.extend(waiting);
    state.dirty.extend(state.blocks.waits.keys().cloned());
}

/// Tunnels to a pod follow it when it has become another.
fn follow(state: &mut State, unit: &Unit) {
    if let Unit::Sandbox(id) = unit
        && let Some(sandbox) = state.sandboxes.get(id)
    {
        let followers = resolve::followers(state, sandbox);
        state.dirty.extend(followers);
    }
}

/// When a bridge begins or ends to filter VLANs, or has another default, its ports are others.
fn tell_ports(state: &mut State, unit: &Unit, old: &BridgeReport) {
    let Unit::Bridge(key) = unit else { return };
    let bridge = state.made.get(unit).and_then(|made| made.bridge.as_ref());
    if bridge.is_some_and(|bridge| bridge.default_vlan != old.default_vlan) {
        let users =
            state.made.iter().filter(|(_, made)| made.uses.contains(key)).map(|(unit, _)| unit.clone());
        // Also those that could not be had on it so far.
        let is_meant = |id: &&SandboxId| resolve::bridges_of(state, id).contains(key);
        let meant = state.sandboxes.keys().filter(is_meant).cloned().map(Unit::Sandbox);
        let ports: Vec<Unit> = users.chain(meant).collect();
        state.dirty.extend(ports);
    }
}

/// Looks at bridges that may have lost their last user, and tells what has changed.
fn after(
    state: &mut State,
    unit: &Unit,
    objects: BTreeSet<ObjectKey>,
    used: &BTreeSet<BridgeKey>,
    effects: &mut Effects,
) {
    let now_used = state.made.get(unit).map(|made| made.uses.clone()).unwrap_or_default();
    for key in used {
        let is_left = !now_used.contains(key) && !resolve::is_needed(state, key);
        // A port that needed its bridge to filter may have been the last one.
        if is_left || resolve::may_stop_to_filter(state, key) {
            state.dirty.insert(Unit::Bridge(key.clone()));
        }
    }
    if let Unit::Sandbox(id) = unit
        && state.problems.contains_key(unit)
    {
        // A bridge that was made for an attach that failed must not stay behind.
        let unneeded =
            resolve::bridges_of(state, id).into_iter().filter(|key| !resolve::is_needed(state, key));
        let unneeded: Vec<Unit> = unneeded.map(Unit::Bridge).collect();
        state.dirty.extend(unneeded);
    }
    effects.changed(objects);
}
