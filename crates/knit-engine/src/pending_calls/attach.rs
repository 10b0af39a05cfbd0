//! Attach: all interfaces of a call, or none.

use std::borrow::Cow;
use std::net::IpAddr;

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Provenance;
use knit_model::sandbox::Isolation;
use knit_model::{IfName, Sandbox, SandboxId};

use super::{AttachCall, CallKind, Stage, detach_all, enqueue, hooks, plugin_chain, problem, respond};
use crate::call::{AttachRequest, Attachment, CallId, CallResult, InterfaceRequest, NetnsInfo, ranges};
use crate::event::{Effect, Record, Unit};
use crate::plugin_chain::ChainedInterface;
use crate::state::State;
use crate::step::{self, Effects};
use crate::{cluster, packet_filter, resolve};

pub(super) fn requested(state: &mut State, attach: AttachRequest, now: Time, effects: &mut Effects) {
    let call = attach.call.clone();
    let id = SandboxId(attach.sandbox.id.clone());
    let (path, is_machine) = (attach.sandbox.netns.clone(), attach.sandbox.machine.is_some());
    let known = state.sandboxes.get(&id);
    let netns_info =
        known.map(|sandbox| NetnsInfo { instance: sandbox.instance.clone(), number: sandbox.number });
    let (added, before) = (Vec::new(), Vec::new());
    let (created_sandbox, cleared, before_hooks_done, chained) = (false, false, false, false);
    let attaching = AttachCall {
        attach,
        netns_info,
        added,
        before,
        created_sandbox,
        cleared,
        before_hooks_done,
        chained,
    };
    let unknown = known.is_none();
    if !enqueue(state, &call, CallKind::Attach(Box::new(attaching)), Stage::Inspecting, effects) {
        return;
    }
    if let Some(error) = super::late_attach::rejection(state, &call) {
        respond(state, &call, CallResult::Failed(error), effects);
    } else if !path.is_empty() || is_machine {
        effects.list.push(Effect::InspectNetns { call, path });
    } else if unknown {
        let message = format!("sandbox {id} is unknown: state the path of its network namespace");
        let error = problem("isolation.path", Reason::InvalidValue, message);
        respond(state, &call, CallResult::Failed(error), effects);
    } else {
        state.pending_calls.stage(&call, Stage::ClearingPrevious);
        try_clear(state, &call, now, effects);
    }
}

/// Continues once nothing of a previous sandbox instance is left.
pub(super) fn try_clear(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    let Some(CallKind::Attach(attaching)) =
        state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind)
    else {
        return;
    };
    let (id, netns_info) = (SandboxId(attaching.attach.sandbox.id.clone()), attaching.netns_info.clone());
    let (before_hooks_done, nothing) = (attaching.before_hooks_done, attaching.attach.interfaces.is_empty());
    let chained = plugin_chain::chain_for(state, &attaching.attach).map(|_| attaching.attach.clone());
    let Some(netns_info) = netns_info else { return };
    let unit = Unit::Sandbox(id.clone());
    let is_other = state.sandboxes.get(&id).is_some_and(|known| known.instance != netns_info.instance);
    let is_left = !state.sandboxes.contains_key(&id) && state.units.contains_key(&unit);
    if is_other || is_left {
        if state.in_flight.contains_key(&unit) {
            return;
        }
        step::sandbox_gone(state, &id, now, effects);
        if state.units.contains_key(&unit) {
            return clear(state, call, unit, effects);
        }
        state.dirty.remove(&unit);
    }
    let chained = chained.map(|attach| (describe_sandbox(state, &id, &netns_info, &attach), attach));
    let admitted = if !before_hooks_done && !nothing {
        let checked = state.check_required().and_then(|()| match &chained {
            None => check(state, call, &id, &netns_info, now).map(drop),
            Some((sandbox, attach)) => check_instance(state, &id, &netns_info)
                .and_then(|()| plugin_chain::check(state, attach, sandbox).map(drop)),
        });
        match checked {
            Ok(()) => return hooks::run_before(state, call, now, effects),
            Err(error) => Err(error),
        }
    } else {
        match &chained {
            None => admit(state, call, &id, &netns_info, now, effects),
            Some((sandbox, attach)) => check_instance(state, &id, &netns_info)
                .and_then(|()| plugin_chain::admit(state, call, attach, sandbox, now, effects)),
        }
    };
    if let Err(error) = admitted {
        // Extensions undo what they did before the attach.
        state.extensions.stale.insert(id);
        respond(state, call, CallResult::Failed(error), effects);
    }
}

