//! The kernel's notices about links of the host that go away.

use std::collections::BTreeSet;
use std::time::Duration;

use knit_model::IfName;

use crate::error::{Error, Result};
use crate::netlink::constants::{IFLA_IFNAME, RTM_DELLINK, RTNLGRP_LINK};
use crate::netlink::header::LinkHeader;
use crate::netlink::{Header, Protocol, Socket};
use crate::netns::Netns;

/// What the kernel told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// These links were deleted, or left their bridge.
    Gone(BTreeSet<IfName>),
    /// More happened than could be heard: anything may have changed.
    Lost,
}

/// A listener.
#[derive(Debug)]
pub struct Notices {
    socket: Socket,
}

impl Notices {
    /// Listens in a network namespace, from now on.
    pub fn open(netns: &Netns) -> Result<Self> {
        let socket = Socket::open_in(netns, Protocol::Route)?;
        socket.subscribe(RTNLGRP_LINK)?;
        Ok(Self { socket })
    }

    /// Waits until something went away; what follows within `gather` is told along with it. `None`: nothing did in time.
    pub fn wait(&mut self, wait: Duration, gather: Duration) -> Result<Option<Notice>> {
        let mut gone = BTreeSet::new();
        let first = self.read(wait, &mut gone);
        if matches!(first, Ok(true)) {
            std::thread::sleep(gather);
        }
        let mut heard = first;
        while matches!(heard, Ok(true)) {
            heard = self.read(Duration::ZERO, &mut gone);
        }
        match heard {
            Err(Error::Overrun { .. }) => Ok(Some(Notice::Lost)),
            Err(error) => Err(error),
            Ok(_) => Ok((!gone.is_empty()).then_some(Notice::Gone(gone))),
        }
    }

    fn read(&mut self, wait: Duration, gone: &mut BTreeSet<IfName>) -> Result<bool> {
        self.socket.recv_event(wait, |kind, body| {
            if kind != RTM_DELLINK {
                return;
            }
            let name =
                LinkHeader::split(body).and_then(|(_, attributes)| attributes.first(IFLA_IFNAME)?.str());
            gone.extend(name.and_then(|name| IfName::new(name).ok()));
        })
    }
}
