//! What follows from changes of pods and sandboxes: only the sandboxes of affected pods are compared.

use std::collections::BTreeSet;

use knit_ipam::Time;
use knit_model::{Sandbox, SandboxId};

use super::{PodEvent, RuntimePod, annotated, sandbox};
use crate::pod_annotations;
use crate::state::State;
use crate::step::{Effects, sandbox_gone, sandbox_updated};
use crate::unused_objects;

/// Handles a change of pods or sandboxes.
pub(crate) fn handle(state: &mut State, event: PodEvent, now: Time, effects: &mut Effects) {
    match event {
        PodEvent::Listed(pods) => {
            let namespaces: BTreeSet<String> = pods.iter().map(|pod| pod.namespace.clone()).collect();
            state.pods.list(pods);
            namespaces.iter().for_each(|one| unused_objects::use_namespace(state, one, effects));
            reconcile_all(state, now, effects);
        }
        PodEvent::Applied(pod) => {
            let (uid, namespace) = (pod.uid.clone(), pod.namespace.clone());
            state.pods.pods.insert(uid.clone(), *pod);
            unused_objects::use_namespace(state, &namespace, effects);
            pod_annotations::on_pod_change(state, &uid, effects);
            reconcile_pod(state, &uid, now, effects);
        }
        PodEvent::Deleted(uid) => {
            state.pods.pods.remove(&uid);
            let is_announced = |id: &&SandboxId| state.pods.announced.contains_key(*id);
            let announced: Vec<SandboxId> =
                state.pods.sandboxes_of(&uid).filter(is_announced).cloned().collect();
            announced.into_iter().for_each(|id| withdraw(state, &id, now, effects));
            pod_annotations::on_pod_change(state, &uid, effects);
        }
        PodEvent::Running { sandboxes, requested_at } => {
            state.pods.set_running(sandboxes, requested_at);
            reconcile_all(state, now, effects);
        }
        PodEvent::Withdrawn(id) => withdraw(state, &id, now, effects),
    }
}

/// The runtime announced a sandbox before its containers start.
pub(crate) fn announce(
    state: &mut State,
    id: &SandboxId,
    announced: RuntimePod,
    now: Time,
    effects: &mut Effects,
) {
    let uid = announced.running.uid.clone();
    state.pods.announce(id.clone(), announced);
    pod_annotations::on_pod_change(state, &uid, effects);
    reconcile_pod(state, &uid, now, effects);
}

fn withdraw(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    let uid = state.pods.announced.get(id).map(|announced| announced.running.uid.clone());
    if state.pods.withdraw(id) {
        reconcile_sandbox(state, id, now, effects);
    }
    if let Some(uid) = uid {
        pod_annotations::on_pod_change(state, &uid, effects);
    }
}

/// Compares everything with a list, which has all pods or all sandboxes of the node.
fn reconcile_all(state: &mut State, now: Time, effects: &mut Effects) {
    pod_annotations::on_list(state, effects);
    let running = state.pods.running.iter().flat_map(|running| running.keys());
    let ids: BTreeSet<SandboxId> =
        running.chain(state.pods.announced.keys()).chain(state.sandboxes.keys()).cloned().collect();
    ids.iter().for_each(|id| reconcile_sandbox(state, id, now, effects));
}

/// Compares the sandboxes of a pod.
pub(crate) fn reconcile_pod(state: &mut State, uid: &str, now: Time, effects: &mut Effects) {
    let ids: Vec<SandboxId> = state.pods.sandboxes_of(uid).cloned().collect();
    ids.iter().for_each(|id| reconcile_sandbox(state, id, now, effects));
}

