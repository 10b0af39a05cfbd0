//! Netlink notifications about links that are removed on the host.

use std::collections::BTreeSet;
use std::time::Duration;

use knit_model::IfName;

use crate::error::{Error, Result};
use crate::netlink::constants::{IFLA_IFNAME, RTM_DELLINK, RTNLGRP_LINK};
use crate::netlink::header::LinkHeader;
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
