//! Registration, update and removal of extensions, with their authorisation.

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};
use serde::{Deserialize, Serialize};

use crate::call::{CallId, CallResult};
use crate::event::Record;
use crate::extension::{ExtensionSpec, RegisteredExtension};
use crate::state::State;
use crate::step::Effects;

/// How many extensions a node can have.
const MAX_EXTENSIONS: usize = 64;

/// A request to register an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionRegistration {
    /// The call.
    pub call: CallId,
    /// The extension.
    pub spec: ExtensionSpec,
    /// The digest of the presented token, if any.
    pub token_digest: Option<String>,
    /// The digest of a new token, for a first registration.
    pub new_token_digest: String,
    /// Whether an admin requests it: no token is necessary.
    pub admin: bool,
}

/// A request to remove an extension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtensionRemoval {
    /// The call.
    pub call: CallId,
    /// The extension.
    pub name: String,
    /// The digest of the presented token, if any.
    pub token_digest: Option<String>,
    /// Whether an admin requests it: no token is necessary.
    pub admin: bool,
}

/// Registers a new extension or a new generation; an unchanged registration is a no-op. Generations are replaced
/// atomically: an attach sees only one of them.
pub(crate) fn register(state: &mut State, request: ExtensionRegistration, now: Time, effects: &mut Effects) {
    let ExtensionRegistration { call, spec, token_digest, new_token_digest, admin } = request;
    let extensions = &state.extensions;
    let old = extensions.get(&spec.name).cloned();
    if old.is_none() && extensions.registered.len() >= MAX_EXTENSIONS {
        let message = format!("{MAX_EXTENSIONS} extensions are registered: remove one first");
        return reject(&call, "extension.name", Reason::Busy, message, effects);
    }
    let (mut digest, mut new_token) = (new_token_digest, true);
    if let Some(old) = old {
        let proven = token_digest.as_ref() == Some(&old.digest);
        if old.spec == spec && (token_digest.is_none() || proven) && !admin {
            // A restarted extension may have lost its token.
            let (name, generation) = (spec.name, old.generation);
            let result = CallResult::Registered { name, generation, new_token: false, changed: false };
            return effects.respond(&call, result);
        }
        if !proven && !admin {
            let message = format!(
                "extension {} is registered, as generation {}: present its token, or ask an admin",
                spec.name, old.generation
            );
            return reject(&call, "token", Reason::NotAllowed, message, effects);
        }
        if proven {
            (digest, new_token) = (old.digest, false);
        }
    }
    let generation = extensions.generation + 1;
    let name = spec.name.clone();
    let one = RegisteredExtension { spec, generation, digest, since: now };
    effects.record(state, Record::ExtensionRegistered(Box::new(one)));
    effects.respond(&call, CallResult::Registered { name, generation, new_token, changed: true });
}

/// Removing an unknown extension succeeds.
pub(crate) fn remove(state: &mut State, request: ExtensionRemoval, effects: &mut Effects) {
    let ExtensionRemoval { call, name, token_digest, admin } = request;
    let Some(old) = state.extensions.get(&name) else {
        return effects.respond(&call, CallResult::Removed { was_there: false });
    };
    if token_digest.as_ref() != Some(&old.digest) && !admin {
        let message = format!("removing extension {name} requires its token or an admin");
        return reject(&call, "token", Reason::NotAllowed, message, effects);
    }
    effects.record(state, Record::ExtensionRemoved { name, call: call.clone() });
    effects.respond(&call, CallResult::Removed { was_there: true });
}

fn reject(call: &CallId, field: &str, reason: Reason, message: String, effects: &mut Effects) {
    effects.respond(call, CallResult::Failed(Problem::new(field.to_owned(), reason, message)));
}
