//! Deferred deletion: deletes all detached links of a scope with one message.
//!
//! A detached link is down, has lost its name and its ownership mark, and is in a link group of Knit's
//! ([`knit_model::kernel_ids::DEFERRED_DELETE_GROUP`]), which identifies it until it is deleted.

use std::collections::BTreeSet;

use knit_model::Scope;

use crate::apply::delete_group;
use crate::error::Result;
use crate::kernel::{Kernel, SandboxNamespaces, Session, absent_is_none, reset_sockets_on_error};

impl Kernel {
    /// Deletes the detached links of these scopes. Does nothing where there are none.
    ///
    /// For pairs with an end on the host, the host's scope is enough. Also called at start, for links that a crash
    /// left behind.
    pub fn delete_deferred(
        &mut self,
        scopes: &BTreeSet<Scope>,
        namespaces: &mut SandboxNamespaces,
    ) -> Result<()> {
        for scope in scopes {
            let mut session = Session { kernel: self, namespaces };
            let outcome = session.socket(scope).and_then(|socket| socket.request(delete_group(scope)));
            reset_sockets_on_error(absent_is_none(outcome), self, namespaces)?;
        }
        Ok(())
    }
}
