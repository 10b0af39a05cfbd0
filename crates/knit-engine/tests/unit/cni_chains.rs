//! Networks of existing CNI plugins: what is journalled, which plugins run, and when calls are answered.

use std::collections::BTreeMap;

use knit_engine::call::{
    AttachRequest, AttachmentMetadata, CallId, CallResult, DetachRequest, DetachScope, GcRequest,
    InterfaceRequest, NetnsInfo, SandboxRequest,
};
use knit_engine::plugin_chain::{ChainKey, CniCommand, PluginChain};
use knit_engine::{Effect, Event, Record, State, step};
use knit_ipam::Time;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::sandbox::SandboxInstance;

/// An engine with one CNI plugin network.
#[derive(Default)]
struct Node {
    state: State,
    journal: Vec<Record>,
    results: Vec<(String, CallResult)>,
    /// Plugin chains that are running.
    running: Vec<(ChainKey, CniCommand)>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self::default();
        let chain = PluginChain { conflist: "{}".to_owned(), ..PluginChain::default() };
        node.handle(Event::PluginChainsConfigured(BTreeMap::from([("legacy".to_owned(), chain)])));
        node
    }

    fn handle(&mut self, event: Event) {
        let mut events = Vec::new();
        for effect in step(&mut self.state, event, Time(1)) {
            match effect {
                Effect::Journal(record) => self.journal.push(record),
                Effect::Respond { call, result: answer } => self.results.push((call.0, answer)),
                Effect::InspectNetns { call, path } => {
                    let cookie = path.bytes().map(u64::from).sum();
                    let instance = SandboxInstance { boot: "boot".to_owned(), cookie };
                    events
                        .push(Event::NetnsInspected { call, result: Ok(NetnsInfo { instance, number: 1 }) });
                }
                Effect::RunPluginChain { command: verb, interface: chained } => {
                    let is_it = |record: &Record| matches!(record, Record::ChainAddStarted(there) if there.key() == chained.key());
                    assert!(self.journal.iter().any(is_it), "the chain is journalled before it runs");
                    self.running.push((chained.key(), verb));
                }
                Effect::Observe { unit, .. } => {
                    events.push(Event::Observed {
                        unit,
                        observed: Default::default(),
                        keys: Default::default(),
                    });
                }
                _ => {}
            }
        }
        events.into_iter().for_each(|event| self.handle(event));
    }

    /// Completes the running plugin chain.
    fn complete(&mut self, expected: CniCommand, result: Result<&str, &str>) {
        let (key, verb) = self.running.pop().expect("a plugin chain is running");
        assert_eq!(verb, expected);
        let result = result
            .map(str::to_owned)
            .map_err(|message| Problem::new("", Reason::KernelError, message.to_owned()));
        self.handle(Event::PluginChainDone { key, command: verb, result });
    }

    fn take_result(&mut self, call: &str) -> Option<CallResult> {
        let at = self.results.iter().position(|(of, _)| of == call)?;
        Some(self.results.remove(at).1)
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty()
            && self.state.attachments.all_chained().next().is_none()
            && self.state.sandboxes.is_empty()
    }
}

fn attach(call: &str) -> Event {
    Event::AttachRequested(Box::new(AttachRequest {
        call: CallId(call.to_owned()),
        dialect: Dialect::Kni,
        sandbox: SandboxRequest { id: "s".to_owned(), netns: "/s".to_owned(), ..SandboxRequest::default() },
        interfaces: vec![("eth0".parse().unwrap(), "legacy".to_owned(), InterfaceRequest::default())],
        metadata: AttachmentMetadata { group: "g".to_owned(), ..AttachmentMetadata::default() },
        fail_if_present: false,
        ticket: 7,
        started_at: 0,
    }))
}

fn detach(call: &str, which: DetachScope) -> Event {
    let (call, sandbox) = (CallId(call.to_owned()), SandboxId("s".to_owned()));
    Event::DetachRequested(DetachRequest {
        call,
        sandbox,
        netns: String::new(),
        scope: which,
        forget_sandbox: false,
        started_at: 0,
    })
}

