//! A namespace with a process in it, like a pod sandbox.

use std::ops::Deref;
use std::time::Duration;

use crate::holders::{Identity, command_line};
use crate::process::Process;
use crate::{Namespace, eventually};

/// A namespace held by a long-lived process with a known PID. Dereferences to its [`Namespace`].
#[derive(Clone, Debug)]
pub struct Pod {
    namespace: Namespace,
    holder: Process,
}

impl Pod {
    #[track_caller]
    pub(crate) fn new(namespace: Namespace) -> Self {
        let holder = namespace.spawn(namespace.command("sleep").arg("infinity"));
        // Before nsenter has entered and executed `sleep`, the PID shows the machine's namespace.
        eventually(
            &format!("pod {}: its process is inside", namespace.name()),
            Duration::from_secs(10),
            || {
                let inside = Identity::of_process(holder.pid()) == Some(namespace.identity());
                inside && command_line(holder.pid()).starts_with("sleep")
            },
        );
        Self { namespace, holder }
    }

    /// The PID of the pod's process.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// The process itself, for a test that ends it early.
    pub fn holder(&self) -> &Process {
        &self.holder
    }

    /// The namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl Deref for Pod {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.namespace
    }
}
