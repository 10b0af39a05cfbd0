//! Sysctls, written inside the namespace.

use std::fs;
use std::io;

use knit_model::Scope;

use super::transaction::Failure;
use crate::error::{Error, Result};
use crate::kernel::Room;
use crate::observe::sysctl_path;

/// One value to write.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) step: usize,
    pub(super) key: String,
    pub(super) value: String,
}

/// Writes values in one visit to the namespace, up to the first that is refused. Returns the steps that were done.
pub(super) fn write(
    room: &mut Room<'_>,
    scope: &Scope,
    writes: Vec<Write>,
    missing_is_fine: bool,
) -> (Vec<usize>, Result<(), Failure>) {
    let mut files = Vec::new();
    for write in &writes {
        match sysctl_path(&write.key) {
            Ok(path) => files.push((path, write.value.clone())),
            Err(error) => return (Vec::new(), Err(Failure { step: write.step, error })),
        }
    }
    // How many were written, and what the next one was refused with.
    let inside = move || {
        for (done, (path, value)) in files.iter().enumerate() {
            match fs::write(path, value) {
                Err(error) if missing_is_fine && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Ok((done, Some(error))),
                Ok(()) => {}
            }
        }
        Ok((files.len(), None))
    };
    let fail = |index: usize, error: io::Error| {
        let write = &writes[index];
        let context = format!("sysctl {} of {scope}", write.key);
        let error = Error::system(context, "write it", error);
        Failure { step: write.step, error }
    };
    let steps = |count: usize| writes[..count].iter().map(|write| write.step).collect();
    match room.visit(scope, inside) {
        Ok(Ok((done, None))) => (steps(done), Ok(())),
        Ok(Ok((done, Some(error)))) => (steps(done), Err(fail(done, error))),
        Ok(Err(error)) => (Vec::new(), Err(fail(0, error))),
        Err(error) => (Vec::new(), Err(Failure { step: writes[0].step, error })),
    }
}
