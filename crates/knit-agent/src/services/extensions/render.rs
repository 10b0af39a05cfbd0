//! Renders requests to extensions and the status of extensions.

use std::time::Duration;

use knit_engine::State;
use knit_engine::extension::{
    ExtensionProtocol, ExtensionSpec, FailPolicy, HookPhase, Invocation, InvocationOutcome, Receipt,
    RegisteredExtension,
};
use knit_kni::{kni, v1};
use knit_model::SandboxId;
use knit_model::report::InterfaceReport;

use super::super::pods;
use super::missed;
use crate::daemon::{ExtensionRequest, OutgoingCall};

/// Renders a call to an extension.
pub(crate) fn outgoing_call(state: &State, invocation: Invocation) -> OutgoingCall {
    let (id, deadline) = (invocation.id.clone(), Duration::from_millis(invocation.to.deadline));
    let request = match (invocation.to.protocol, invocation.phase) {
        (ExtensionProtocol::Knix, _) => ExtensionRequest::Knix(Box::new(knix(state, &invocation))),
        (ExtensionProtocol::Knit, HookPhase::BeforeAttach) => {
            ExtensionRequest::Before(Box::new(v1::BeforeAttachRequest {
                call: Some(call(state, &invocation)),
            }))
        }
        (ExtensionProtocol::Knit, HookPhase::AfterAttach) => {
            ExtensionRequest::After(Box::new(v1::AfterAttachRequest { call: Some(call(state, &invocation)) }))
        }
        (ExtensionProtocol::Knit, HookPhase::AfterDetach) => {
            ExtensionRequest::Detached(Box::new(v1::AfterDetachRequest {
                call: Some(call(state, &invocation)),
            }))
        }
    };
    let ExtensionSpec { name, socket, .. } = invocation.to;
    OutgoingCall {
        id,
        extension: name,
        phase: phase_name(invocation.phase),
        socket: socket.into(),
        deadline,
        request,
    }
}

fn phase_name(phase: HookPhase) -> &'static str {
    match phase {
        HookPhase::BeforeAttach => "before-attach",
        HookPhase::AfterAttach => "after-attach",
        HookPhase::AfterDetach => "after-detach",
    }
}

fn call(state: &State, invocation: &Invocation) -> v1::ExtensionCall {
    v1::ExtensionCall {
        call_id: invocation.id.clone(),
        attach_id: invocation.attach.0.clone(),
        extension: invocation.to.name.clone(),
        generation: invocation.generation,
        pod: Some(pod(state, invocation)),
        interfaces: invocation.interfaces.iter().map(|removed| removed.name.to_string()).collect(),
        earlier: invocation.earlier.iter().map(receipt).collect(),
    }
}

/// The pod as it is, or as it was if it is gone.
fn pod(state: &State, invocation: &Invocation) -> v1::Pod {
    let sandbox = &invocation.sandbox;
    let known = pods::pod(state, &sandbox.id).filter(|pod| pod.netns_cookie == sandbox.instance.cookie);
    match invocation.phase {
        HookPhase::AfterDetach => {
            let interfaces = invocation.interfaces.iter().map(interface).collect();
            v1::Pod { interfaces, ..pods::gone(sandbox) }
        }
        _ => known.unwrap_or_else(|| pods::gone(sandbox)),
    }
}

fn interface(removed: &InterfaceReport) -> v1::Interface {
    let addresses = removed.addresses.iter().map(|address| v1::Address {
        address: address.addr().to_string(),
        prefix_length: u32::from(address.prefix_len()),
        family: pods::family(address.addr().is_ipv6()).into(),
        gateway: String::new(),
    });
    v1::Interface { name: removed.name.to_string(), addresses: addresses.collect(), ..Default::default() }
}

/// Renders a call to a KNIX plugin.
fn knix(state: &State, invocation: &Invocation) -> kni::PostAttachInterfaceRequest {
    let sandbox = &invocation.sandbox;
    let pod = pod(state, invocation);
    let mut extradata: std::collections::BTreeMap<String, String> =
        [("id".to_owned(), sandbox.id.0.clone()), ("call-id".to_owned(), invocation.id.clone())].into();
    for receipt in &invocation.earlier {
        let data = receipt.data().into_iter().flatten();
        extradata.extend(data.map(|(key, value)| (format!("{}/{key}", receipt.extension), value.clone())));
    }
    let uid = if sandbox.uid.is_empty() { sandbox.id.0.clone() } else { sandbox.uid.clone() };
    kni::PostAttachInterfaceRequest {
        name: sandbox.pod.clone(),
        uid,
        namespace: sandbox.namespace.clone(),
        labels: sandbox.labels.clone(),
        annotations: pod.annotations,
        extradata,
        prev_ipconfigs: super::super::kni::configs(state, &sandbox.id, None).into_iter().collect(),
        netns_path: sandbox.netns.clone(),
    }
}

