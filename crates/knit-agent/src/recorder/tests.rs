use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use knit_engine::namespaces::{NamespaceEvent, NamespaceOptions};
use knit_engine::recording::{Entry, Replay, Replayed};
use knit_engine::{Record, step};
use knit_model::{Sandbox, SandboxId};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A node that records, without a kernel.
struct RecordedNode {
    state: State,
    recorder: Recorder,
    folder: tempfile::TempDir,
    events: u64,
}

impl RecordedNode {
    fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recorder = open(folder.path(), bytes);
        let mut node = Self { state: State::default(), recorder, folder, events: 0 };
        node.recorder.write(&NewEntry::Opened { version: "1", state: &node.state });
        node
    }

    /// As an agent that starts again: what is not persistent is lost.
    fn restart(&mut self, bytes: u64) {
        self.state = self.state.persistent();
        self.recorder = open(self.folder.path(), bytes);
        self.recorder.write(&NewEntry::Opened { version: "1", state: &self.state });
    }

    /// Handles events that are recorded and leave no change in flight: another namespace has options each time.
    fn handle(&mut self, count: u64) {
        for _ in 0..count {
            let options = NamespaceOptions { allow_spoofing: true, masquerade: None };
            let all = [(format!("namespace-{}", self.events % 5), options)].into();
            let event = Event::Namespaces(NamespaceEvent::Listed(all));
            self.events += 1;
            self.recorder.start_handled(Time(self.events), &event);
            let mut digest = Digest::default();
            digest.add(&step(&mut self.state, event, Time(self.events)));
            self.recorder.end_handled(digest);
        }
        self.recorder.flush_buffer();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("recording").join(name)
    }

    /// The number of events in a segment, each of which leads to the recorded decision, and of incomplete lines.
    fn replay(&self, name: &str) -> (usize, usize) {
        let text = fs::read_to_string(self.path(name)).unwrap();
        assert!(text.starts_with("{\"opened\""), "a segment starts with the state");
        let mut replay = Replay::default();
        let (mut events, mut incomplete) = (0, 0);
        for line in text.lines() {
            match serde_json::from_str::<Entry>(line).map(|entry| replay.next(entry)) {
                Ok(Replayed::Same(_)) => events += 1,
                Ok(Replayed::Nothing) => {}
                Ok(Replayed::Different(effects)) => panic!("{line}: {effects:?}"),
                Err(_) => incomplete += 1,
            }
        }
        (events, incomplete)
    }
}

fn sandbox(id: &SandboxId) -> Sandbox {
    let text = format!("/run/netns/{id}");
    serde_json::from_value(serde_json::json!({
        "id": id, "pod": "web", "namespace": "shop", "uid": "1", "labels": {}, "netns": text,
        "number": 1, "instance": { "boot": "b", "cookie": 1 },
    }))
    .unwrap()
}

fn open(state_dir: &Path, bytes: u64) -> Recorder {
    let limits = RecentLimits { bytes, age: 10 * MINUTE };
    Recorder::open(None, state_dir, Some(limits)).unwrap().unwrap()
}

#[test]
fn each_segment_replays_alone() {
    let mut node = RecordedNode::new(1 << 20);
    node.handle(7);
    let start = Instant::now();
    node.recorder.rotate(&node.state, start + 5 * MINUTE);
    assert!(!node.path("previous.jsonl").exists(), "it is too early");
    node.recorder.rotate(&node.state, start + 11 * MINUTE);
    assert_eq!(node.replay("previous.jsonl"), (7, 0));
    node.handle(4);
    assert_eq!(node.replay("current.jsonl"), (4, 0));
    node.recorder.rotate(&node.state, start + 22 * MINUTE);
    assert_eq!((node.replay("previous.jsonl"), node.replay("current.jsonl")), ((4, 0), (0, 0)));
    let mode = fs::metadata(node.path("current.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it has objects of all tenants");
}

#[test]
fn the_size_is_limited_also_while_a_segment_cannot_be_rotated() {
    let bytes = 64 << 10;
    let mut node = RecordedNode::new(bytes);
    node.handle(1_000);
    let size = |name| fs::metadata(node.path(name)).unwrap().len();
    assert!(size("current.jsonl") <= bytes / 2);
    let (recorded, incomplete) = node.replay("current.jsonl");
    assert!(recorded < 1_000 && incomplete <= 1, "{recorded} {incomplete}");
    // Full segments are rotated earlier, but not all the time.
    let start = Instant::now();
    node.recorder.rotate(&node.state, start + MINUTE / 2);
    assert!(!node.path("previous.jsonl").exists());
    node.recorder.rotate(&node.state, start + 2 * MINUTE);
    node.handle(3);
    assert_eq!(
        (node.replay("previous.jsonl"), node.replay("current.jsonl")),
        ((recorded, incomplete), (3, 0))
    );
}

#[test]
fn a_restart_continues_the_segment_until_it_is_half_full() {
    let bytes = 64 << 10;
    let mut node = RecordedNode::new(bytes);
    node.handle(3);
    node.restart(bytes);
    node.handle(2);
    assert_eq!(node.replay("current.jsonl"), (5, 0));
    // Killed in the middle of a write.
    let text = fs::read(node.path("current.jsonl")).unwrap();
    fs::write(node.path("current.jsonl"), &text[..text.len() - 10]).unwrap();
    node.restart(bytes);
    node.handle(1);
    assert_eq!(node.replay("current.jsonl"), (5, 1));
    // However often it restarts, the size stays limited.
    for _ in 0..200 {
        node.restart(bytes);
        node.handle(4);
    }
    let sizes = ["previous.jsonl", "current.jsonl"].map(|name| fs::metadata(node.path(name)).unwrap().len());
    assert!(sizes.iter().sum::<u64>() <= bytes, "{sizes:?}");
    assert!(node.replay("previous.jsonl").0 > 0);
}

#[test]
fn a_state_beyond_the_limit_ends_the_recording() {
    let mut node = RecordedNode::new(8 << 10);
    for number in 0..100 {
        node.state.record(&Record::SandboxUpdated(sandbox(&SandboxId(format!("s{number}")))));
    }
    node.recorder.rotate(&node.state, Instant::now() + 11 * MINUTE);
    assert!(node.recorder.recent.is_none());
    node.handle(3);
    assert!(fs::metadata(node.path("current.jsonl")).unwrap().len() <= 4 << 10);
}

#[test]
fn a_disabled_recording_is_removed() {
    let mut node = RecordedNode::new(1 << 20);
    node.handle(1);
    assert!(Recorder::open(None, node.folder.path(), None).unwrap().is_none());
    assert!(!node.folder.path().join("recording").exists());
}
