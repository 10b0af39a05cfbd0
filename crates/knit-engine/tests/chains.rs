//! Networks that existing CNI plugins make: what is remembered, what is run, and who is answered when.
#![allow(clippy::unwrap_used, reason = "what these tests need must be there")]

use std::collections::BTreeMap;

use knit_engine::call::{Answer, Asked, Attach, CallId, Collect, Detach, Found, Notes, Which, Wished};
use knit_engine::chain::{Chain, ChainKey, Verb};
use knit_engine::{Effect, Event, Record, State, step};
use knit_ipam::Time;
use knit_model::SandboxId;
use knit_model::problem::{Problem, Reason};
use knit_model::provenance::Dialect;
use knit_model::sandbox::Instance;

/// An engine with one network of plugins.
#[derive(Default)]
struct Node {
    state: State,
    journal: Vec<Record>,
    answers: Vec<(String, Answer)>,
    /// Plugins that are being run.
    running: Vec<(ChainKey, Verb)>,
}

impl Node {
    fn new() -> Self {
        let mut node = Self::default();
        let chain = Chain { conflist: "{}".to_owned(), ..Chain::default() };
        node.tell(Event::ChainsConfigured(BTreeMap::from([("legacy".to_owned(), chain)])));
        node
    }

    fn tell(&mut self, event: Event) {
        let mut found = Vec::new();
        for effect in step(&mut self.state, event, Time(1)) {
            match effect {
                Effect::Journal(record) => self.journal.push(record),
                Effect::Answer { call, answer } => self.answers.push((call.0, answer)),
                Effect::Inspect { call, path } => {
                    let cookie = path.bytes().map(u64::from).sum();
                    let instance = Instance { boot: "boot".to_owned(), cookie };
                    found.push(Event::Inspected { call, found: Ok(Found { instance, number: 1 }) });
                }
                Effect::RunChain { verb, chained } => {
                    let is_it = |record: &Record| matches!(record, Record::Chained(there) if there.key() == chained.key());
                    assert!(self.journal.iter().any(is_it), "the intent is written down first");
                    self.running.push((chained.key(), verb));
                }
                Effect::Observe { unit, .. } => {
                    found.push(Event::Observed { unit, seen: Default::default(), keys: Default::default() });
                }
                _ => {}
            }
        }
        found.into_iter().for_each(|event| self.tell(event));
    }

    /// The plugins that run have done what they were run for.
    fn end(&mut self, expected: Verb, result: Result<&str, &str>) {
        let (key, verb) = self.running.pop().expect("plugins run");
        assert_eq!(verb, expected);
        let result = result.map(str::to_owned).map_err(|message| Problem {
            field: String::new(),
            reason: Reason::KernelRefused,
            message: message.to_owned(),
        });
        self.tell(Event::ChainDone { key, verb, result });
    }

    fn answer(&mut self, call: &str) -> Option<Answer> {
        let at = self.answers.iter().position(|(of, _)| of == call)?;
        Some(self.answers.remove(at).1)
    }

    fn is_bare(&self) -> bool {
        self.running.is_empty()
            && self.state.called.all_chained().next().is_none()
            && self.state.sandboxes.is_empty()
    }
}

fn attach(call: &str) -> Event {
    Event::AttachRequested(Box::new(Attach {
        call: CallId(call.to_owned()),
        dialect: Dialect::Kni,
        sandbox: Wished { id: "s".to_owned(), netns: "/s".to_owned(), ..Wished::default() },
        interfaces: vec![("eth0".parse().unwrap(), "legacy".to_owned(), Asked::default())],
        notes: Notes { group: "g".to_owned(), ..Notes::default() },
        fail_if_present: false,
        ticket: 7,
        began: 0,
    }))
}

fn detach(call: &str, which: Which) -> Event {
    let (call, sandbox) = (CallId(call.to_owned()), SandboxId("s".to_owned()));
    Event::DetachRequested(Detach { call, sandbox, netns: String::new(), which, forget: false, began: 0 })
}

