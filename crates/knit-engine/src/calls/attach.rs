//! Attaching: all interfaces of a call, or none.

use std::borrow::Cow;
use std::net::IpAddr;

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Provenance;
use knit_model::sandbox::Isolation;
use knit_model::{IfName, Sandbox, SandboxId};

use super::{Attaching, Stage, What, answer, chain, extend, leave, problem, take_in};
use crate::call::{Answer, Asked, Attach, Attachment, CallId, Found, ranges};
use crate::chain::Chained;
use crate::event::{Effect, Record, Unit};
use crate::state::State;
use crate::step::{self, Effects};
use crate::{cluster, forward, resolve};

pub(super) fn requested(state: &mut State, attach: Attach, now: Time, effects: &mut Effects) {
    let call = attach.call.clone();
    let id = SandboxId(attach.sandbox.id.clone());
    let (path, is_machine) = (attach.sandbox.netns.clone(), attach.sandbox.machine.is_some());
    let known = state.sandboxes.get(&id);
    let found = known.map(|sandbox| Found { instance: sandbox.instance.clone(), number: sandbox.number });
    let (added, before) = (Vec::new(), Vec::new());
    let (introduced, cleared, prepared, chained) = (false, false, false, false);
    let attaching = Attaching { attach, found, added, before, introduced, cleared, prepared, chained };
    let unknown = known.is_none();
    if !take_in(state, &call, What::Attach(Box::new(attaching)), Stage::Host, effects) {
        return;
    }
    if let Some(why) = super::late::refusal(state, &call) {
        answer(state, &call, Answer::Failed(why), effects);
    } else if !path.is_empty() || is_machine {
        effects.list.push(Effect::Inspect { call, path });
    } else if unknown {
        let message = format!("sandbox {id} is not known: say where its network namespace is");
        let why = problem("isolation.path", Reason::InvalidValue, message);
        answer(state, &call, Answer::Failed(why), effects);
    } else {
        state.calls.stage(&call, Stage::Clearing);
        try_clear(state, &call, now, effects);
    }
}

/// Goes on once nothing of an older life of the sandbox is left.
pub(super) fn try_clear(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    let Some(What::Attach(attaching)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return;
    };
    let (id, found) = (SandboxId(attaching.attach.sandbox.id.clone()), attaching.found.clone());
    let (prepared, nothing) = (attaching.prepared, attaching.attach.interfaces.is_empty());
    let chained = chain::meant(state, &attaching.attach).map(|_| attaching.attach.clone());
    let Some(found) = found else { return };
    let unit = Unit::Sandbox(id.clone());
    let is_other = state.sandboxes.get(&id).is_some_and(|known| known.instance != found.instance);
    let is_left = !state.sandboxes.contains_key(&id) && state.made.contains_key(&unit);
    if is_other || is_left {
        if state.flights.contains_key(&unit) {
            return;
        }
        step::sandbox_gone(state, &id, now, effects);
        if state.made.contains_key(&unit) {
            return clear(state, call, unit, effects);
        }
        state.dirty.remove(&unit);
    }
    let chained = chained.map(|attach| (described(state, &id, &found, &attach), attach));
    let admitted = if !prepared && !nothing {
        let checked = state.check_required().and_then(|()| match &chained {
            None => check(state, call, &id, &found, now).map(drop),
            Some((sandbox, attach)) => check_instance(state, &id, &found)
                .and_then(|()| chain::check(state, attach, sandbox).map(drop)),
        });
        match checked {
            Ok(()) => return extend::before(state, call, now, effects),
            Err(why) => Err(why),
        }
    } else {
        match &chained {
            None => admit(state, call, &id, &found, now, effects),
            Some((sandbox, attach)) => check_instance(state, &id, &found)
                .and_then(|()| chain::admit(state, call, attach, sandbox, now, effects)),
        }
    };
    if let Err(why) = admitted {
        // What extensions did before it is undone.
        state.extensions.stale.insert(id);
        answer(state, call, Answer::Failed(why), effects);
    }
}

