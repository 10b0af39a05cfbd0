//! Recordings of the inputs of one node's engine, in order. A replay on any machine makes the same decisions.
//!
//! The engine has no other inputs than a state, events and their times, so a replay of a recording leads to the same effects. Keys of
//! links and tokens of extensions never enter the engine: it knows public keys and digests only.

use std::fmt::Write;

use knit_ipam::Time;
use knit_model::mac::fnv1a;
use serde::{Deserialize, Serialize};

use crate::event::{Effect, Event, Record};
use crate::state::{Settings, State};
use crate::step::step;

/// One entry of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entry {
    /// A node was opened with this state.
    Opened {
        /// The version of Knit.
        version: String,
        /// The state in its journal.
        state: Box<State>,
    },
    /// The node's settings were read from the host.
    Settings(Settings),
    /// A record was applied that needed no decision.
    Recorded(Box<Record>),
    /// An event was handled.
    Handled {
        /// When.
        at: Time,
        /// The event.
        event: Box<Event>,
        /// The [`digest`] of the effects.
        digest: u64,
    },
}

/// A number that differs for different effects. It is comparable between programs of the same build only.
pub fn digest(effects: &[Effect]) -> u64 {
    let mut text = String::new();
    for effect in effects {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{effect:?}");
    }
    fnv1a(text.as_bytes())
}

/// What became of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It only sets the state.
    Nothing,
    /// The same effects followed.
    Same(Vec<Effect>),
    /// Other effects followed.
    Different(Vec<Effect>),
}

/// Replays a recording, entry by entry.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    state: State,
}

impl Replay {
    /// Replays the next entry.
    pub fn next(&mut self, entry: Entry) -> Replayed {
        match entry {
            Entry::Opened { state, .. } => self.state = *state,
            Entry::Settings(settings) => self.state.settings = settings,
            Entry::Recorded(record) => self.state.record(&record),
            Entry::Handled { at, event, digest: recorded } => {
                let effects = step(&mut self.state, *event, at);
                return match digest(&effects) == recorded {
                    true => Replayed::Same(effects),
                    false => Replayed::Different(effects),
                };
            }
        }
        Replayed::Nothing
    }

    /// The state after the entries so far.
    pub fn state(&self) -> &State {
        &self.state
    }
}
