//! Claims of cluster-wide quotas: the use of each node is within its claim, and the sum of all claims within the quota.

use std::collections::BTreeSet;

use knit_engine::quota::{ClaimRequest, QuotaEvent};
use knit_engine::recording::{Replay, Replayed};
use knit_engine::{Effect, Event, StoredObject, step};
use knit_ipam::Time;
use knit_model::quota::{QuotaIntent, ResourceCounts};
use knit_model::{NetState, SandboxId};
use proptest::prelude::*;

use crate::support::cases;
use crate::support::node::{Node, key, sandbox};
use crate::support::quota_cluster::{QuotaCluster, network, shared_quota};

fn limit(interfaces: u64) -> QuotaIntent {
    QuotaIntent { interfaces: Some(interfaces), addresses: Some(100), bridges: Some(10) }
}

fn counts(interfaces: u64, addresses: u64, bridges: u64) -> ResourceCounts {
    ResourceCounts { interfaces, addresses, bridges }
}

fn requests(cluster: &QuotaCluster, node: usize) -> Vec<(u64, ResourceCounts)> {
    let requests = cluster.nodes[node].claim_requests.iter();
    requests.map(|ClaimRequest { version, claim, .. }| (*version, *claim)).collect()
}

fn waiting(cluster: &QuotaCluster, node: usize) -> usize {
    cluster.nodes[node].state.sandboxes_awaiting_quota().len()
}

/// A cluster with one node and these pods, which have what they request.
fn settled(pods: &[u32]) -> QuotaCluster {
    let mut cluster = QuotaCluster::new(1, limit(100));
    pods.iter().for_each(|pod| cluster.add_pod(0, *pod));
    cluster.settle();
    assert_eq!(cluster.used(0).interfaces, pods.len() as u64);
    cluster
}

#[test]
fn larger_claim_is_used_after_it_is_acknowledged() {
    let mut cluster = settled(&[1]);
    cluster.add_pod(0, 2);
    assert_eq!(cluster.used(0), counts(1, 1, 1));
    assert_eq!(cluster.granted(0), counts(1, 1, 1));
    assert_eq!(requests(&cluster, 0).len(), 1);
    assert_eq!(requests(&cluster, 0)[0].1, counts(2, 2, 1));
    // The write succeeds, but its response is lost: the host repeats the request.
    let (version, _) = requests(&cluster, 0)[0];
    let quota = key(&shared_quota(limit(100)));
    assert!(cluster.nodes[0].state.is_claiming_quota(&quota, version));
    cluster.process_request(0, 0, false);
    assert_eq!(cluster.api.claims[&0], counts(2, 2, 1));
    assert_eq!(cluster.used(0), counts(1, 1, 1));
    cluster.deliver_watch_event(0);
    assert_eq!(cluster.used(0), counts(2, 2, 1));
    assert!(!cluster.nodes[0].state.is_claiming_quota(&quota, version));
    assert_eq!(cluster.nodes[0].problems("one"), [""; 0]);
}

#[test]
fn smaller_claim_takes_effect_before_it_is_written() {
    let mut cluster = settled(&[1, 2]);
    cluster.remove_pod(0, 1);
    assert_eq!(cluster.api.claims[&0], counts(2, 2, 1));
    assert_eq!(cluster.granted(0), counts(1, 1, 1));
    // The request may be processed at any time, so the rest of the old claim cannot be used.
    cluster.add_pod(0, 3);
    assert_eq!(cluster.used(0), counts(1, 1, 1));
    assert_eq!(requests(&cluster, 0).len(), 1, "one request for each version");
    cluster.settle();
    assert_eq!(cluster.used(0), counts(2, 2, 1));
    assert_eq!(cluster.api.claims[&0], counts(2, 2, 1));
}

#[test]
fn conflict_is_retried_with_the_newer_version() {
    let mut cluster = QuotaCluster::new(2, limit(3));
    cluster.add_pod(0, 1);
    cluster.add_pod(1, 2);
    let version = requests(&cluster, 1)[0].0;
    cluster.process_request(0, 0, true);
    cluster.process_request(1, 0, true);
    assert_eq!(cluster.api.claims.get(&1), None);
    assert_eq!(requests(&cluster, 1), [], "the watch delivers the other node's claim");
    assert_eq!(waiting(&cluster, 1), 1);
    cluster.deliver_watch_event(1);
    assert_eq!(requests(&cluster, 1)[0].0, version + 1);
    cluster.settle();
    assert_eq!([cluster.used(0), cluster.used(1)], [counts(1, 1, 1); 2]);
}