/// Has what is left of an older life taken away, once: whoever asks is not kept waiting for what cannot be.
fn clear(state: &mut State, call: &CallId, unit: Unit, effects: &mut Effects) {
    let Some(What::Attach(attaching)) = state.calls.waiting.get_mut(call).map(|waiting| &mut waiting.what)
    else {
        return;
    };
    if std::mem::replace(&mut attaching.cleared, true) {
        let message = format!("{unit}: what an older life of it left could not be taken away");
        let why = problem("id", Reason::KernelRefused, message);
        return answer(state, call, Answer::Failed(why), effects);
    }
    state.dirty.insert(unit);
}

/// What an attach puts into desired.
struct Admission {
    /// The sandbox as the call describes it.
    sandbox: Sandbox,
    /// Attachments that it brings, or changes.
    fresh: Vec<Attachment>,
    /// Those that it changes, as they were.
    before: Vec<Attachment>,
}

/// What the call would put into desired, or why not.
fn check(
    state: &State,
    call: &CallId,
    id: &SandboxId,
    found: &Found,
    now: Time,
) -> Result<Admission, Problem> {
    let Some(What::Attach(attaching)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return Err(problem("", Reason::Superseded, format!("call {call} is over")));
    };
    let attach = attaching.attach.clone();
    check_instance(state, id, found)?;
    let asked = attach.interfaces.iter();
    let ports = asked.flat_map(|(name, _, asked)| asked.ports.iter().map(move |port| (name, port)));
    forward::check(state, id, ports)?;
    let sandbox = described(state, id, found, &attach);
    if state.sandboxes.get(id).is_some_and(|known| known.isolation != sandbox.isolation) {
        let message = format!("sandbox {id} is known with other devices: detach it first");
        return Err(problem("sandbox.isolation", Reason::Conflict, message));
    }
    let (mut fresh, mut before) = (Vec::new(), Vec::new());
    for (index, (interface, network, asked)) in attach.interfaces.iter().enumerate() {
        let field = format!("interfaces[{index}]");
        let on_none = asked.link.as_ref().is_some_and(|link| link.network.is_none());
        let place = match on_none {
            true => (sandbox.namespace.clone(), String::new()),
            false => find_network(state, &sandbox, network, &field)?,
        };
        let asked = &on_nic(state, id, interface, asked, &field)?;
        let there = is_there(state, &sandbox, interface, (&place, asked), &attach, &field)?;
        let (tenant, network) = place;
        if !on_none {
            check_addresses(state, &sandbox, (&tenant, &network), asked, &field)?;
        }
        let why = Provenance { dialect: attach.dialect, object: None, field, call: Some(call.0.clone()) };
        if let Some(there) = there {
            if there.asked.limits != asked.limits {
                fresh.push(Attachment { asked: asked.clone().into_owned(), why, ..there.clone() });
                before.push(there);
            }
            continue;
        }
        fresh.push(Attachment {
            sandbox: id.clone(),
            interface: interface.clone(),
            tenant,
            network,
            object: Attachment::key(&sandbox.namespace, id, interface),
            why,
            asked: asked.clone().into_owned(),
            notes: attach.notes.clone(),
            since: now,
            ticket: attach.ticket,
            stood: false,
        });
    }
    Ok(Admission { sandbox, fresh, before })
}

/// A sandbox that was deleted is not attached to any more.
fn check_instance(state: &State, id: &SandboxId, found: &Found) -> Result<(), Problem> {
    if state.called.is_deleted(&found.instance) {
        let message = format!("sandbox {id} was deleted: this call comes too late");
        return Err(problem("id", Reason::Superseded, message));
    }
    Ok(())
}

