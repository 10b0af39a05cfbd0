//! Secret keys: the engine knows where each comes from, and learns which public key belongs to it.

use std::collections::BTreeSet;

use knit_model::link::{Link, OwnerId};
use knit_model::problem::Reason;
use knit_model::{IfName, KeyRef, NetState, Scope};

use super::{Resolved, ways};
use crate::event::{Keys, NoKey};

/// Gives keys that are made on the node the name of their attachment, and has all keys of a link looked at.
pub(super) fn name_made(link: &mut Link, owner: &OwnerId, look: &mut BTreeSet<KeyRef>) {
    for secret in link.kind.secrets() {
        if let Some(KeyRef::Made { id }) = &mut secret.from {
            id.clone_from(&owner.0);
        }
        look.extend(secret.from.clone());
    }
}

/// What a status shows of a link's kind.
pub(super) fn shown(link: &Link) -> Vec<(String, String)> {
    link.kind.shown().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// States the public keys that were found. A link whose key is not there is not made; if it stands, it stays as it is.
pub(crate) fn fill(resolved: &mut Resolved, keys: &Keys, seen: &NetState) {
    let mut unmakeable: Vec<(Scope, IfName)> = Vec::new();
    let mut missing: Vec<(IfName, NoKey)> = Vec::new();
    for (scope, state) in &mut resolved.desired.state.scopes {
        for (name, link) in &mut state.links {
            for secret in link.kind.secrets() {
                let Some(from) = &secret.from else { continue };
                let found = keys.get(from).cloned().unwrap_or_else(|| Err(not_there(from)));
                secret.public = found.as_ref().ok().copied();
                // A key that is to be made on the node is only missing while a change is rehearsed.
                if let (Err(no_key), KeyRef::Secret { .. }) = (found, from) {
                    missing.push((name.clone(), no_key));
                    if seen.link(scope, name).is_none() {
                        unmakeable.push((scope.clone(), name.clone()));
                    }
                }
            }
            let interfaces = resolved.made.interfaces.iter_mut().map(|(_, interface)| interface);
            for interface in interfaces.filter(|interface| interface.name == *name && scope != &Scope::Host) {
                interface.shown = shown(link);
            }
        }
    }
    ways::know(resolved);
    for (scope, name) in unmakeable {
        leave_out(resolved, &scope, &name);
    }
    for (name, no_key) in missing {
        blame(resolved, &name, &no_key);
    }
}

fn not_there(key: &KeyRef) -> NoKey {
    NoKey { reason: Reason::NotFound, why: format!("{key} is not there") }
}

/// Takes a link out of desired, with all that hangs on it.
fn leave_out(resolved: &mut Resolved, scope: &Scope, name: &IfName) {
    let state = resolved.desired.state.scope(scope);
    state.links.remove(name);
    state.addresses.retain(|_, address| address.link != *name);
    state.routes.retain(|_, route| route.via.iter().all(|hop| hop.link != *name));
    state.neighbours.retain(|_, neighbour| neighbour.link != *name);
    let of_link = format!("/conf/{name}/");
    state.sysctls.retain(|key, _| !key.contains(&of_link));
}

fn blame(resolved: &mut Resolved, name: &IfName, no_key: &NoKey) {
    let mut objects = BTreeSet::new();
    let interfaces = resolved.made.interfaces.iter_mut().filter(|(_, interface)| interface.name == *name);
    for (object, interface) in interfaces {
        interface.ready = false;
        objects.insert((object.clone(), interface.field.clone()));
    }
    for (object, field) in objects {
        let message = format!("interface {name}: {}", no_key.why);
        resolved.problem(&object, field, no_key.reason, message);
    }
}
