//! Watching: everything there is, then every change, and going on where one left off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use knit_engine::State;
use knit_kni::{Reason, Refusal, v1};
use knit_model::{Sandbox, SandboxId};
use knit_store::Seq;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::agent::Answers;
use super::{Services, nodes, pods};
use crate::daemon::{Change, about};
use crate::node::{Node, now};

/// So many events wait for a reader before its stream waits, and so many changes before it is ended.
const QUEUE: usize = 64;

/// What a watcher wants to see.
#[derive(Clone)]
struct Filter {
    namespace: String,
    subjects: Vec<i32>,
    epoch: String,
}

impl Filter {
    fn wants(&self, subject: v1::Subject) -> bool {
        self.subjects.is_empty() || self.subjects.contains(&subject.into())
    }

    fn wants_pod(&self, pod: &v1::Pod) -> bool {
        self.wants(v1::Subject::Pod) && (self.namespace.is_empty() || pod.namespace == self.namespace)
    }

    fn wants_network(&self, network: &v1::Network) -> bool {
        let mine = self.namespace.is_empty() || network.namespace.is_empty();
        self.wants(v1::Subject::Network) && (mine || network.namespace == self.namespace)
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

/// Networks and readiness as a watcher was told last: both follow from the state, so they are compared.
#[derive(Default)]
struct Told {
    networks: BTreeMap<(String, String), v1::Network>,
    readiness: Option<v1::NodeReadiness>,
}

impl Services {
    pub(super) async fn begin_watch(
        &self,
        request: v1::WatchRequest,
    ) -> Result<Answers<v1::WatchEvent>, Status> {
        let v1::WatchRequest { after, namespace, subjects } = request;
        let filter = Filter { namespace, subjects, epoch: self.handle.epoch().to_owned() };
        if let Some(after) = after.as_ref().filter(|after| after.epoch != filter.epoch) {
            let message = format!("history {} is gone: begin again without a position", after.epoch);
            return Err(Refusal::new(Reason::PositionGone, message).field("after").into());
        }
        // Changes are listened to before what is there is looked at, so that none is missed in between.
        let changes = self.handle.changes();
        let mut told = Told::default();
        let (first, told, last) = {
            let filter = filter.clone();
            let seen = self.handle.ask(move |node| {
                let first = match after {
                    None => Ok(everything(node, &filter, &mut told)),
                    Some(after) => since(node, &filter, Seq(after.sequence), &mut told),
                };
                first.map(|first| (first, told, node.last()))
            });
            seen.await.map_err(|problem| {
                Status::from(super::refusal(&problem, &knit_engine::CallId(String::new()), ""))
            })??
        };
        let (to, stream) = mpsc::channel(QUEUE);
        let services = self.clone();
        tokio::spawn(async move { services.follow(filter, first, told, last, changes, to).await });
        Ok(Box::pin(ReceiverStream::new(stream)))
    }

    /// Sends what there is, then what changes, until the reader goes or is too slow.
    async fn follow(
        self,
        filter: Filter,
        first: Vec<v1::WatchEvent>,
        mut told: Told,
        last: Seq,
        mut changes: broadcast::Receiver<Arc<Change>>,
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
                    let message = "the reader is too slow: go on from the last position";
                    let _ = to.send(Err(Refusal::new(Reason::SlowReader, message).into())).await;
                    return;
                }
            };
            let (of_change, before) = (filter.clone(), std::mem::take(&mut told));
            let rendered = self.handle.ask(move |node| {
                let mut told = before;
                let events = render(node.state(), &of_change, &change, &mut told);
                (events, told)
            });
            let Ok((events, now_told)) = rendered.await else { return };
            told = now_told;
            for event in events {
                if to.send(Ok(event)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Everything there is, each as added, then that this was all.
fn everything(node: &Node, filter: &Filter, told: &mut Told) -> Vec<v1::WatchEvent> {
    let (state, last) = (node.state(), node.last());
    let mut events = Vec::new();
    compare(state, last, filter, told, &mut events);
    for id in state.sandboxes.keys() {
        let Some(pod) = pods::pod(state, id).filter(|pod| filter.wants_pod(pod)) else { continue };
        events.push(of_pod(filter.event(last, v1::Change::Added), pod));
    }
    events.push(filter.event(last, v1::Change::Synced));
    resume_before(&mut events, None);
    events
}

/// One who stops reading in the middle and goes on later misses nothing: only the last of these events says that all of
/// them were told, the others say what was known before them.
fn resume_before(events: &mut [v1::WatchEvent], before: Option<v1::Position>) {
    if let Some((_, earlier)) = events.split_last_mut() {
        earlier.iter_mut().for_each(|event| event.position.clone_from(&before));
    }
}

/// What changed after a place in the history: each pod once, as it is now; networks and readiness as they are now,
/// because they follow from too much to tell which of them changed.
fn since(node: &Node, filter: &Filter, after: Seq, told: &mut Told) -> Result<Vec<v1::WatchEvent>, Refusal> {
    let gone = |message: String| Refusal::new(Reason::PositionGone, message).field("after");
    if after > node.last() {
        return Err(gone(format!("there is no change {after} yet: begin again without a position")));
    }
    let history = node.history(Seq(after.0 + 1)).map_err(|why| gone(why.to_string()))?;
    let mut names: BTreeMap<SandboxId, Option<Sandbox>> = BTreeMap::new();
    let mut networks_gone = BTreeSet::new();
    let mut next = None;
    for record in history {
        let (seq, record) = record.map_err(|why| gone(format!("the history is damaged: {why}")))?;
        next.get_or_insert(seq);
        if let knit_engine::Record::ObjectDeleted(key) = &record
            && key.kind == "VirtualNetwork"
        {
            networks_gone.insert((key.namespace.clone(), key.name.clone()));
        }
        if let Some((id, _)) = about(&record) {
            let known = names.entry(id).or_default();
            if let knit_engine::Record::SandboxSeen(sandbox) = record {
                *known = Some(sandbox);
            }
        }
    }
    if after < node.last() && next.is_none_or(|next| next.0 > after.0 + 1) {
        return Err(gone(format!(
            "the history does not reach back to {after}: begin again without a position"
        )));
    }
    let (state, last) = (node.state(), node.last());
    let mut events = Vec::new();
    compare(state, last, filter, told, &mut events);
    for (namespace, name) in networks_gone.into_iter().filter(|key| !told.networks.contains_key(key)) {
        let network = v1::Network { name, namespace, ..v1::Network::default() };
        if filter.wants_network(&network) {
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
        let wanted = matches!(&event.object, Some(v1::watch_event::Object::Pod(pod)) if filter.wants_pod(pod) || pod.namespace.is_empty());
        events.extend(wanted.then_some(event));
    }
    events.push(filter.event(last, v1::Change::Bookmark));
    resume_before(&mut events, filter.event(after, v1::Change::Bookmark).position);
    Ok(events)
}

/// One change, and what follows from it for networks and readiness.
fn render(state: &State, filter: &Filter, change: &Change, told: &mut Told) -> Vec<v1::WatchEvent> {
    let mut events = Vec::new();
    let pod = match (pods::pod(state, &change.sandbox), &change.gone) {
        (Some(pod), _) => Some((v1::Change::Modified, pod)),
        (None, Some(was)) => Some((v1::Change::Deleted, pods::gone(was))),
        // Gone by now: the change that says so follows.
        (None, None) => None,
    };
    if let Some((what, pod)) = pod.filter(|(_, pod)| filter.wants_pod(pod)) {
        let mut event = of_pod(filter.event(change.seq, what), pod);
        event.call_id = change.call.clone().unwrap_or_default();
        event.time = Some(pods::timestamp(change.at));
        events.push(event);
    }
    compare(state, change.seq, filter, told, &mut events);
    let before = Seq(change.seq.0.saturating_sub(1));
    resume_before(&mut events, filter.event(before, v1::Change::Bookmark).position);
    events
}

/// Networks and readiness that are not as they were told.
fn compare(state: &State, seq: Seq, filter: &Filter, told: &mut Told, events: &mut Vec<v1::WatchEvent>) {
    let mut before = std::mem::take(&mut told.networks);
    for network in nodes::all_networks(state).into_iter().filter(|network| filter.wants_network(network)) {
        let key = (network.namespace.clone(), network.name.clone());
        let change = match before.remove(&key) {
            None => Some(v1::Change::Added),
            Some(same) if same == network => None,
            Some(_) => Some(v1::Change::Modified),
        };
        events.extend(change.map(|change| of_network(filter.event(seq, change), network.clone())));
        told.networks.insert(key, network);
    }
    events.extend(
        before.into_values().map(|network| of_network(filter.event(seq, v1::Change::Deleted), network)),
    );
    let readiness = nodes::readiness(state);
    if told.readiness.as_ref() != Some(&readiness) {
        if filter.wants(v1::Subject::Readiness) {
            let mut event = filter.event(seq, v1::Change::Modified);
            event.object = Some(v1::watch_event::Object::Readiness(readiness.clone()));
            events.push(event);
        }
        told.readiness = Some(readiness);
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