/// Puts what the call asks for into desired, or says why not; then nothing has changed.
fn admit(
    state: &mut State,
    call: &CallId,
    id: &SandboxId,
    found: &Found,
    now: Time,
    effects: &mut Effects,
) -> Result<(), Problem> {
    let Admission { sandbox, fresh, before } = check(state, call, id, found, now)?;
    let introduced = !state.sandboxes.contains_key(id);
    if state.sandboxes.get(id) != Some(&sandbox) {
        effects.record(state, Record::SandboxSeen(sandbox));
    }
    state.calls.leaving.remove(id);
    let is_new = |fresh: &&Attachment| !before.iter().any(|there| there.interface == fresh.interface);
    let added: Vec<IfName> = fresh.iter().filter(is_new).map(|fresh| fresh.interface.clone()).collect();
    for attachment in fresh {
        effects.record(state, Record::Attached(Box::new(attachment)));
    }
    // A bridge that could not be made a while ago may be made now.
    let tried = resolve::bridges_of(state, id).into_iter().map(Unit::Bridge);
    let tried: Vec<Unit> = tried.filter(|unit| state.problems.contains_key(unit)).collect();
    state.dirty.extend(tried);
    state.dirty.insert(Unit::Sandbox(id.clone()));
    if let Some(waiting) = state.calls.waiting.get_mut(call) {
        waiting.stage = Stage::Waiting;
        if let What::Attach(attaching) = &mut waiting.what {
            (attaching.added, attaching.before) = (added, before);
            attaching.introduced = introduced;
        }
    }
    Ok(())
}

/// The sandbox as the call describes it, with what is known of it already.
pub(super) fn described(state: &State, id: &SandboxId, found: &Found, attach: &Attach) -> Sandbox {
    let wished = &attach.sandbox;
    let mut sandbox = state.sandboxes.get(id).cloned().unwrap_or_else(|| Sandbox {
        id: id.clone(),
        instance: found.instance.clone(),
        isolation: Isolation::Netns,
        netns: wished.netns.clone(),
        number: found.number,
        pod: id.0.clone(),
        namespace: "default".to_owned(),
        uid: String::new(),
        labels: Default::default(),
        annotated: None,
    });
    let set = |to: &mut String, from: &String| {
        if !from.is_empty() {
            to.clone_from(from);
        }
    };
    set(&mut sandbox.pod, &wished.pod);
    set(&mut sandbox.namespace, &wished.namespace);
    set(&mut sandbox.uid, &wished.uid);
    set(&mut sandbox.netns, &wished.netns);
    if let Some(tap) = &wished.machine {
        sandbox.isolation = Isolation::Machine(tap.clone());
    }
    if !wished.labels.is_empty() {
        sandbox.labels.clone_from(&wished.labels);
    }
    sandbox
}

/// The namespace and the name of a network that a pod may be on.
fn find_network(
    state: &State,
    sandbox: &Sandbox,
    name: &str,
    field: &str,
) -> Result<(String, String), Problem> {
    let field = format!("{field}.network");
    match state.cluster() {
        Some(_) if name.is_empty() || name == cluster::NAME => {
            Ok((cluster::NAMESPACE.to_owned(), cluster::NAME.to_owned()))
        }
        None if name.is_empty() => {
            Err(problem(&field, Reason::NotFound, "this node has no cluster network: name a network"))
        }
        _ if state.network(&sandbox.namespace, name).is_some() => {
            Ok((sandbox.namespace.clone(), name.to_owned()))
        }
        _ => {
            let message = format!("there is no network {name} in namespace {}", sandbox.namespace);
            Err(problem(&field, Reason::NotFound, message))
        }
    }
}

/// Addresses that are asked for by value, and ranges that they are to come from, are the network's.
fn check_addresses(
    state: &State,
    sandbox: &Sandbox,
    (tenant, network): (&str, &str),
    asked: &Asked,
    field: &str,
) -> Result<(), Problem> {
    let Some(known) = state.network(tenant, network) else { return Ok(()) };
    let wrong = |of: &str, message| Err(problem(&format!("{field}.{of}"), Reason::InvalidValue, message));
    let is_cluster = state.cluster().is_some_and(|cluster| cluster.is(tenant, network));
    let pool = |address: &IpAddr| state.pool_of(*address).filter(|_| is_cluster);
    let outside = |address: &&IpAddr| {
        !known.ranges.iter().any(|range| range.contains(*address)) && pool(address).is_none()
    };
    for address in &asked.addresses {
        let pools = state.pools_for(&sandbox.namespace, address.is_ipv6());
        if let Some((pool, _)) = pool(address).filter(|(pool, _)| !pools.contains(pool)) {
            let message = format!(
                "{address} is of pool {}, which pods of namespace {} take nothing from",
                pool.name, sandbox.namespace
            );
            return Err(problem(&format!("{field}.addresses"), Reason::NotAllowed, message));
        }
    }
    if let Some(address) = asked.addresses.iter().find(outside) {
        return wrong("addresses", format!("{address} is in no range of network {network}"));
    }
    ranges::check(known, asked).or_else(|(of, message)| wrong(&of, message))
}

