//! The last events, kept small and formatted only when an invariant is violated.

use std::collections::VecDeque;
use std::fmt;

use crate::queue::{SECOND, SimTime};

/// Number of entries kept.
const MAX_ENTRIES: usize = 20_000;

/// What an entry is about, besides its node.
#[derive(Clone, Debug)]
pub(crate) enum TraceSubject {
    Node,
    Pod(u32),
    Name(String),
}

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct TraceEntry {
    at: SimTime,
    node: usize,
    message: &'static str,
    subject: TraceSubject,
}

#[derive(Default)]
pub(crate) struct Trace(VecDeque<TraceEntry>);

impl Trace {
    pub(crate) fn add(&mut self, at: SimTime, node: usize, message: &'static str, subject: TraceSubject) {
        if self.0.len() == MAX_ENTRIES {
            self.0.pop_front();
        }
        self.0.push_back(TraceEntry { at, node, message, subject });
    }

    /// The last entries of these nodes, or of all if none are given, oldest first.
    pub(crate) fn last(&self, nodes: &[usize], limit: usize) -> Vec<String> {
        let is_selected = |line: &&TraceEntry| nodes.is_empty() || nodes.contains(&line.node);
        let mut lines: Vec<String> =
            self.0.iter().rev().filter(is_selected).take(limit).map(ToString::to_string).collect();
        lines.reverse();
        lines
    }
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at as f64 / SECOND as f64;
        write!(out, "{seconds:>10.3} s  {}  {}", crate::scenario::node_name(self.node), self.message)?;
        match &self.subject {
            TraceSubject::Node => Ok(()),
            TraceSubject::Pod(pod) => write!(out, " pod-{pod}"),
            TraceSubject::Name(name) => write!(out, " {name}"),
        }
    }
}