/// Requests the removal of a previous sandbox instance, once: if that fails, so does the call.
fn clear(state: &mut State, call: &CallId, unit: Unit, effects: &mut Effects) {
    let Some(CallKind::Attach(attaching)) =
        state.pending_calls.waiting.get_mut(call).map(|waiting| &mut waiting.kind)
    else {
        return;
    };
    if std::mem::replace(&mut attaching.cleared, true) {
        let message = format!("{unit}: the previous instance could not be removed");
        let error = problem("id", Reason::KernelError, message);
        return respond(state, call, CallResult::Failed(error), effects);
    }
    state.dirty.insert(unit);
}

/// What an attach adds to the desired state.
struct Admission {
    /// The sandbox as described by the call.
    sandbox: Sandbox,
    /// New or changed attachments.
    fresh: Vec<Attachment>,
    /// Previous versions of the changed ones.
    before: Vec<Attachment>,
}

/// Validates the call and computes what it adds to the desired state.
fn check(
    state: &State,
    call: &CallId,
    id: &SandboxId,
    netns_info: &NetnsInfo,
    now: Time,
) -> Result<Admission, Problem> {
    let Some(CallKind::Attach(attaching)) =
        state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind)
    else {
        return Err(problem("", Reason::Superseded, format!("call {call} is over")));
    };
    let attach = attaching.attach.clone();
    check_instance(state, id, netns_info)?;
    let request = attach.interfaces.iter();
    let ports = request.flat_map(|(name, _, request)| request.ports.iter().map(move |port| (name, port)));
    packet_filter::check(state, id, ports)?;
    let sandbox = describe_sandbox(state, id, netns_info, &attach);
    if state.sandboxes.get(id).is_some_and(|known| known.isolation != sandbox.isolation) {
        let message = format!("sandbox {id} is known with other devices: detach it first");
        return Err(problem("sandbox.isolation", Reason::Conflict, message));
    }
    let (mut fresh, mut before) = (Vec::new(), Vec::new());
    for (index, (interface, network, request)) in attach.interfaces.iter().enumerate() {
        let field = format!("interfaces[{index}]");
        let on_none = request.link.as_ref().is_some_and(|link| link.network.is_none());
        let place = match on_none {
            true => (sandbox.namespace.clone(), String::new()),
            false => find_network(state, &sandbox, network, &field)?,
        };
        let request = &on_nic(state, id, interface, request, &field)?;
        let existing = find_existing(state, &sandbox, interface, (&place, request), &attach, &field)?;
        let (tenant, network) = place;
        if !on_none {
            check_addresses(state, &sandbox, (&tenant, &network), request, &field)?;
        }
        let origin = Provenance { dialect: attach.dialect, object: None, field, call: Some(call.0.clone()) };
        if let Some(existing) = existing {
            if existing.request.limits != request.limits {
                fresh.push(Attachment { request: request.clone().into_owned(), origin, ..existing.clone() });
                before.push(existing);
            }
            continue;
        }
        fresh.push(Attachment {
            sandbox: id.clone(),
            interface: interface.clone(),
            tenant,
            network,
            object: Attachment::key(&sandbox.namespace, id, interface),
            origin,
            request: request.clone().into_owned(),
            metadata: attach.metadata.clone(),
            since: now,
            ticket: attach.ticket,
            was_ready: false,
        });
    }
    Ok(Admission { sandbox, fresh, before })
}

/// Rejects a sandbox instance that was deleted.
fn check_instance(state: &State, id: &SandboxId, netns_info: &NetnsInfo) -> Result<(), Problem> {
    if state.attachments.is_deleted(&netns_info.instance) {
        let message = format!("sandbox {id} was deleted: the call is too late");
        return Err(problem("id", Reason::Superseded, message));
    }
    Ok(())
}

