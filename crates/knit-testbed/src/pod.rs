//! A namespace with a process in it: what a pod's sandbox looks like from the node.

use std::ops::Deref;
use std::time::Duration;

use crate::holders::{Identity, command_line};
use crate::process::Process;
use crate::{Namespace, eventually};

/// A namespace held by a long-lived process whose pid is known. Everything a [`Namespace`] does, it does.
#[derive(Clone, Debug)]
pub struct Pod {
    namespace: Namespace,
    holder: Process,
}

impl Pod {
    #[track_caller]
    pub(crate) fn new(namespace: Namespace) -> Self {
        let holder = namespace.spawn(namespace.command("sleep").arg("infinity"));
        // Until nsenter has entered and become `sleep`, the pid would show the machine's namespace.
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

    /// The pid of the process that lives in the pod.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// The process itself, for a test that ends it early.
    pub fn holder(&self) -> &Process {
        &self.holder
    }

    /// The namespace alone.
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
