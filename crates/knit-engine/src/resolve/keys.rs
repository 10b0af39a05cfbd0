//! Secret keys: the engine knows only their references and public keys.

use std::collections::BTreeSet;

use knit_model::link::{Link, OwnerId};
use knit_model::problem::Reason;
use knit_model::{IfName, KeyRef, NetState, Scope, sysctl};

use super::{Resolved, node_routes};
use crate::event::{KeyError, PublicKeys};

/// Names generated keys after their attachment, and adds all keys of a link to the observation.
pub(super) fn name_generated(link: &mut Link, owner: &OwnerId, keys: &mut BTreeSet<KeyRef>) {
    for secret in link.kind.secret_keys() {
        if let Some(KeyRef::Generated { id }) = &mut secret.source {
            id.clone_from(&owner.0);
        }
        keys.extend(secret.source.clone());
    }
}

/// The details of a link's kind for the status.
pub(super) fn shown(link: &Link) -> Vec<(String, String)> {
    link.kind.details().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Fills in the observed public keys. A link without its key is not created; an existing one stays as it is.
pub(crate) fn fill(resolved: &mut Resolved, keys: &PublicKeys, observed: &NetState) {
    let mut unmakeable: Vec<(Scope, IfName)> = Vec::new();
    let mut missing: Vec<(IfName, KeyError)> = Vec::new();
    for (scope, state) in &mut resolved.desired.state.scopes {
        for (name, link) in &mut state.links {
            for secret in link.kind.secret_keys() {
                let Some(from) = &secret.source else { continue };
                let found = keys.get(from).cloned().unwrap_or_else(|| Err(key_not_found(from)));
                secret.public = found.as_ref().ok().copied();
                // A generated key is missing only during a dry run.
                if let (Err(no_key), KeyRef::Secret { .. }) = (found, from) {
                    missing.push((name.clone(), no_key));
                    if observed.link(scope, name).is_none() {
                        unmakeable.push((scope.clone(), name.clone()));
                    }
                }
            }
            let interfaces = resolved.unit_state.interfaces.iter_mut().map(|(_, interface)| interface);
            for interface in interfaces.filter(|interface| interface.name == *name && scope != &Scope::Host) {
                interface.details = shown(link);
            }
        }
    }
    node_routes::set_public_key(resolved);
    for (scope, name) in unmakeable {
        remove_link(resolved, &scope, &name);
    }
    for (name, no_key) in missing {
        attribute_missing_key(resolved, &name, &no_key);
    }
}

fn key_not_found(key: &KeyRef) -> KeyError {
    KeyError { reason: Reason::NotFound, message: format!("{key} does not exist") }
}

/// Removes a link from the desired state, with everything that depends on it.
fn remove_link(resolved: &mut Resolved, scope: &Scope, name: &IfName) {
    let state = resolved.desired.state.scope(scope);
    state.links.remove(name);
    state.addresses.retain(|_, address| address.link != *name);
    state.routes.retain(|_, route| route.via.iter().all(|hop| hop.link != *name));
    state.neighbours.retain(|_, neighbour| neighbour.link != *name);
    state.sysctls.retain(|path, _| sysctl::link_of(path) != Some(name.as_str()));
}

fn attribute_missing_key(resolved: &mut Resolved, name: &IfName, no_key: &KeyError) {
    let mut objects = BTreeSet::new();
    let interfaces =
        resolved.unit_state.interfaces.iter_mut().filter(|(_, interface)| interface.name == *name);
    for (object, interface) in interfaces {
        interface.ready = false;
        objects.insert((object.clone(), interface.field.clone()));
    }
    for (object, field) in objects {
        let message = format!("interface {name}: {}", no_key.message);
        resolved.problem(&object, field, no_key.reason, message);
    }
}