/// Adds the request to the desired state. On an error nothing has changed.
fn admit(
    state: &mut State,
    call: &CallId,
    id: &SandboxId,
    netns_info: &NetnsInfo,
    now: Time,
    effects: &mut Effects,
) -> Result<(), Problem> {
    let Admission { sandbox, fresh, before } = check(state, call, id, netns_info, now)?;
    let created_sandbox = !state.sandboxes.contains_key(id);
    if state.sandboxes.get(id) != Some(&sandbox) {
        effects.record(state, Record::SandboxUpdated(sandbox));
    }
    state.pending_calls.removing.remove(id);
    let is_new = |fresh: &&Attachment| !before.iter().any(|existing| existing.interface == fresh.interface);
    let added: Vec<IfName> = fresh.iter().filter(is_new).map(|fresh| fresh.interface.clone()).collect();
    for attachment in fresh {
        effects.record(state, Record::Attached(Box::new(attachment)));
    }
    // A bridge that failed before is tried again.
    let tried = resolve::bridges_of(state, id).into_iter().map(Unit::Bridge);
    let tried: Vec<Unit> = tried.filter(|unit| state.problems.contains_key(unit)).collect();
    state.dirty.extend(tried);
    state.dirty.insert(Unit::Sandbox(id.clone()));
    if let Some(waiting) = state.pending_calls.waiting.get_mut(call) {
        waiting.stage = Stage::Queued;
        if let CallKind::Attach(attaching) = &mut waiting.kind {
            (attaching.added, attaching.before) = (added, before);
            attaching.created_sandbox = created_sandbox;
        }
    }
    Ok(())
}

/// The sandbox as described by the call, merged with what is known.
pub(super) fn describe_sandbox(
    state: &State,
    id: &SandboxId,
    netns_info: &NetnsInfo,
    attach: &AttachRequest,
) -> Sandbox {
    let requested = &attach.sandbox;
    let mut sandbox = state.sandboxes.get(id).cloned().unwrap_or_else(|| Sandbox {
        id: id.clone(),
        instance: netns_info.instance.clone(),
        isolation: Isolation::Netns,
        netns: requested.netns.clone(),
        number: netns_info.number,
        pod: id.0.clone(),
        namespace: "default".to_owned(),
        uid: String::new(),
        labels: Default::default(),
        annotated_limits: None,
    });
    let set = |to: &mut String, from: &String| {
        if !from.is_empty() {
            to.clone_from(from);
        }
    };
    set(&mut sandbox.pod, &requested.pod);
    set(&mut sandbox.namespace, &requested.namespace);
    set(&mut sandbox.uid, &requested.uid);
    set(&mut sandbox.netns, &requested.netns);
    if let Some(tap) = &requested.machine {
        sandbox.isolation = Isolation::VirtualMachine(tap.clone());
    }
    if !requested.labels.is_empty() {
        sandbox.labels.clone_from(&requested.labels);
    }
    sandbox
}

/// The namespace and name of a network that the pod may use.
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
        _ if state.is_segment(&sandbox.namespace, name) => {
            let (reason, message) = state.missing_network(&sandbox.namespace, name);
            Err(problem(&field, reason, message))
        }
        _ => {
            let message = format!("there is no network {name} in namespace {}", sandbox.namespace);
            Err(problem(&field, Reason::NotFound, message))
        }
    }
}

