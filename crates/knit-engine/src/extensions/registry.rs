//! Who may register, change and remove an extension.

use knit_ipam::Time;
use knit_model::problem::{Problem, Reason};

use crate::call::{Answer, CallId};
use crate::event::Record;
use crate::extension::{ExtensionSpec, Registered};
use crate::state::State;
use crate::step::Effects;

/// So many extensions a node has at most.
const MOST: usize = 64;

/// Someone wants an extension to be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The call.
    pub call: CallId,
    /// The extension.
    pub spec: ExtensionSpec,
    /// The digest of the token that was shown, if one was.
    pub shown: Option<String>,
    /// The digest of a new token, for a registration that has none yet.
    pub fresh: String,
    /// An admin's word goes before a token.
    pub admin: bool,
}

/// Someone wants an extension to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// The call.
    pub call: CallId,
    /// The extension.
    pub name: String,
    /// The digest of the token that was shown, if one was.
    pub shown: Option<String>,
    /// An admin's word goes before a token.
    pub admin: bool,
}

/// A new extension, a new generation of one, or one that is as it is already. The old generation is replaced in the same
/// moment: an attach sees one of them.
pub(crate) fn register(state: &mut State, asked: Registration, now: Time, effects: &mut Effects) {
    let Registration { call, spec, shown, fresh, admin } = asked;
    let extensions = &state.extensions;
    let old = extensions.get(&spec.name).cloned();
    if old.is_none() && extensions.registered.len() >= MOST {
        let message = format!("{MOST} extensions are registered: remove one first");
        return refuse(&call, "extension.name", Reason::Busy, message, effects);
    }
    let (mut digest, mut new_token) = (fresh, true);
    if let Some(old) = old {
        let proven = shown.as_ref() == Some(&old.digest);
        if old.spec == spec && (shown.is_none() || proven) && !admin {
            // Asked again, by one that came back and may have lost its token.
            let (name, generation) = (spec.name, old.generation);
            let answer = Answer::Registered { name, generation, new_token: false, changed: false };
            return effects.answer(&call, answer);
        }
        if !proven && !admin {
            let message = format!(
                "extension {} is registered, as generation {}: show the token of that registration, or have an admin do it",
                spec.name, old.generation
            );
            return refuse(&call, "token", Reason::NotAllowed, message, effects);
        }
        if proven {
            (digest, new_token) = (old.digest, false);
        }
    }
    let generation = extensions.generation + 1;
    let name = spec.name.clone();
    let one = Registered { spec, generation, digest, since: now };
    effects.record(state, Record::ExtensionRegistered(Box::new(one)));
    effects.answer(&call, Answer::Registered { name, generation, new_token, changed: true });
}

/// Removing what is not there succeeds.
pub(crate) fn remove(state: &mut State, asked: Removal, effects: &mut Effects) {
    let Removal { call, name, shown, admin } = asked;
    let Some(old) = state.extensions.get(&name) else {
        return effects.answer(&call, Answer::Removed { was_there: false });
    };
    if shown.as_ref() != Some(&old.digest) && !admin {
        let message =
            format!("extension {name} is removed by who shows the token of its registration, or by an admin");
        return refuse(&call, "token", Reason::NotAllowed, message, effects);
    }
    effects.record(state, Record::ExtensionRemoved { name, call: call.clone() });
    effects.answer(&call, Answer::Removed { was_there: true });
}

fn refuse(call: &CallId, field: &str, reason: Reason, message: String, effects: &mut Effects) {
    effects.answer(call, Answer::Failed(Problem { field: field.to_owned(), reason, message }));
}