#[test]
fn old_watch_result_after_a_write_is_ignored() {
    let mut cluster = QuotaCluster::new(1, limit(3));
    cluster.restart_watch(0);
    cluster.add_pod(0, 1);
    cluster.process_request(0, 0, true);
    let granted = cluster.granted(0);
    assert_eq!(granted, cluster.api.claims[&0]);
    // This list is from before the write.
    cluster.deliver_watch_event(0);
    assert_eq!(cluster.granted(0), granted);
    cluster.settle();
    assert_eq!(cluster.used(0), counts(1, 1, 1));
}

#[test]
fn lowered_quota_keeps_what_is_in_use_and_grants_no_more() {
    let mut cluster = settled(&[1, 2]);
    cluster.set_limits(limit(1));
    cluster.add_pod(0, 3);
    cluster.settle();
    cluster.nodes[0].handle(Event::Resync);
    cluster.settle();
    assert_eq!(cluster.used(0), counts(2, 2, 1));
    assert_eq!(cluster.nodes[0].problems("one").len(), 1);
    cluster.set_limits(limit(3));
    cluster.settle();
    assert_eq!(cluster.used(0), counts(3, 3, 1));
}

#[test]
fn only_quotas_of_known_objects_are_claimed() {
    let cluster = QuotaCluster::new(1, limit(9));
    let mut node = Node::with_kernel(NetState::default());
    node.handle(Event::SandboxUpdated(sandbox("a", 7, "shop", "x")));
    node.handle(Event::ObjectApplied(network()));
    let claims = cluster.api.read(0);
    node.handle(Event::Quotas(QuotaEvent::Listed(vec![claims.clone()])));
    assert_eq!(node.claim_requests, []);
    // An object with the same name and another uid is another quota.
    let other = |uid: &str| {
        let mut quota: StoredObject = shared_quota(limit(9));
        quota.object.uid = uid.to_owned();
        Event::ObjectApplied(quota)
    };
    node.handle(other("another"));
    assert_eq!(node.claim_requests, []);
    node.handle(other(&claims.uid));
    let claimed: Vec<_> = node.claim_requests.iter().map(|request| request.claim).collect();
    assert_eq!(claimed, [counts(1, 1, 1)], "what is in use when the quota is created");
    // A claim that is written after the deletion is no claim.
    let quota = claims.key.clone();
    node.handle(Event::Quotas(QuotaEvent::Deleted(quota.clone())));
    node.handle(Event::Quotas(QuotaEvent::ClaimWritten(claims)));
    assert_eq!(node.state.granted_quota(&quota), None);
}

#[test]
fn denied_request_is_reported_once_the_claim_has_a_result() {
    let mut cluster = QuotaCluster::new(2, limit(1));
    cluster.add_pod(0, 1);
    cluster.settle();
    cluster.add_pod(1, 2);
    assert_eq!(waiting(&cluster, 1), 1, "the bridge can be claimed");
    assert_eq!(cluster.nodes[1].state.namespaces_awaiting_quota(), BTreeSet::from(["shop"]));
    cluster.settle();
    assert_eq!(waiting(&cluster, 1), 0);
    let problems = cluster.nodes[1].problems("one");
    assert!(
        problems.len() == 1 && problems[0].contains("may have 1 interfaces on all nodes"),
        "{problems:?}"
    );
    // The result has no journal record, but those who report problems are notified.
    cluster.remove_pod(0, 1);
    cluster.process_request(0, 0, true);
    cluster.deliver_watch_event(1);
    assert_eq!(waiting(&cluster, 1), 1, "the released interface is claimed");
    cluster.add_pod(0, 3);
    while cluster.api.claims[&0].interfaces == 0 {
        cluster.process_request(0, 0, true);
    }
    let newest = Event::Quotas(QuotaEvent::Applied(cluster.api.read(1)));
    let effects = step(&mut cluster.nodes[1].state, newest, Time(1));
    assert_eq!(waiting(&cluster, 1), 0);
    assert_eq!(effects, [Effect::ObjectsChanged(BTreeSet::from([key(&network())]))]);
}