/// Checks that fixed addresses and address sets belong to the network.
fn check_addresses(
    state: &State,
    sandbox: &Sandbox,
    (tenant, network): (&str, &str),
    request: &InterfaceRequest,
    field: &str,
) -> Result<(), Problem> {
    let Some(known) = state.network(tenant, network) else { return Ok(()) };
    let wrong = |of: &str, message| Err(problem(&format!("{field}.{of}"), Reason::InvalidValue, message));
    let is_cluster = state.cluster().is_some_and(|cluster| cluster.is(tenant, network));
    let pool = |address: &IpAddr| state.pool_of(*address).filter(|_| is_cluster);
    let outside = |address: &&IpAddr| {
        !known.ranges.iter().any(|range| range.contains(*address)) && pool(address).is_none()
    };
    for address in &request.addresses {
        let pools = state.pools_for(&sandbox.namespace, address.is_ipv6());
        if let Some((pool, _)) = pool(address).filter(|(pool, _)| !pools.contains(pool)) {
            let message = format!(
                "{address} is in pool {}, which pods of namespace {} cannot use",
                pool.name, sandbox.namespace
            );
            return Err(problem(&format!("{field}.addresses"), Reason::NotAllowed, message));
        }
    }
    if let Some(address) = request.addresses.iter().find(outside) {
        return wrong("addresses", format!("{address} is in no range of network {network}"));
    }
    ranges::check(known, request).or_else(|(of, message)| wrong(&of, message))
}

/// The request with the NIC of its device: the one on the host, or the one that this attachment has already.
fn on_nic<'a>(
    state: &State,
    id: &SandboxId,
    interface: &IfName,
    request: &'a InterfaceRequest,
    field: &str,
) -> Result<Cow<'a, InterfaceRequest>, Problem> {
    let Some(device) = &request.device else { return Ok(Cow::Borrowed(request)) };
    let holder = state.attachments.all().find(|existing| existing.request.device.as_ref() == Some(device));
    let (reason, message) = match (holder, &device.nic) {
        (Some(existing), _) if (&existing.sandbox, &existing.interface) == (id, interface) => {
            return Ok(Cow::Owned(InterfaceRequest {
                device: existing.request.device.clone(),
                ..request.clone()
            }));
        }
        (Some(Attachment { sandbox, interface, .. }), _) => {
            let message = format!("device {} is interface {interface} of sandbox {sandbox}", device.id);
            (Reason::Conflict, message)
        }
        (None, Some(Err(error))) => (Reason::NotFound, error.clone()),
        (None, None) => (Reason::NotFound, format!("the NIC of device {} is unknown", device.id)),
        (None, Some(Ok(_))) => return Ok(Cow::Borrowed(request)),
    };
    Err(problem(&format!("{field}.device_id"), reason, message))
}

/// The existing attachment, if it equals the request except for its limits; a different one is an error.
fn find_existing(
    state: &State,
    sandbox: &Sandbox,
    interface: &IfName,
    (place, request): (&(String, String), &InterfaceRequest),
    attach: &AttachRequest,
    field: &str,
) -> Result<Option<Attachment>, Problem> {
    let title = format!("interface {interface} of sandbox {}", sandbox.id);
    let field = format!("{field}.name");
    if let Some(existing) = state.attachments.get(&sandbox.id, interface) {
        if attach.fail_if_present {
            let message = format!("{title} is attached already");
            return Err(problem(&field, Reason::AlreadyPresent, message));
        }
        let is_unchanged =
            InterfaceRequest { limits: request.limits, ..existing.request.clone() } == *request;
        if (&existing.tenant, &existing.network) != (&place.0, &place.1) || !is_unchanged {
            let message = format!("{title} is attached already, and in another way");
            return Err(problem(&field, Reason::Conflict, message));
        }
        return Ok(Some(existing.clone()));
    }
    if state.attachments.chained(&(sandbox.id.clone(), interface.clone())).is_some() {
        let message = format!("{title} is attached already, to a network of CNI plugins");
        return Err(problem(&field, Reason::AlreadyPresent, message));
    }
    let unit_state = state.units.get(&Unit::Sandbox(sandbox.id.clone()));
    let mut others = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
    match others.find(|(_, report)| report.name == *interface && !report.kind.is_empty()) {
        Some((object, _)) if *object != Attachment::key(&sandbox.namespace, &sandbox.id, interface) => {
            Err(problem(&field, Reason::Conflict, format!("{title} belongs to {object}")))
        }
        _ => Ok(None),
    }
}

/// The change of this call has ended.
pub(super) fn change_ended(state: &mut State, call: &CallId, now: Time, effects: &mut Effects) {
    match result(state, call) {
        Ok(_) => hooks::run_after(state, call, now, effects),
        Err(error) => fail(state, call, error, effects),
    }
}

