//! Watches: the current state, then every change, with resumption from a position.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_engine::State;
use knit_kni::{Reason, RpcError, v1};
use knit_model::{Sandbox, SandboxId};
use knit_store::Seq;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::agent::Answers;
use super::{Services, nodes, pods};
use crate::daemon::{PodChange, sandbox_of};
use crate::node::{Node, now};

/// Buffered events of a stream; a reader that lags further behind is disconnected.
const STREAM_BUFFER: usize = 64;

/// The filter of a watch.
#[derive(Clone)]
struct Filter {
    namespace: String,
    subjects: Vec<i32>,
    epoch: String,
}

impl Filter {
    fn matches(&self, subject: v1::Subject) -> bool {
        self.subjects.is_empty() || self.subjects.contains(&subject.into())
    }

    fn matches_pod(&self, pod: &v1::Pod) -> bool {
        self.matches(v1::Subject::Pod) && (self.namespace.is_empty() || pod.namespace == self.namespace)
    }

    fn matches_network(&self, network: &v1::Network) -> bool {
        let mine = self.namespace.is_empty() || network.namespace.is_empty();
        self.matches(v1::Subject::Network) && (mine || network.namespace == self.namespace)
    }

    fn event(&self, seq: Seq, change: v1::Change) -> v1::WatchEvent {
        v1::WatchEvent {
            position: Some(v1::Position { epoch: self.epoch.clone(), sequence: seq.0 }),
            time: Some(pods::timestamp(now())),
            change: change.into(),
            ..v1::WatchEvent::default()
        }
    }
}

/// The networks and the readiness sent last: both are derived from the whole state, so they are compared.
#[derive(Default)]
struct LastSent {
    networks: BTreeMap<(String, String), v1::Network>,
    readiness: Option<v1::NodeReadiness>,
}

impl Services {
    pub(super) async fn start_watch(
        &self,
        request: v1::WatchRequest,
    ) -> Result<Answers<v1::WatchEvent>, Status> {
        let permit = self.streams.open()?;
        let v1::WatchRequest { after, namespace, subjects } = request;
        let filter = Filter { namespace, subjects, epoch: self.handle.epoch().to_owned() };
        if let Some(after) = after.as_ref().filter(|after| after.epoch != filter.epoch) {
            let message = format!("history {} is gone, start again without a position", after.epoch);
            return Err(RpcError::new(Reason::PositionGone, message).field("after").into());
        }
        // Subscribed before the state is read, so that no change is missed.
        let changes = self.handle.changes();
        let mut last_sent = LastSent::default();
        let (first, last_sent, last) = {
            let filter = filter.clone();
            let seen = self.handle.query(move |node| {
                let first = match after {
                    None => Ok(everything(node, &filter, &mut last_sent)),
                    Some(after) => since(node, &filter, Seq(after.sequence), &mut last_sent),
                };
                first.map(|first| (first, last_sent, node.last_seq()))
            });
            seen.await.map_err(|problem| {
                Status::from(super::rejection(&problem, &knit_engine::CallId(String::new()), ""))
            })??
        };
        let (to, stream) = mpsc::channel(STREAM_BUFFER);
        let services = self.clone();
        tokio::spawn(async move {
            services.follow(filter, first, last_sent, last, changes, to).await;
            drop(permit);
        });
        Ok(Box::pin(ReceiverStream::new(stream)))
    }

