//! The last things that happened, kept small and put into words only when something went wrong.

use std::collections::VecDeque;
use std::fmt;

use crate::queue::{Moment, SECOND};

/// So many are kept.
const KEPT: usize = 20_000;

/// What something is about.
#[derive(Clone, Debug)]
pub(crate) enum About {
    Nothing,
    Pod(u32),
    Name(String),
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    at: Moment,
    node: usize,
    what: &'static str,
    about: About,
}

#[derive(Default)]
pub(crate) struct Trace(VecDeque<Line>);

impl Trace {
    pub(crate) fn add(&mut self, at: Moment, node: usize, what: &'static str, about: About) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Line { at, node, what, about });
    }

    /// The last lines about some nodes, oldest first; about all, if none are named.
    pub(crate) fn last(&self, nodes: &[usize], most: usize) -> Vec<String> {
        let is_meant = |line: &&Line| nodes.is_empty() || nodes.contains(&line.node);
        let mut lines: Vec<String> =
            self.0.iter().rev().filter(is_meant).take(most).map(ToString::to_string).collect();
        lines.reverse();
        lines
    }
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.at as f64 / SECOND as f64;
        write!(out, "{seconds:>10.3} s  {}  {}", crate::scenario::node_name(self.node), self.what)?;
        match &self.about {
            About::Nothing => Ok(()),
            About::Pod(pod) => write!(out, " pod-{pod}"),
            About::Name(name) => write!(out, " {name}"),
        }
    }
}
