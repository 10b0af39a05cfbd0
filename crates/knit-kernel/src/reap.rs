//! Deleting links that were cut off, all of a scope by one message.
//!
//! A link that is cut off is down, has neither its name nor its mark any more, and is in a group of Knit's own
//! ([`knit_model::marks::REAP_GROUP`]), which is its mark until it is gone.

use std::collections::BTreeSet;

use knit_model::Scope;

use crate::apply::delete_group;
use crate::error::Result;
use crate::kernel::{Kernel, Places, Room, absent_is_none, recovered};

impl Kernel {
    /// Deletes what was cut off in these scopes. Where nothing waits, nothing happens.
    ///
    /// The host's scope is enough for pairs with an end there. Also called at start, for what a crash left.
    pub fn reap(&mut self, scopes: &BTreeSet<Scope>, places: &mut Places) -> Result<()> {
        for scope in scopes {
            let mut room = Room { kernel: self, places };
            let outcome = room.socket(scope).and_then(|socket| socket.request(delete_group(scope)));
            recovered(absent_is_none(outcome), self, places)?;
        }
        Ok(())
    }
}
