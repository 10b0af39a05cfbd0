//! Everything about a namespace that a test compares, as plain text.
//!
//! Two dumps of an untouched namespace are the same: what moves by itself (counters, timers, indices, carrier
//! and duplicate detection on their way) is left out or waited for. See [`normal`] for what and why.

mod collect;
mod difference;
mod normal;
mod ruleset;

use std::fmt;
use std::time::{Duration, Instant};

use crate::Namespace;

/// What the kernel does by itself after a change takes less, also in an emulated machine.
const FOLLOWING: Duration = Duration::from_secs(10);

/// One line of a dump. Lines of the same subject (a link, say) that come or go together are told as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    subject: String,
    text: String,
}

/// A part of a dump: links, addresses, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    title: &'static str,
    lines: Vec<Line>,
}

/// The state of a namespace at one moment: links, addresses, routes of all tables, rules, next hops, permanent
/// neighbours and forwarding entries, qdiscs and filters, the nftables rule set, and the sysctls of all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    sections: Vec<Section>,
}

impl Dump {
    /// Takes a dump. Panics when a tool is missing or fails: half a dump would compare as equal. A tool fails, too, when
    /// the link goes that it is asked about, so each has a second and a third chance.
    #[track_caller]
    pub fn take(namespace: &Namespace) -> Self {
        let look = || namespace.run(|| collect::sections(namespace.name()));
        let sections = look().or_else(|_| look()).or_else(|_| look());
        Self { sections: sections.unwrap_or_else(|error| panic!("{error}")) }
    }

    /// Takes a dump once the kernel has followed what was done: some addresses and routes come a moment later.
    #[track_caller]
    pub fn settled(namespace: &Namespace) -> Self {
        let mut dump = Self::take(namespace);
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(300));
            let before = std::mem::replace(&mut dump, Self::take(namespace));
            if before == dump {
                return dump;
            }
        }
        panic!("namespace {} does not come to rest", namespace.name());
    }

    /// What the other one has more (`+`) and less (`-`), by section; empty when they are the same.
    pub fn difference(&self, other: &Self) -> String {
        difference::between(&self.sections, &other.sections)
    }

    /// Asserts that the namespace looks as it did, at once or as soon as the kernel has followed: a link that was deleted
    /// may be seen for a moment, and some addresses and routes come a moment later.
    #[track_caller]
    pub fn assert_unchanged(&self, namespace: &Namespace) {
        let deadline = Instant::now() + FOLLOWING;
        loop {
            let difference = self.difference(&Self::take(namespace));
            if difference.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "namespace {} has changed:\n{difference}", namespace.name());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The whole dump, a heading and lines per section.
impl fmt::Display for Dump {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(formatter, "# {}", section.title)?;
            for line in &section.lines {
                writeln!(formatter, "{}", line.text)?;
            }
        }
        Ok(())
    }
}

/// Asserts that two dumps are the same; shows only the difference.
#[macro_export]
macro_rules! assert_same {
    ($before:expr, $after:expr $(,)?) => {{
        let difference = $crate::Dump::difference(&$before, &$after);
        assert!(difference.is_empty(), "the dumps differ:\n{difference}");
    }};
}
