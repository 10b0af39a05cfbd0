//! Kernel notifications: a host link that is deleted or removed from its bridge by others is repaired at once instead of at the next full
//! comparison.
//!
//! Knit renames its own links before it deletes them, so a notification with the name of an owned link means that someone else deleted
//! it.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use knit_engine::{Event, Unit};
use knit_kernel::Netns;
use knit_kernel::notifications::{LinkNotification, LinkNotifications};

use super::super::Message;
use super::{Channels, EARLY_RESYNC_DELAY, EventLoop};
use crate::error::{Error, Result};

/// How often the listener checks whether the loop still runs.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Notifications come in bursts: the listener collects them this long before it wakes up.
const BATCH_DELAY: Duration = Duration::from_millis(100);

/// Starts a thread that listens for kernel notifications. It ends with the loop.
pub(super) fn start(channels: &Channels) -> Result<()> {
    let mut notices = LinkNotifications::open(&Netns::current()?)?;
    let (sender, alive): (_, Weak<_>) = (channels.sender.clone(), Arc::downgrade(&channels.metrics));
    let listen = move || {
        while alive.strong_count() > 0 {
            let result = match notices.wait(HEARTBEAT, BATCH_DELAY) {
                Ok(Some(notice)) => sender.send(Message::Kernel(notice)),
                Ok(None) => Ok(()),
                Err(why) => {
                    tracing::warn!(error = %why, "kernel notifications failed; drift is repaired only by the periodic comparison");
                    return;
                }
            };
            if result.is_err() {
                return;
            }
        }
    };
    let builder = std::thread::Builder::new().name("knit-notices".to_owned());
    let spawned = builder.spawn(listen);
    spawned.map_err(|source| Error::File { path: "thread knit-notices".to_owned(), source }).map(drop)
}

impl EventLoop<'_> {
    /// Compares the owners of links that are gone, except units with a change in flight.
    pub(super) fn kernel_notification(&mut self, notice: &LinkNotification) -> Result<()> {
        let LinkNotification::Removed(names) = notice else {
            self.resync_at = self.resync_at.min(Instant::now() + EARLY_RESYNC_DELAY);
            return Ok(());
        };
        let state = self.node.state();
        let holders = names.iter().filter_map(|name| state.units.holder(name));
        let units: BTreeSet<Unit> = holders.filter(|unit| !state.is_in_flight(unit)).cloned().collect();
        if units.is_empty() {
            return Ok(());
        }
        self.unit_log.compared.extend(units.iter().cloned());
        self.handle(Event::ResyncUnits(units))
    }
}
