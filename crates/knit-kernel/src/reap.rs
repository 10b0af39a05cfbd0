//! Deleting links that were cut off, all of a scope by one message.
//!
//! A link that is cut off is down, has neither its name nor its mark any more, and is in a group of Knit's own
//! ([`knit_model::marks::REAP_GROUP`]), which is its mark until it is gone.

use std::collections::BTreeSet;

use knit_model::Scope;

use crate::apply::delete_group;
use crate::error::Result;
use crate::kernel::{Kernel, Places, Room, absent_is_none};

impl Kernel {
    /// Deletes what was cut off in these scopes. Where nothing waits, nothing happens.
    ///
    /// The host's scope is enough for pairs with an end there. Also called at start, for what a crash left.
    pub fn reap(&mut self, scopes: &BTreeSet<Scope>, places: &mut Places) -> Result<()> {
        let mut room = Room { kernel: self, places };
        for scope in scopes {
            absent_is_none(room.socket(scope)?.request(delete_group(scope)))?;
        }
        Ok(())
    }
}