#[test]
fn nothing_is_claimed_again_for_changes_in_other_namespaces() {
    let mut cluster = settled(&[1]);
    cluster.nodes[0].handle(Event::SandboxUpdated(sandbox("far", 9, "other", "x")));
    cluster.nodes[0].handle(Event::SandboxRemoved(SandboxId("far".to_owned())));
    cluster.nodes[0].handle(Event::Resync);
    assert_eq!(requests(&cluster, 0), []);
}

#[test]
fn restarted_node_creates_nothing_before_it_has_listed_its_claims() {
    let mut cluster = settled(&[1]);
    cluster.restart(0, false);
    cluster.add_pod(0, 2);
    assert_eq!(cluster.used(0), counts(1, 1, 1));
    assert_eq!(waiting(&cluster, 0), 1);
    cluster.settle();
    assert_eq!(cluster.used(0), counts(2, 2, 1));
}

#[derive(Clone, Debug)]
enum Operation {
    Add(usize, u32),
    Remove(usize, u32),
    DeliverWatchEvent(usize),
    ProcessRequest(usize, usize, bool),
    RestartWatch(usize),
    Restart(usize, bool),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let node = 0..2usize;
    let pod = 1..5u32;
    let operation = prop_oneof![
        6 => (node.clone(), pod.clone()).prop_map(|(node, pod)| Operation::Add(node, pod)),
        4 => (node.clone(), pod).prop_map(|(node, pod)| Operation::Remove(node, pod)),
        8 => node.clone().prop_map(Operation::DeliverWatchEvent),
        8 => (node.clone(), 0..3usize, prop::bool::weighted(0.7))
            .prop_map(|(node, index, answers)| Operation::ProcessRequest(node, index, answers)),
        1 => node.clone().prop_map(Operation::RestartWatch),
        1 => (node, any::<bool>()).prop_map(|(node, sent)| Operation::Restart(node, sent)),
    ];
    prop::collection::vec(operation, 1..60)
}

proptest! {
    #![proptest_config(cases(80))]

    #[test]
    fn no_interleaving_of_two_nodes_exceeds_a_quota(operations in operations(), interfaces in 0..6u64) {
        let hard = limit(interfaces).counts();
        let mut cluster = QuotaCluster::new(2, limit(interfaces));
        for operation in operations {
            match operation.clone() {
                Operation::Add(node, pod) => cluster.add_pod(node, pod),
                Operation::Remove(node, pod) => cluster.remove_pod(node, pod),
                Operation::DeliverWatchEvent(node) => cluster.deliver_watch_event(node),
                Operation::ProcessRequest(node, index, answers) => cluster.process_request(node, index, answers),
                Operation::RestartWatch(node) => cluster.restart_watch(node),
                Operation::Restart(node, sent) => cluster.restart(node, sent),
            }
            prop_assert!(!cluster.api.claimed().exceeds(hard), "after {:?}", operation);
            for node in 0..2 {
                let claim = cluster.api.claims.get(&node).copied().unwrap_or_default();
                prop_assert!(!cluster.used(node).exceeds(claim), "node {node} after {:?}", operation);
                prop_assert!(!cluster.granted(node).exceeds(claim), "node {node} after {:?}", operation);
            }
        }
        // At the end the quota is used as far as pods request it, and claims cover exactly the use and denied requests.
        cluster.settle();
        let pods: usize = cluster.nodes.iter().map(|node| node.state.sandboxes.len()).sum();
        let used = cluster.used(0) + cluster.used(1);
        prop_assert_eq!(used.interfaces, interfaces.min(pods as u64));
        prop_assert_eq!(used.interfaces, cluster.api.claimed().interfaces);
        for node in &mut cluster.nodes {
            prop_assert_eq!(node.state.sandboxes_awaiting_quota(), BTreeSet::new());
            prop_assert_eq!(node.replayed().persistent(), node.state.persistent());
            let mut replay = Replay::default();
            for line in node.recording.take().into_iter().flatten() {
                let replayed = replay.next(serde_json::from_str(&line).unwrap());
                prop_assert!(matches!(replayed, Replayed::Same(_) | Replayed::Nothing), "{line}\n{replayed:?}");
            }
        }
    }
}