#[test]
fn an_attach_is_answered_once_the_plugins_are_done_and_a_detach_once_they_have_cleaned_up() {
    let mut node = Node::new();
    node.tell(attach("1"));
    assert_eq!(node.answer("1"), None);
    node.end(Verb::Add, Ok("{\"ips\":[]}"));
    assert_eq!(node.answer("1"), Some(Answer::Chained));
    // The same again runs nothing.
    node.tell(attach("2"));
    assert_eq!((node.answer("2"), node.running.len()), (Some(Answer::Chained), 0));
    for which in [Which::These(["eth0".parse().unwrap()].into()), Which::Called, Which::All] {
        node.tell(detach("3", which));
        assert_eq!(node.answer("3"), None);
        node.end(Verb::Del, Ok(""));
        assert_eq!(node.answer("3"), Some(Answer::Detached));
        assert!(node.is_bare());
        node.tell(attach("4"));
        node.end(Verb::Add, Ok("{}"));
        assert_eq!(node.answer("4"), Some(Answer::Chained));
    }
}

#[test]
fn a_failed_add_is_answered_after_its_del() {
    let mut node = Node::new();
    node.tell(attach("1"));
    node.end(Verb::Add, Err("code 77"));
    assert_eq!(node.answer("1"), None);
    node.end(Verb::Del, Ok(""));
    assert!(matches!(node.answer("1"), Some(Answer::Failed(why)) if why.message == "code 77"));
    assert!(node.is_bare());
}

#[test]
fn whoever_gives_up_during_an_add_has_it_taken_back() {
    for given_up in [
        Event::CallCancelled { call: CallId("1".to_owned()), ticket: 7 },
        detach("2", Which::All),
        Event::SandboxGone(SandboxId("s".to_owned())),
    ] {
        let mut node = Node::new();
        node.tell(attach("1"));
        node.tell(given_up.clone());
        assert_eq!(node.running.len(), 1, "one at a time: {given_up:?}");
        node.end(Verb::Add, Ok("{}"));
        node.end(Verb::Del, Ok(""));
        assert!(node.is_bare(), "{given_up:?}");
        assert!(!matches!(node.answer("1"), Some(Answer::Chained)), "{given_up:?}");
    }
}

#[test]
fn after_a_crash_what_may_have_been_begun_is_taken_away_and_what_stands_stays() {
    for (stands, expected) in [(true, 0), (false, 1)] {
        let mut node = Node::new();
        node.tell(attach("1"));
        if stands {
            node.end(Verb::Add, Ok("{}"));
        }
        let mut again = Node { journal: node.journal.clone(), ..Node::default() };
        node.journal.iter().for_each(|record| again.state.record(record));
        again.tell(Event::Restarted);
        assert_eq!(again.running.iter().filter(|(_, verb)| *verb == Verb::Del).count(), expected);
        assert_eq!(again.running.len(), expected);
    }
}

#[test]
fn a_del_that_fails_is_told_and_run_again_when_everything_is_compared() {
    let mut node = Node::new();
    node.tell(attach("1"));
    node.end(Verb::Add, Ok("{}"));
    node.tell(detach("2", Which::Called));
    node.end(Verb::Del, Err("busy"));
    assert!(matches!(node.answer("2"), Some(Answer::Failed(why)) if why.message == "busy"));
    assert_eq!(node.running, []);
    node.tell(Event::Resync);
    node.end(Verb::Del, Ok(""));
    assert!(node.is_bare());
}

#[test]
fn a_collection_takes_the_dead_of_its_group() {
    let mut node = Node::new();
    node.tell(attach("1"));
    node.end(Verb::Add, Ok("{}"));
    let collect = |call: &str, group: &str| {
        let (call, group) = (CallId(call.to_owned()), group.to_owned());
        Event::CollectRequested(Collect { call, living: Default::default(), group })
    };
    node.tell(collect("2", "other"));
    assert_eq!(node.answer("2"), Some(Answer::Collected(Vec::new())));
    node.tell(collect("3", "g"));
    assert_eq!(node.answer("3"), None);
    node.end(Verb::Del, Ok(""));
    assert!(matches!(node.answer("3"), Some(Answer::Collected(all)) if all.len() == 1));
    assert!(node.is_bare());
}