/// What is asked for, with the NIC of its device: the one that is on the host, or that the same attachment has already.
fn on_nic<'a>(
    state: &State,
    id: &SandboxId,
    interface: &IfName,
    asked: &'a Asked,
    field: &str,
) -> Result<Cow<'a, Asked>, Problem> {
    let Some(device) = &asked.device else { return Ok(Cow::Borrowed(asked)) };
    let holder = state.called.all().find(|there| there.asked.device.as_ref() == Some(device));
    let (reason, message) = match (holder, &device.nic) {
        (Some(there), _) if (&there.sandbox, &there.interface) == (id, interface) => {
            return Ok(Cow::Owned(Asked { device: there.asked.device.clone(), ..asked.clone() }));
        }
        (Some(Attachment { sandbox, interface, .. }), _) => {
            let message = format!("device {} is interface {interface} of sandbox {sandbox}", device.id);
            (Reason::Conflict, message)
        }
        (None, Err(why)) => (Reason::NotFound, why.clone()),
        (None, Ok(_)) => return Ok(Cow::Borrowed(asked)),
    };
    Err(problem(&format!("{field}.device_id"), reason, message))
}

/// The interface if it is attached already, as the call asks but for its limits; if it is there in another way, the call
/// fails.
fn is_there(
    state: &State,
    sandbox: &Sandbox,
    interface: &IfName,
    (place, asked): (&(String, String), &Asked),
    attach: &Attach,
    field: &str,
) -> Result<Option<Attachment>, Problem> {
    let title = format!("interface {interface} of sandbox {}", sandbox.id);
    let field = format!("{field}.name");
    if let Some(there) = state.called.get(&sandbox.id, interface) {
        if attach.fail_if_present {
            let message = format!("{title} is attached already");
            return Err(problem(&field, Reason::AlreadyPresent, message));
        }
        let as_asked = Asked { limits: asked.limits, ..there.asked.clone() } == *asked;
        if (&there.tenant, &there.network) != (&place.0, &place.1) || !as_asked {
            let message = format!("{title} is attached already, and in another way");
            return Err(problem(&field, Reason::Conflict, message));
        }
        return Ok(Some(there.clone()));
    }
    if state.called.chained(&(sandbox.id.clone(), interface.clone())).is_some() {
        let message = format!("{title} is attached already, to a network of CNI plugins");
        return Err(problem(&field, Reason::AlreadyPresent, message));
    }
    let made = state.made.get(&Unit::Sandbox(sandbox.id.clone()));
    let mut others = made.into_iter().flat_map(|made| &made.interfaces);
    match others.find(|(_, report)| report.name == *interface && !report.kind.is_empty()) {
        Some((object, _)) if *object != Attachment::key(&sandbox.namespace, &sandbox.id, interface) => {
            Err(problem(&field, Reason::Conflict, format!("{title} is {object}'s")))
        }
        _ => Ok(None),
    }
}

/// The flight that carried the call has ended.
pub(super) fn landed(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    let Some(What::Attach(attaching)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return;
    };
    let turn = state.forwards.awaited(&SandboxId(attaching.attach.sandbox.id.clone()));
    match (result(state, call), turn) {
        (Ok(_), Some(turn)) => state.calls.stage(call, Stage::Forwarding(turn)),
        (Ok(_), None) => extend::after(state, call, now, effects),
        (Err(why), _) => fail(state, call, why, effects),
    }
}

/// The node's part of the way to and from what the call attached is there, or could not be made.
pub(super) fn forwarded(
    state: &mut State,
    call: &CallId,
    opened: Result<(), Problem>,
    now: Time,
    effects: &mut Effects,
) {
    match opened.and_then(|()| result(state, call)) {
        Ok(_) => extend::after(state, call, now, effects),
        Err(why) => fail(state, call, why, effects),
    }
}

