//! The agent's log: structured lines on standard error, the recent ones kept for whoever asks.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use knit_ipam::Time;
use tokio::sync::broadcast;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use crate::node::now;

/// So many recent lines are kept.
const KEPT: usize = 1_000;

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// When.
    pub at: Time,
    /// How important.
    pub level: Level,
    /// The part of the agent that says it.
    pub target: String,
    /// What it says.
    pub message: String,
    /// Its fields.
    pub fields: BTreeMap<String, String>,
}

/// The recent lines, and a way to hear those that follow.
#[derive(Clone)]
pub struct Lines {
    recent: Arc<Mutex<VecDeque<Arc<Line>>>>,
    following: broadcast::Sender<Arc<Line>>,
}

impl Default for Lines {
    fn default() -> Self {
        let (following, _) = broadcast::channel(KEPT);
        Self { recent: Arc::default(), following }
    }
}

impl Lines {
    /// The recent lines, and those that follow; none is missed in between.
    pub fn since_now(&self) -> (Vec<Arc<Line>>, broadcast::Receiver<Arc<Line>>) {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        (recent.iter().cloned().collect(), self.following.subscribe())
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let about = event.metadata();
        let line = Arc::new(Line {
            at: now(),
            level: *about.level(),
            target: about.target().to_owned(),
            message: said.message,
            fields: said.fields,
        });
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == KEPT {
            recent.pop_front();
        }
        recent.push_back(Arc::clone(&line));
        // Nobody follows: then nobody misses it.
        let _ = self.following.send(line);
    }
}

#[derive(Default)]
struct Said {
    message: String,
    fields: BTreeMap<String, String>,
}

impl Visit for Said {
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
