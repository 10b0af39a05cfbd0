//! What the kernel tells by itself: a link of the host that others delete, or take out of its bridge, is made good at once
//! and not at the next comparison.
//!
//! Knit's own links lose their names before they are deleted, so that what goes under a name that a unit holds was taken
//! away by someone else.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use knit_engine::{Event, Unit};
use knit_kernel::Netns;
use knit_kernel::notices::{Notice, Notices};

use super::super::Message;
use super::{Ends, SOON, Turn};
use crate::error::{Error, Result};

/// How often the listener looks whether anybody still wants to know.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Notices come in swarms: the listener lets them gather, and is not woken for each.
const GATHER: Duration = Duration::from_millis(100);

/// Starts a thread that hears the kernel's notices. It ends with the loop.
pub(super) fn start(ends: &Ends) -> Result<()> {
    let mut notices = Notices::open(&Netns::current()?)?;
    let (sender, alive): (_, Weak<_>) = (ends.sender.clone(), Arc::downgrade(&ends.metrics));
    let listen = move || {
        while alive.strong_count() > 0 {
            let heard = match notices.wait(HEARTBEAT, GATHER) {
                Ok(Some(notice)) => sender.send(Message::Noticed(notice)),
                Ok(None) => Ok(()),
                Err(why) => {
                    tracing::warn!(%why, "the kernel's notices are not heard: only comparing finds changes");
                    return;
                }
            };
            if heard.is_err() {
                return;
            }
        }
    };
    let builder = std::thread::Builder::new().name("knit-notices".to_owned());
    let spawned = builder.spawn(listen);
    spawned.map_err(|source| Error::File { path: "thread knit-notices".to_owned(), source }).map(drop)
}

impl Turn<'_> {
    /// Compares what the kernel says has gone, unless Knit is at it itself.
    pub(super) fn noticed(&mut self, notice: &Notice) -> Result<()> {
        let Notice::Gone(names) = notice else {
            self.resync_at = self.resync_at.min(Instant::now() + SOON);
            return Ok(());
        };
        let state = self.node.state();
        let holders = names.iter().filter_map(|name| state.made.holder(name));
        let units: BTreeSet<Unit> = holders.filter(|unit| !state.is_busy(unit)).cloned().collect();
        if units.is_empty() {
            return Ok(());
        }
        self.told.compared.extend(units.iter().cloned());
        self.hear(Event::Compare(units))
    }
}