pub(super) fn fail(state: &mut State, call: &CallId, why: Problem, effects: &mut Effects) {
    if is_chained(state, call) {
        return chain::fail(state, call, why, effects);
    }
    take_back(state, call, effects);
    state.calls.stage(call, Stage::TakingBack { why, flying: false });
}

/// What stands of what the call asks for.
pub(super) fn result(state: &State, call: &CallId) -> Result<Answer, Problem> {
    let Some(What::Attach(attaching)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return Err(problem("", Reason::Superseded, format!("call {call} is over")));
    };
    let id = SandboxId(attaching.attach.sandbox.id.clone());
    let names: Vec<IfName> = attaching.attach.interfaces.iter().map(|(name, ..)| name.clone()).collect();
    if !attaching.chained {
        return report(state, &id, &names);
    }
    let stands = |name| state.called.chained(&(id.clone(), name)).is_some_and(Chained::stands);
    match names.iter().find(|name| !stands((*name).clone())) {
        None => Ok(Answer::Chained),
        Some(name) => {
            Err(problem("", Reason::Superseded, format!("interface {name} was detached meanwhile")))
        }
    }
}

/// Whether plugins make what the call asks for.
pub(super) fn is_chained(state: &State, call: &CallId) -> bool {
    let what = state.calls.waiting.get(call).map(|waiting| &waiting.what);
    matches!(what, Some(What::Attach(attaching)) if attaching.chained)
}

/// What stands of these interfaces: all of them, or the first thing that is in the way.
fn report(state: &State, id: &SandboxId, names: &[IfName]) -> Result<Answer, Problem> {
    let unit = Unit::Sandbox(id.clone());
    let gone = || problem("sandbox", Reason::SandboxGone, format!("sandbox {id} is gone"));
    let sandbox = state.sandboxes.get(id).ok_or_else(gone)?;
    let problems = state.problems.get(&unit).map_or(&[][..], Vec::as_slice);
    let made = state.made.get(&unit);
    let mut interfaces = Vec::new();
    for name in names {
        let attachment = state.called.get(id, name).ok_or_else(|| {
            problem("", Reason::Superseded, format!("interface {name} was detached meanwhile"))
        })?;
        if let Some((_, why)) = problems.iter().find(|(object, _)| *object == attachment.object) {
            return Err(why.clone());
        }
        let mut reports = made.into_iter().flat_map(|made| &made.interfaces);
        let stands = reports.find(|(object, report)| *object == attachment.object && report.ready);
        match stands {
            Some((_, report)) => interfaces.push((attachment.clone(), report.clone())),
            None => {
                let message = format!("interface {name} of sandbox {id} could not be made");
                return Err(problem("", Reason::KernelRefused, message));
            }
        }
    }
    Ok(Answer::Attached { sandbox: Box::new(sandbox.clone()), interfaces })
}

/// Takes back what the call brought, and nothing else.
pub(super) fn take_back(state: &mut State, call: &CallId, effects: &mut Effects) {
    if is_chained(state, call) {
        return chain::abandon(state, call, effects);
    }
    let Some(What::Attach(attaching)) = state.calls.waiting.get(call).map(|waiting| &waiting.what) else {
        return;
    };
    let id = SandboxId(attaching.attach.sandbox.id.clone());
    let (added, introduced) = (attaching.added.clone(), attaching.introduced);
    for before in attaching.before.clone() {
        let there = state.called.get(&id, &before.interface);
        // A later call may have changed it again.
        if there.is_some_and(|there| there.why.call.as_ref() == Some(&call.0)) {
            effects.record(state, Record::Attached(Box::new(before)));
        }
    }
    for interface in added {
        if state.called.get(&id, &interface).is_some() {
            effects.record(state, Record::Detached { sandbox: id.clone(), interface, call: call.clone() });
        }
    }
    if introduced && state.called.of(&id).next().is_none() {
        leave(state, call, &id, effects);
    }
    state.dirty.insert(Unit::Sandbox(id));
}
