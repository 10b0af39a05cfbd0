//! Finds the sandbox of a process by its network namespace.

use knit_kernel::Netns;
use knit_model::sandbox::SandboxInstance;

use crate::sandboxes::instance_of;

/// The network namespace of a process.
pub(crate) enum ProcessNetns {
    /// That of a sandbox.
    Sandbox(SandboxInstance),
    /// That of the host.
    Host,
}

/// Finds the network namespace of a process, on a blocking thread because it enters the namespace. `None` if the process is gone.
pub(crate) async fn find(pid: u32) -> Option<ProcessNetns> {
    let found = tokio::task::spawn_blocking(move || {
        let netns = Netns::of_process(pid)?;
        if netns.is_same(&Netns::current()?)? {
            return Ok(ProcessNetns::Host);
        }
        instance_of(&netns).map(ProcessNetns::Sandbox)
    });
    match found.await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(why)) => {
            tracing::debug!(pid, error = %why, "cannot inspect the network namespace of the process");
            None
        }
        Err(_) => None,
    }
}