    /// Sends the current state, then changes, until the reader is gone or too slow.
    async fn follow(
        self,
        filter: Filter,
        first: Vec<v1::WatchEvent>,
        mut last_sent: LastSent,
        last: Seq,
        mut changes: broadcast::Receiver<Arc<PodChange>>,
        to: mpsc::Sender<Result<v1::WatchEvent, Status>>,
    ) {
        for event in first {
            if to.send(Ok(event)).await.is_err() {
                return;
            }
        }
        loop {
            let change = tokio::select! {
                change = changes.recv() => change,
                () = to.closed() => return,
            };
            let change = match change {
                Ok(change) if change.seq <= last => continue,
                Ok(change) => change,
                Err(broadcast::error::RecvError::Closed) => return,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    let message = "the reader is too slow, resume from the last position";
                    let _ = to.send(Err(RpcError::new(Reason::SlowReader, message).into())).await;
                    return;
                }
            };
            let (of_change, before) = (filter.clone(), std::mem::take(&mut last_sent));
            let rendered = self.handle.query(move |node| {
                let mut last_sent = before;
                let events = render(node.state(), &of_change, &change, &mut last_sent);
                (events, last_sent)
            });
            let Ok((events, new_last_sent)) = rendered.await else { return };
            last_sent = new_last_sent;
            for event in events {
                if to.send(Ok(event)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The current state, each item as added, then the sync marker.
fn everything(node: &Node, filter: &Filter, last_sent: &mut LastSent) -> Vec<v1::WatchEvent> {
    let (state, last) = (node.state(), node.last_seq());
    let mut events = Vec::new();
    compare(state, last, filter, last_sent, &mut events);
    for id in state.sandboxes.keys() {
        let Some(pod) = pods::pod(state, id).filter(|pod| filter.matches_pod(pod)) else { continue };
        events.push(of_pod(filter.event(last, v1::Change::Added), pod));
    }
    events.push(filter.event(last, v1::Change::Synced));
    resume_before(&mut events, None);
    events
}

/// Only the last event carries the new position, all others the previous one: a reader that stops in between resumes without a gap.
fn resume_before(events: &mut [v1::WatchEvent], before: Option<v1::Position>) {
    if let Some((_, earlier)) = events.split_last_mut() {
        earlier.iter_mut().for_each(|event| event.position.clone_from(&before));
    }
}

/// The changes after a position: each pod once, in its current state; all networks and the readiness in their current state, because
/// the journal does not tell which of them changed.
fn since(
    node: &Node,
    filter: &Filter,
    after: Seq,
    last_sent: &mut LastSent,
) -> Result<Vec<v1::WatchEvent>, RpcError> {
    let gone = |message: String| RpcError::new(Reason::PositionGone, message).field("after");
    if after > node.last_seq() {
        return Err(gone(format!("position {after} is in the future, start again without a position")));
    }
    let history = node.history(Seq(after.0 + 1)).map_err(|why| gone(why.to_string()))?;
    let mut names: BTreeMap<SandboxId, Option<Sandbox>> = BTreeMap::new();
    let mut networks_gone = BTreeSet::new();
    let mut next = None;
    for record in history {
        let (seq, record) = record.map_err(|why| gone(format!("the journal is damaged: {why}")))?;
        next.get_or_insert(seq);
        if let knit_engine::Record::ObjectDeleted(key) = &record
            && key.kind == "VirtualNetwork"
        {
            networks_gone.insert((key.namespace.clone(), key.name.clone()));
        }
        if let Some((id, _)) = sandbox_of(&record) {
            let known = names.entry(id).or_default();
            if let knit_engine::Record::SandboxUpdated(sandbox) = record {
                *known = Some(sandbox);
            }
        }
    }
    if after < node.last_seq() && next.is_none_or(|next| next.0 > after.0 + 1) {
        return Err(gone(format!(
            "the journal does not reach back to {after}, start again without a position"
        )));
    }
    let (state, last) = (node.state(), node.last_seq());
    let mut events = Vec::new();
    compare(state, last, filter, last_sent, &mut events);
    for (namespace, name) in networks_gone.into_iter().filter(|key| !last_sent.networks.contains_key(key)) {
        let network = v1::Network { name, namespace, ..v1::Network::default() };
        if filter.matches_network(&network) {
            events.push(of_network(filter.event(last, v1::Change::Deleted), network));
        }
    }
    for (id, seen) in names {
        let event = match (pods::pod(state, &id), seen) {
            (Some(pod), _) => of_pod(filter.event(last, v1::Change::Modified), pod),
            (None, Some(sandbox)) => of_pod(filter.event(last, v1::Change::Deleted), pods::gone(&sandbox)),
            (None, None) => {
                let pod = v1::Pod { id: id.0, ..v1::Pod::default() };
                of_pod(filter.event(last, v1::Change::Deleted), pod)
            }
        };
        let is_match = matches!(&event.object, Some(v1::watch_event::Object::Pod(pod)) if filter.matches_pod(pod) || pod.namespace.is_empty());
        events.extend(is_match.then_some(event));
    }
    events.push(filter.event(last, v1::Change::Bookmark));
    resume_before(&mut events, filter.event(after, v1::Change::Bookmark).position);
    Ok(events)
}

/// The events of one change, with the resulting changes of networks and readiness.
fn render(
    state: &State,
    filter: &Filter,
    change: &PodChange,
    last_sent: &mut LastSent,
) -> Vec<v1::WatchEvent> {
    let mut events = Vec::new();
    let pod = match (pods::pod(state, &change.sandbox), &change.gone) {
        (Some(pod), _) => Some((v1::Change::Modified, pod)),
        (None, Some(was)) => Some((v1::Change::Deleted, pods::gone(was))),
        // Gone meanwhile: another change reports it.
        (None, None) => None,
    };
    if let Some((what, pod)) = pod.filter(|(_, pod)| filter.matches_pod(pod)) {
        let mut event = of_pod(filter.event(change.seq, what), pod);
        event.call_id = change.call.clone().unwrap_or_default();
        event.time = Some(pods::timestamp(change.at));
        events.push(event);
    }
    compare(state, change.seq, filter, last_sent, &mut events);
    let before = Seq(change.seq.0.saturating_sub(1));
    resume_before(&mut events, filter.event(before, v1::Change::Bookmark).position);
    events
}

/// The networks and the readiness that differ from what was sent.
fn compare(
    state: &State,
    seq: Seq,
    filter: &Filter,
    last_sent: &mut LastSent,
    events: &mut Vec<v1::WatchEvent>,
) {
    let mut before = std::mem::take(&mut last_sent.networks);
    for network in nodes::all_networks(state).into_iter().filter(|network| filter.matches_network(network)) {
        let key = (network.namespace.clone(), network.name.clone());
        let change = match before.remove(&key) {
            None => Some(v1::Change::Added),
            Some(same) if same == network => None,
            Some(_) => Some(v1::Change::Modified),
        };
        events.extend(change.map(|change| of_network(filter.event(seq, change), network.clone())));
        last_sent.networks.insert(key, network);
    }
    events.extend(
        before.into_values().map(|network| of_network(filter.event(seq, v1::Change::Deleted), network)),
    );
    let readiness = nodes::readiness(state);
    if last_sent.readiness.as_ref() != Some(&readiness) {
        if filter.matches(v1::Subject::Readiness) {
            let mut event = filter.event(seq, v1::Change::Modified);
            event.object = Some(v1::watch_event::Object::Readiness(readiness.clone()));
            events.push(event);
        }
        last_sent.readiness = Some(readiness);
    }
}

fn of_pod(mut event: v1::WatchEvent, pod: v1::Pod) -> v1::WatchEvent {
    event.object = Some(v1::watch_event::Object::Pod(pod));
    event
}

fn of_network(mut event: v1::WatchEvent, network: v1::Network) -> v1::WatchEvent {
    event.object = Some(v1::watch_event::Object::Network(network));
    event
}