#[test]
fn attach_is_answered_after_add_and_detach_after_del() {
    let mut node = Node::new();
    node.handle(attach("1"));
    assert_eq!(node.take_result("1"), None);
    node.complete(CniCommand::Add, Ok("{\"ips\":[]}"));
    assert_eq!(node.take_result("1"), Some(CallResult::ChainAttached));
    // A repeated attach runs nothing.
    node.handle(attach("2"));
    assert_eq!((node.take_result("2"), node.running.len()), (Some(CallResult::ChainAttached), 0));
    for which in
        [DetachScope::Interfaces(["eth0".parse().unwrap()].into()), DetachScope::Attached, DetachScope::All]
    {
        node.handle(detach("3", which));
        assert_eq!(node.take_result("3"), None);
        node.complete(CniCommand::Del, Ok(""));
        assert_eq!(node.take_result("3"), Some(CallResult::Detached));
        assert!(node.is_empty());
        node.handle(attach("4"));
        node.complete(CniCommand::Add, Ok("{}"));
        assert_eq!(node.take_result("4"), Some(CallResult::ChainAttached));
    }
}

#[test]
fn failed_add_is_answered_after_its_del() {
    let mut node = Node::new();
    node.handle(attach("1"));
    node.complete(CniCommand::Add, Err("code 77"));
    assert_eq!(node.take_result("1"), None);
    node.complete(CniCommand::Del, Ok(""));
    assert!(matches!(node.take_result("1"), Some(CallResult::Failed(why)) if why.message == "code 77"));
    assert!(node.is_empty());
}

#[test]
fn add_is_rolled_back_when_the_caller_gives_up() {
    for given_up in [
        Event::CallCancelled { call: CallId("1".to_owned()), ticket: 7 },
        detach("2", DetachScope::All),
        Event::SandboxRemoved(SandboxId("s".to_owned())),
    ] {
        let mut node = Node::new();
        node.handle(attach("1"));
        node.handle(given_up.clone());
        assert_eq!(node.running.len(), 1, "one run at a time: {given_up:?}");
        node.complete(CniCommand::Add, Ok("{}"));
        node.complete(CniCommand::Del, Ok(""));
        assert!(node.is_empty(), "{given_up:?}");
        assert!(!matches!(node.take_result("1"), Some(CallResult::ChainAttached)), "{given_up:?}");
    }
}

#[test]
fn after_a_crash_an_unfinished_add_is_deleted_and_a_finished_one_is_kept() {
    for (is_done, expected) in [(true, 0), (false, 1)] {
        let mut node = Node::new();
        node.handle(attach("1"));
        if is_done {
            node.complete(CniCommand::Add, Ok("{}"));
        }
        let mut restarted = Node { journal: node.journal.clone(), ..Node::default() };
        node.journal.iter().for_each(|record| restarted.state.record(record));
        restarted.handle(Event::Restarted);
        assert_eq!(restarted.running.iter().filter(|(_, verb)| *verb == CniCommand::Del).count(), expected);
        assert_eq!(restarted.running.len(), expected);
    }
}

#[test]
fn failed_del_is_reported_and_retried_on_resync() {
    let mut node = Node::new();
    node.handle(attach("1"));
    node.complete(CniCommand::Add, Ok("{}"));
    node.handle(detach("2", DetachScope::Attached));
    node.complete(CniCommand::Del, Err("busy"));
    assert!(matches!(node.take_result("2"), Some(CallResult::Failed(why)) if why.message == "busy"));
    assert_eq!(node.running, []);
    node.handle(Event::Resync);
    node.complete(CniCommand::Del, Ok(""));
    assert!(node.is_empty());
}

#[test]
fn gc_deletes_the_stale_sandboxes_of_its_group() {
    let mut node = Node::new();
    node.handle(attach("1"));
    node.complete(CniCommand::Add, Ok("{}"));
    let collect = |call: &str, group: &str| {
        let (call, group) = (CallId(call.to_owned()), group.to_owned());
        Event::GcRequested(GcRequest { call, alive: Default::default(), group })
    };
    node.handle(collect("2", "other"));
    assert_eq!(node.take_result("2"), Some(CallResult::Collected(Vec::new())));
    node.handle(collect("3", "g"));
    assert_eq!(node.take_result("3"), None);
    node.complete(CniCommand::Del, Ok(""));
    assert!(matches!(node.take_result("3"), Some(CallResult::Collected(all)) if all.len() == 1));
    assert!(node.is_empty());
}