/// The receipts of extensions that answered for a pod.
pub(in crate::services) fn receipts(state: &State, id: &SandboxId) -> Vec<v1::ExtensionReceipt> {
    let answered = state.extensions.receipts(id).filter(|one| {
        matches!(one.outcome, Some(InvocationOutcome::Done(_) | InvocationOutcome::Ignored(_)))
    });
    answered.map(receipt).collect()
}

fn receipt(receipt: &Receipt) -> v1::ExtensionReceipt {
    let interfaces: Vec<String> = receipt.interfaces.iter().map(|(name, _)| name.to_string()).collect();
    let ignored = match &receipt.outcome {
        Some(InvocationOutcome::Ignored(not) | InvocationOutcome::Failed(not)) => not.message.clone(),
        _ => String::new(),
    };
    v1::ExtensionReceipt {
        extension: receipt.extension.clone(),
        generation: receipt.generation,
        phase: phase_name(receipt.phase).to_owned(),
        interface: if interfaces.len() == 1 { interfaces[0].clone() } else { String::new() },
        time: Some(pods::timestamp(receipt.at)),
        data: receipt.data().cloned().unwrap_or_default(),
        interfaces,
        ignored,
        call_id: receipt.id.clone(),
    }
}

/// All registered extensions in order, then those that are only required.
pub(in crate::services) fn statuses(state: &State) -> Vec<v1::ExtensionStatus> {
    let registered = state.extensions.in_order().into_iter().map(|one| one.spec.name.as_str());
    let missing = state.missing_extensions().into_iter().map(|(name, _)| name);
    registered.chain(missing).filter_map(|name| status(state, name)).collect()
}

/// One extension, if it is registered or required.
pub(in crate::services) fn status(state: &State, name: &str) -> Option<v1::ExtensionStatus> {
    let registered = state.extensions.get(name);
    let required = state.required_extensions().get(name).map(|object| object.to_string());
    if registered.is_none() && required.is_none() {
        return None;
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let has = |id: &&SandboxId| {
        state.extensions.receipts(id).any(|receipt| receipt.extension == name && receipt.is_done())
    };
    let owed = state.extensions.pending_notifications().filter(|owed| owed.extension == name).count();
    let knix = registered.is_some_and(|one| one.spec.protocol == ExtensionProtocol::Knix);
    let only_name = || v1::ExtensionSpec { name: name.to_owned(), ..Default::default() };
    Some(v1::ExtensionStatus {
        spec: Some(registered.map_or_else(only_name, spec)),
        registered: registered.is_some(),
        generation: registered.map(|one| one.generation).unwrap_or_default(),
        since: registered.map(|one| pods::timestamp(one.since)),
        required_by: required.unwrap_or_default(),
        service: match (registered, knix) {
            (None, _) => String::new(),
            (Some(_), true) => "kni.KNIX".to_owned(),
            (Some(_), false) => "knit.v1.Extension".to_owned(),
        },
        pods: count(state.sandboxes.keys().filter(has).count()),
        missed: count(missed(state, name).len()),
        owed: count(owed),
    })
}

fn spec(one: &RegisteredExtension) -> v1::ExtensionSpec {
    let spec = &one.spec;
    let phase = |phase: &HookPhase| match phase {
        HookPhase::BeforeAttach => v1::ExtensionPhase::BeforeAttach.into(),
        HookPhase::AfterAttach => v1::ExtensionPhase::AfterAttach.into(),
        HookPhase::AfterDetach => v1::ExtensionPhase::AfterDetach.into(),
    };
    v1::ExtensionSpec {
        name: spec.name.clone(),
        order: spec.order,
        socket: spec.socket.clone(),
        phases: spec.phases.iter().map(phase).collect(),
        namespaces: spec.namespaces.iter().cloned().collect(),
        labels: spec.labels.clone(),
        fail_policy: match spec.fail {
            FailPolicy::Fail => v1::FailPolicy::Fail.into(),
            FailPolicy::Ignore => v1::FailPolicy::Ignore.into(),
        },
        deadline_millis: u32::try_from(spec.deadline).unwrap_or(u32::MAX),
    }
}
