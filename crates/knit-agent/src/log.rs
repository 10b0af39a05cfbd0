//! The agent's log: structured lines on standard error, with a buffer of recent lines.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use knit_ipam::Time;
use tokio::sync::broadcast;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::node::now;

/// Size of the buffer, in lines.
const LOG_CAPACITY: usize = 1_000;

/// One log line.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// When it was written.
    pub at: Time,
    /// Its level.
    pub level: Level,
    /// The module that wrote it.
    pub target: String,
    /// Its message.
    pub message: String,
    /// Its fields.
    pub fields: BTreeMap<String, String>,
}

/// The buffer of recent lines, with a feed of new ones.
#[derive(Clone)]
pub struct LogBuffer {
    recent: Arc<Mutex<VecDeque<Arc<LogRecord>>>>,
    following: broadcast::Sender<Arc<LogRecord>>,
}

impl Default for LogBuffer {
    fn default() -> Self {
        let (following, _) = broadcast::channel(LOG_CAPACITY);
        Self { recent: Arc::default(), following }
    }
}

impl LogBuffer {
    /// The recent lines and a receiver of all later ones, without a gap.
    pub fn subscribe(&self) -> (Vec<Arc<LogRecord>>, broadcast::Receiver<Arc<LogRecord>>) {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        (recent.iter().cloned().collect(), self.following.subscribe())
    }
}

impl<S: Subscriber> Layer<S> for LogBuffer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut visitor = FieldVisitor::default();
        event.record(&mut visitor);
        let metadata = event.metadata();
        let line = Arc::new(LogRecord {
            at: now(),
            level: *metadata.level(),
            target: metadata.target().to_owned(),
            message: visitor.message,
            fields: visitor.fields,
        });
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == LOG_CAPACITY {
            recent.pop_front();
        }
        recent.push_back(Arc::clone(&line));
        // There may be no receiver.
        let _ = self.following.send(line);
    }
}

#[derive(Default)]
struct FieldVisitor {
    message: String,
    fields: BTreeMap<String, String>,
}

impl Visit for FieldVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => {
                self.fields.insert(name.to_owned(), value.to_owned());
            }
        }
    }
}
