//! Events: what people see below an object that they describe.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder as Publisher, Reporter};

/// An API server refuses a longer note.
const MAX_NOTE: usize = 1_000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Someone should look.
    Warning,
}

/// Writes Events. The same again within a while is counted, not written anew.
#[derive(Clone)]
pub struct Recorder {
    publisher: Publisher,
}

impl Recorder {
    /// A recorder for one program (`knit-agent`) in one place (the node).
    pub fn new(client: Client, program: &str, place: &str) -> Self {
        let reporter = Reporter { controller: program.to_owned(), instance: Some(place.to_owned()) };
        Self { publisher: Publisher::new(client, reporter) }
    }

    /// Says something about an object. An Event that cannot be written is only logged: nothing depends on it.
    pub async fn tell(&self, about: &ObjectReference, severity: Severity, reason: &str, note: &str) {
        let cut = note.char_indices().nth(MAX_NOTE).map_or(note.len(), |(end, _)| end);
        let event = Event {
            type_: match severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(note[..cut].to_owned()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(why) = self.publisher.publish(&event, about).await {
            tracing::debug!(%why, reason, "an Event could not be written");
        }
    }
}