/// Updates or removes a sandbox of the state as pods and sandboxes are now.
fn reconcile_sandbox(state: &mut State, id: &SandboxId, now: Time, effects: &mut Effects) {
    let is_known = state.sandboxes.contains_key(id);
    let runs = state.pods.is_listed(id) || state.pods.announced.contains_key(id);
    if !runs {
        // Before the first list nothing is gone, and what calls attached is removed by calls.
        if is_known && state.pods.running.is_some() && state.attachments.of(id).next().is_none() {
            sandbox_gone(state, id, now, effects);
        }
        return;
    }
    // The pod is not known yet: its interfaces stay.
    let Some((running, pod)) = state.pods.sandbox(id).filter(|(_, pod)| !pod.host_network) else { return };
    if state.pod_networks.is_awaited(&pod.uid) {
        // A new sandbox is configured in one change, together with its annotated networks.
        return;
    }
    let known = state.sandboxes.get(id);
    let same_instance = known.filter(|known| known.instance == running.instance);
    let updated = match same_instance {
        // Names contain the number: keep that of the first process.
        Some(known) => Sandbox {
            uid: pod.uid.clone(),
            labels: pod.labels.clone(),
            annotated_limits: annotated(pod, known.annotated_limits),
            ..known.clone()
        },
        None => sandbox(id.clone(), running, pod),
    };
    if is_known && same_instance.is_none() {
        sandbox_gone(state, id, now, effects);
    }
    sandbox_updated(state, updated, effects);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use knit_model::intent::{BandwidthLimits, RateIntent};
    use knit_model::sandbox::SandboxInstance;

    use super::super::{Pod, RunningSandbox};
    use super::*;
    use crate::event::{Effect, Event, Record};
    use crate::pod_start::{PodStart, StartingSandbox};
    use crate::{CallId, step};

    fn pod(uid: &str, label: &str) -> Pod {
        Pod {
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            name: format!("pod-{uid}"),
            labels: BTreeMap::from([("podconfig".to_owned(), label.to_owned())]),
            ..Pod::default()
        }
    }

    fn running(uid: &str, cookie: u64, number: u32) -> RunningSandbox {
        let instance = SandboxInstance { boot: "boot".to_owned(), cookie };
        RunningSandbox { uid: uid.to_owned(), instance, netns: format!("/proc/{number}/ns/net"), number }
    }

    fn id(name: &str) -> SandboxId {
        SandboxId(name.to_owned())
    }

    fn listed(sandboxes: &[(&str, RunningSandbox)], requested_at: u64) -> PodEvent {
        let sandboxes = sandboxes.iter().map(|(name, running)| (id(name), running.clone())).collect();
        PodEvent::Running { sandboxes, requested_at: Time(requested_at) }
    }

    fn applied(pod: Pod) -> PodEvent {
        PodEvent::Applied(Box::new(pod))
    }

    /// Handles an event; returns a summary of the resulting changes of sandboxes.
    fn handle(state: &mut State, event: PodEvent) -> Vec<String> {
        changes(step(state, Event::Pods(event), Time(0)))
    }

    fn announce(state: &mut State, name: &str, announced: RuntimePod) -> Vec<String> {
        let sandbox = StartingSandbox::Announced(announced);
        let start = PodStart { call: CallId(format!("start-{name}")), id: id(name), sandbox };
        changes(step(state, Event::PodStarting(Box::new(start)), Time(0)))
    }

    fn changes(effects: Vec<Effect>) -> Vec<String> {
        let change = |effect: Effect| match effect {
            Effect::Journal(Record::SandboxUpdated(sandbox)) => {
                Some(format!("+{} {}{}", sandbox.id, sandbox.labels["podconfig"], sandbox.number))
            }
            Effect::Journal(Record::SandboxRemoved { id, .. }) => Some(format!("-{id}")),
            _ => None,
        };
        effects.into_iter().filter_map(change).collect()
    }

    fn announced(uid: &str, label: &str, cookie: u64, until: u64) -> RuntimePod {
        RuntimePod { pod: pod(uid, label), running: running(uid, cookie, 100), until: Time(until) }
    }

    #[test]
    fn a_sandbox_needs_its_pod_and_its_process_in_any_order() {
        let mut state = State::default();
        assert_eq!(handle(&mut state, listed(&[("s1", running("u1", 1, 100))], 0)), [""; 0]);
        assert_eq!(handle(&mut state, applied(pod("u1", "a"))), ["+s1 a100"]);
        assert_eq!(handle(&mut state, applied(pod("u1", "a"))), [""; 0]);
        assert_eq!(handle(&mut state, applied(pod("u1", "b"))), ["+s1 b100"]);
    }

    #[test]
    fn a_limit_that_is_removed_from_the_annotations_is_lifted() {
        let mut state = State::default();
        let limits = BandwidthLimits {
            egress: Some(RateIntent { bits: 8_000_000, burst: None }),
            ..BandwidthLimits::default()
        };
        let mut annotated = |limits: BandwidthLimits| {
            handle(&mut state, applied(Pod { limits, ..pod("u1", "a") }));
            handle(&mut state, listed(&[("s1", running("u1", 1, 100))], 0));
            state.sandboxes[&id("s1")].annotated_limits
        };
        assert_eq!(annotated(BandwidthLimits::default()), None, "the limits of the call apply");
        assert_eq!(annotated(limits), Some(limits));
        assert_eq!(annotated(BandwidthLimits::default()), Some(BandwidthLimits::default()));
    }

    #[test]
    fn only_a_list_of_the_runtime_removes_a_sandbox() {
        let mut state = State::default();
        handle(&mut state, applied(pod("u1", "a")));
        handle(&mut state, listed(&[("s1", running("u1", 1, 100))], 0));
        let mut restarted = state.persistent();
        assert_eq!(handle(&mut restarted, PodEvent::Listed(Vec::new())), [""; 0]);
        assert_eq!(handle(&mut state, PodEvent::Listed(Vec::new())), [""; 0], "its pod was deleted first");
        assert_eq!(handle(&mut state, listed(&[], 0)), ["-s1"]);
        assert_eq!(handle(&mut restarted, listed(&[], 0)), ["-s1"]);
    }

    #[test]
    fn a_recreated_sandbox_is_another_instance_and_a_new_process_is_not() {
        let mut state = State::default();
        handle(&mut state, applied(pod("u1", "a")));
        handle(&mut state, listed(&[("s1", running("u1", 1, 100))], 0));
        let new_process = listed(&[("s1", running("u1", 1, 101))], 0);
        assert_eq!(handle(&mut state, new_process), [""; 0], "names keep the number of the first process");
        assert_eq!(handle(&mut state, listed(&[("s2", running("u1", 2, 102))], 0)), ["-s1", "+s2 a102"]);
        assert_eq!(handle(&mut state, listed(&[("s2", running("u1", 3, 103))], 0)), ["-s2", "+s2 a103"]);
    }

    #[test]
    fn an_announced_sandbox_is_added_at_once_and_removed_by_a_later_list() {
        let mut state = State::default();
        assert_eq!(announce(&mut state, "s1", announced("u1", "a", 1, 100)), ["+s1 a100"]);
        // Lists that were requested before the announcement.
        assert_eq!(handle(&mut state, PodEvent::Listed(Vec::new())), [""; 0]);
        assert_eq!(handle(&mut state, listed(&[], 99)), [""; 0]);
        assert_eq!(handle(&mut state, listed(&[], 100)), ["-s1"], "it was never started");
    }

    #[test]
    fn the_api_servers_view_of_a_pod_takes_precedence_over_the_runtimes() {
        let mut state = State::default();
        announce(&mut state, "s1", announced("u1", "a", 1, 100));
        assert_eq!(handle(&mut state, applied(pod("u1", "b"))), ["+s1 b100"]);
        handle(&mut state, listed(&[("s1", running("u1", 1, 100))], 50));
        // A repeated or late announcement of a sandbox that is listed already.
        assert_eq!(announce(&mut state, "s1", announced("u1", "a", 1, 200)), [""; 0]);
        assert_eq!(handle(&mut state, listed(&[], 60)), ["-s1"], "lists count from the first one with it");
        announce(&mut state, "s2", announced("u2", "a", 2, 100));
        assert_eq!(handle(&mut state, PodEvent::Deleted("u2".to_owned())), ["-s2"]);
    }

    #[test]
    fn a_sandbox_that_failed_to_start_is_removed_and_host_network_pods_have_none() {
        let mut state = State::default();
        handle(&mut state, listed(&[], 0));
        assert_eq!(announce(&mut state, "s1", announced("u1", "a", 1, 100)), ["+s1 a100"]);
        assert_eq!(handle(&mut state, PodEvent::Withdrawn(id("s1"))), ["-s1"]);
        handle(&mut state, applied(Pod { host_network: true, ..pod("u2", "a") }));
        assert_eq!(announce(&mut state, "s2", announced("u2", "a", 1, 100)), [""; 0]);
    }

    #[test]
    fn a_changed_pod_does_not_compare_the_sandboxes_of_others() {
        let mut state = State::default();
        let sandboxes = [("s1", running("u1", 1, 100)), ("s2", running("u2", 2, 200))];
        handle(&mut state, PodEvent::Listed(vec![pod("u1", "a"), pod("u2", "a")]));
        handle(&mut state, listed(&sandboxes, 0));
        let mut by_hand = state.sandboxes[&id("s2")].clone();
        by_hand.labels.insert("podconfig".to_owned(), "x".to_owned());
        state.record(&Record::SandboxUpdated(by_hand));
        assert_eq!(handle(&mut state, applied(pod("u1", "b"))), ["+s1 b100"]);
        assert_eq!(handle(&mut state, listed(&sandboxes, 0)), ["+s2 a200"], "a list compares all");
    }
}