pub(super) fn fail(state: &mut State, call: &CallId, error: Problem, effects: &mut Effects) {
    if is_chained(state, call) {
        return plugin_chain::fail(state, call, error, effects);
    }
    roll_back(state, call, effects);
    state.pending_calls.stage(call, Stage::RollingBack { error, in_flight: false });
}

/// The result of the call, if all its interfaces are ready.
pub(super) fn result(state: &State, call: &CallId) -> Result<CallResult, Problem> {
    let Some(CallKind::Attach(attaching)) =
        state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind)
    else {
        return Err(problem("", Reason::Superseded, format!("call {call} is over")));
    };
    let id = SandboxId(attaching.attach.sandbox.id.clone());
    let names: Vec<IfName> = attaching.attach.interfaces.iter().map(|(name, ..)| name.clone()).collect();
    if !attaching.chained {
        return report(state, &id, &names);
    }
    let ready = |name| state.attachments.chained(&(id.clone(), name)).is_some_and(ChainedInterface::is_ready);
    match names.iter().find(|name| !ready((*name).clone())) {
        None => Ok(CallResult::ChainAttached),
        Some(name) => {
            Err(problem("", Reason::Superseded, format!("interface {name} was detached meanwhile")))
        }
    }
}

/// Whether CNI plugins create the interface of the call.
pub(super) fn is_chained(state: &State, call: &CallId) -> bool {
    let kind = state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind);
    matches!(kind, Some(CallKind::Attach (attaching)) if attaching.chained)
}

/// All of these interfaces if they are ready, or the first problem.
fn report(state: &State, id: &SandboxId, names: &[IfName]) -> Result<CallResult, Problem> {
    let unit = Unit::Sandbox(id.clone());
    let gone = || problem("sandbox", Reason::SandboxGone, format!("sandbox {id} is gone"));
    let sandbox = state.sandboxes.get(id).ok_or_else(gone)?;
    let problems = state.problems.get(&unit).map_or(&[][..], Vec::as_slice);
    let unit_state = state.units.get(&unit);
    let mut interfaces = Vec::new();
    for name in names {
        let attachment = state.attachments.get(id, name).ok_or_else(|| {
            problem("", Reason::Superseded, format!("interface {name} was detached meanwhile"))
        })?;
        if let Some((_, error)) = problems.iter().find(|(object, _)| *object == attachment.object) {
            return Err(error.clone());
        }
        let mut reports = unit_state.into_iter().flat_map(|unit_state| &unit_state.interfaces);
        let ready = reports.find(|(object, report)| *object == attachment.object && report.ready);
        match ready {
            Some((_, report)) => interfaces.push((attachment.clone(), report.clone())),
            None => {
                let message = format!("interface {name} of sandbox {id} could not be created");
                return Err(problem("", Reason::KernelError, message));
            }
        }
    }
    Ok(CallResult::Attached { sandbox: Box::new(sandbox.clone()), interfaces })
}

/// Rolls back what the call created, and nothing else.
pub(super) fn roll_back(state: &mut State, call: &CallId, effects: &mut Effects) {
    if is_chained(state, call) {
        return plugin_chain::abandon(state, call, effects);
    }
    let Some(CallKind::Attach(attaching)) =
        state.pending_calls.waiting.get(call).map(|waiting| &waiting.kind)
    else {
        return;
    };
    let id = SandboxId(attaching.attach.sandbox.id.clone());
    let (added, created_sandbox) = (attaching.added.clone(), attaching.created_sandbox);
    for before in attaching.before.clone() {
        let existing = state.attachments.get(&id, &before.interface);
        // A later call may have changed it again.
        if existing.is_some_and(|existing| existing.origin.call.as_ref() == Some(&call.0)) {
            effects.record(state, Record::Attached(Box::new(before)));
        }
    }
    for interface in added {
        if state.attachments.get(&id, &interface).is_some() {
            effects.record(state, Record::Detached { sandbox: id.clone(), interface, call: call.clone() });
        }
    }
    if created_sandbox && state.attachments.of(&id).next().is_none() {
        detach_all(state, call, &id, effects);
    }
    state.dirty.insert(Unit::Sandbox(id));
}
