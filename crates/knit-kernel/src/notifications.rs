//! Netlink notifications about links that are removed on the host, and about changes of Knit's nftables tables by others.

use std::collections::BTreeSet;
use std::time::Duration;

use knit_model::IfName;
use knit_model::filter::TABLE;

use crate::error::{Error, Result};
use crate::netlink::constants::{IFLA_IFNAME, NFNL_SUBSYS_NFTABLES, RTM_DELLINK, RTNLGRP_LINK};
use crate::netlink::header::{LinkHeader, NetfilterHeader};
use crate::netlink::{Header, Protocol, Socket};
use crate::netns::Netns;

/// A change that the kernel reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkNotification {
    /// These links were deleted, or left their bridge.
    Removed(BTreeSet<IfName>),
    /// Notifications were lost: anything may have changed.
    Overrun,
}

/// A subscription to link notifications.
#[derive(Debug)]
pub struct LinkNotifications {
    socket: Socket,
}

impl LinkNotifications {
    /// Subscribes in a network namespace.
    pub fn open(netns: &Netns) -> Result<Self> {
        let socket = Socket::open_in(netns, Protocol::Route)?;
        socket.subscribe(RTNLGRP_LINK)?;
        Ok(Self { socket })
    }

    /// Waits for removed links; those removed within `gather` after the first are reported together. `None`: no
    /// removal before the timeout.
    pub fn wait(&mut self, wait: Duration, gather: Duration) -> Result<Option<LinkNotification>> {
        let mut removed = BTreeSet::new();
        let first = self.read(wait, &mut removed);
        if matches!(first, Ok(true)) {
            std::thread::sleep(gather);
        }
        let mut received = first;
        while matches!(received, Ok(true)) {
            received = self.read(Duration::ZERO, &mut removed);
        }
        match received {
            Err(Error::Overrun { .. }) => Ok(Some(LinkNotification::Overrun)),
            Err(error) => Err(error),
            Ok(_) => Ok((!removed.is_empty()).then_some(LinkNotification::Removed(removed))),
        }
    }

    fn read(&mut self, wait: Duration, removed: &mut BTreeSet<IfName>) -> Result<bool> {
        self.socket.recv_notification(wait, |kind, body| {
            if kind != RTM_DELLINK {
                return;
            }
            let name =
                LinkHeader::split(body).and_then(|(_, attributes)| attributes.first(IFLA_IFNAME)?.str());
            removed.extend(name.and_then(|name| IfName::new(name).ok()));
        })
    }
}

/// The group of nftables notifications (`NFNLGRP_NFTABLES`).
const NFTABLES_GROUP: u32 = 7;
/// The message that ends the notifications of a transaction, and the name of the thread that sent it.
const NFT_MSG_NEWGEN: u16 = 15;
const NFTA_GEN_PROC_NAME: u16 = 3;
/// The name of the table has the same number in all messages.
const NFTA_TABLE_NAME: u16 = 1;

/// A subscription to changes of Knit's nftables tables by other programs.
#[derive(Debug)]
pub struct FilterNotifications {
    socket: Socket,
    /// Names of Knit's own threads start with this.
    own_threads: &'static str,
    /// Whether the current transaction is about one of Knit's tables.
    is_about_knit: bool,
}

impl FilterNotifications {
    /// Subscribes in a network namespace. Transactions of threads whose names start with `own_threads` are not reported.
    pub fn open(netns: &Netns, own_threads: &'static str) -> Result<Self> {
        let socket = Socket::open_in(netns, Protocol::Netfilter)?;
        socket.subscribe(NFTABLES_GROUP)?;
        Ok(Self { socket, own_threads, is_about_knit: false })
    }

    /// Waits for a change. True: another program changed Knit's tables, or notifications were lost.
    pub fn wait(&mut self, wait: Duration) -> Result<bool> {
        let mut is_changed = false;
        let (own_threads, mut is_about_knit) = (self.own_threads, self.is_about_knit);
        let mut received = Ok(true);
        let mut wait = wait;
        while matches!(received, Ok(true)) && !is_changed {
            received = self.socket.recv_notification(wait, |kind, body| {
                let Some((_, attributes)) = NetfilterHeader::split(body) else { return };
                let text = |kind: u16| attributes.first(kind).and_then(|attribute| attribute.str());
                if kind == NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWGEN {
                    let is_own = text(NFTA_GEN_PROC_NAME).is_some_and(|name| name.starts_with(own_threads));
                    is_changed |= is_about_knit && !is_own;
                    is_about_knit = false;
                } else if kind >> 8 == NFNL_SUBSYS_NFTABLES {
                    is_about_knit |= text(NFTA_TABLE_NAME) == Some(TABLE);
                }
            });
            wait = Duration::ZERO;
        }
        self.is_about_knit = is_about_knit;
        match received {
            Err(Error::Overrun { .. }) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(is_changed),
        }
    }
}
