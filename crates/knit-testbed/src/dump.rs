//! The state of a namespace as text, for comparison.
//!
//! Two dumps of an unchanged namespace are equal: what changes by itself (counters, timers, indices, pending
//! carrier and duplicate address detection) is left out or waited for. See [`normalize`] for details.

mod collect;
mod difference;
mod normalize;
mod ruleset;

use std::fmt;
use std::time::{Duration, Instant};

use crate::Namespace;
pub use ruleset::without_table_owners;

/// The kernel's delayed reactions to a change take less, also in an emulated machine.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// One line of a dump. Many added or removed lines of one subject (such as a link) are summarized in a difference.
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

/// The state of a namespace: links, addresses, routes of all tables, rules, next hops, permanent neighbours and
/// forwarding entries, qdiscs and filters, the nftables rule set, and the sysctls of all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    sections: Vec<Section>,
}

impl Dump {
    /// Takes a dump. Panics if a tool is missing or fails: half a dump could compare as equal. A tool also fails
    /// if a link disappears while it runs, so each is tried three times.
    #[track_caller]
    pub fn take(namespace: &Namespace) -> Self {
        let collect = || namespace.run(|| collect::sections(namespace.name()));
        let sections = collect().or_else(|_| collect()).or_else(|_| collect());
        Self { sections: sections.unwrap_or_else(|error| panic!("{error}")) }
    }

    /// Takes a dump once nothing changes any more: the kernel adds some addresses and routes with a delay.
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
        panic!("namespace {} does not settle", namespace.name());
    }

    /// What `other` has more (`+`) and less (`-`), by section; empty if they are equal.
    pub fn difference(&self, other: &Self) -> String {
        difference::between(&self.sections, &other.sections)
    }

    /// Asserts that the namespace is unchanged, at once or within a timeout: a deleted link may be visible for a
    /// moment, and some addresses and routes are added with a delay.
    #[track_caller]
    pub fn assert_unchanged(&self, namespace: &Namespace) {
        let deadline = Instant::now() + SETTLE_TIME;
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

/// Asserts that two dumps are equal; prints only the difference.
#[macro_export]
macro_rules! assert_same {
    ($before:expr, $after:expr $(,)?) => {{
        let difference = $crate::Dump::difference(&$before, &$after);
        assert!(difference.is_empty(), "the dumps differ:\n{difference}");
    }};
}
