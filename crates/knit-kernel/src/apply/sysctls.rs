//! Writes sysctls inside the network namespace.

use std::fs::File;
use std::io::{self, Write as _};

use knit_model::Scope;

use super::transaction::Failure;
use crate::error::{Error, Result};
use crate::kernel::{Kernel, SandboxNamespaces, Session};
use crate::observe::sysctl_path;

/// A sysctl to write.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) step: usize,
    pub(super) key: String,
    pub(super) value: String,
}

impl Kernel {
    /// Writes a sysctl of the host outside of any plan. A sysctl that does not exist is skipped.
    pub fn write_host_sysctl(&mut self, key: &str, value: &str) -> Result<()> {
        let write = Write { step: 0, key: key.to_owned(), value: value.to_owned() };
        let mut session = Session { kernel: self, namespaces: &mut SandboxNamespaces::new() };
        self::write(&mut session, &Scope::Host, vec![write], true).1.map_err(|failure| failure.error)
    }
}

/// Writes values inside the namespace, up to the first error. Returns the steps that were applied.
pub(super) fn write(
    session: &mut Session<'_>,
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
    // The files that were written, and the first error.
    let inside = move || {
        let mut written = Vec::new();
        for (path, value) in &files {
            match write_one(path, value) {
                Err(error) if missing_is_fine && error.kind() == io::ErrorKind::NotFound => {
                    written.push(None)
                }
                Err(error) => return Ok((written, Some(error))),
                Ok(file) => written.push(Some(file)),
            }
        }
        Ok((written, None))
    };
    let fail = |index: usize, error: io::Error| {
        let write = &writes[index];
        let context = format!("sysctl {} of {scope}", write.key);
        let error = Error::system(context, "write it", error);
        Failure { step: write.step, error }
    };
    let steps = |count: usize| writes[..count].iter().map(|write| write.step).collect();
    let (written, refused) = match session.run_in_netns(scope, inside) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => return (Vec::new(), Err(fail(0, error))),
        Err(error) => return (Vec::new(), Err(Failure { step: writes[0].step, error })),
    };
    let done = written.len();
    for (write, file) in writes.iter().zip(written) {
        session.namespaces.sysctls.extend(file.map(|file| ((scope.clone(), write.key.clone()), file)));
    }
    (steps(done), refused.map_or(Ok(()), |error| Err(fail(done, error))))
}

fn write_one(path: &str, value: &str) -> io::Result<File> {
    let mut file = File::options().read(true).write(true).open(path)?;
    file.write_all(value.as_bytes())?;
    Ok(file)
}
