//! Kernel notifications: a host link that is deleted or removed from its bridge by others, and a change of Knit's tables of the packet
//! filter by others, is repaired at once instead of at the next full comparison.
//!
//! Knit renames its own links before it deletes them, so a notification with the name of an owned link means that someone else deleted
//! it.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use knit_engine::{Event, Unit};
use knit_kernel::Netns;
use knit_kernel::notifications::{FilterNotifications, LinkNotification, LinkNotifications};

use super::super::Message;
use super::{Channels, EventLoop};
use crate::error::{Error, Result};

/// How often the listener checks whether the loop still runs.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Notifications come in bursts: the listener collects them this long before it wakes up.
const BATCH_DELAY: Duration = Duration::from_millis(100);

/// Names of Knit's threads that change the kernel start with this.
const OWN_THREADS: &str = "knit-";

/// Starts threads that listen for kernel notifications. They end with the loop.
pub(super) fn start(channels: &Channels) -> Result<()> {
    let host = Netns::current()?;
    let mut links = LinkNotifications::open(&host)?;
    listen(channels, "links", move || Ok(links.wait(HEARTBEAT, BATCH_DELAY)?.map(Message::Kernel)))?;
    match FilterNotifications::open(&host, OWN_THREADS) {
        Ok(mut filter) => {
            listen(channels, "filter", move || Ok(filter.wait(HEARTBEAT)?.then_some(Message::FilterChanged)))
        }
        Err(why) => {
            tracing::warn!(error = %why, "no notifications of the packet filter; drift is repaired only by the periodic comparison");
            Ok(())
        }
    }
}

/// Runs `wait` again and again on a thread of its own, and sends what it returns.
fn listen(
    channels: &Channels,
    name: &str,
    mut wait: impl FnMut() -> std::result::Result<Option<Message>, knit_kernel::Error> + Send + 'static,
) -> Result<()> {
    let (sender, alive): (_, Weak<_>) = (channels.sender.clone(), Arc::downgrade(&channels.metrics));
    let listen = move || {
        while alive.strong_count() > 0 {
            let result = match wait() {
                Ok(Some(message)) => sender.send(message),
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
    let name = format!("{OWN_THREADS}{name}");
    let spawned = std::thread::Builder::new().name(name.clone()).spawn(listen);
    spawned.map_err(|source| Error::File { path: format!("thread {name}"), source }).map(drop)
}

impl EventLoop<'_> {
    /// Compares the tables of the packet filter and the elements of all units, and restores what is missing.
    pub(super) fn filter_changed(&mut self) -> Result<()> {
        self.unit_log.compared.insert(Unit::PacketFilter);
        self.handle(Event::PacketFilterChanged)
    }

    /// Compares the owners of links that are gone, except units with a change in flight.
    pub(super) fn kernel_notification(&mut self, notice: &LinkNotification) -> Result<()> {
        let LinkNotification::Removed(names) = notice else {
            self.resync_soon();
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
