//! Recordings of the inputs of one node's engine, in order. A replay on any machine makes the same decisions.
//!
//! The engine has no other inputs than a state, events and their times, so a replay of a recording leads to the same effects. Keys of
//! links and tokens of extensions never enter the engine: it knows public keys and digests only.

mod digest;

use std::io::{self, Write};

use knit_ipam::Time;
use serde::{Deserialize, Serialize};

pub use digest::{Digest, digest};

use crate::event::{Effect, Event, Record};
use crate::state::{Settings, State};
use crate::step::step;

/// One entry of a recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entry {
    /// The next entries follow this state: the node was opened, or a segment of the recording starts.
    Opened {
        /// The version of Knit.
        version: String,
        /// The state. Changes and calls are not in flight.
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

/// An [`Entry`] to be written.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NewEntry<'a> {
    /// [`Entry::Opened`].
    Opened {
        /// The version of Knit.
        version: &'a str,
        /// The state.
        state: &'a State,
    },
    /// [`Entry::Settings`].
    Settings(&'a Settings),
    /// [`Entry::Recorded`].
    Recorded(&'a Record),
}

impl NewEntry<'_> {
    /// Writes the entry as a line of JSON.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        to.write_all(b"\n")
    }
}

/// Writes an [`Entry::Handled`] up to its event, which handling consumes. [`end_handled`] writes the rest.
pub fn start_handled(to: &mut impl Write, at: Time, event: &Event) -> io::Result<()> {
    write!(to, "{{\"handled\":{{\"at\":{},\"event\":", at.0)?;
    Ok(serde_json::to_writer(to, event)?)
}

/// Writes the rest of an [`Entry::Handled`].
pub fn end_handled(to: &mut impl Write, digest: Digest) -> io::Result<()> {
    writeln!(to, ",\"digest\":{}}}}}", digest.value())
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
