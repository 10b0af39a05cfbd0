//! Which life of a sandbox a process is in.

use knit_kernel::Netns;
use knit_model::sandbox::Instance;

use crate::sandboxes::instance_of;

/// Where a process is.
pub(crate) enum Visited {
    /// In a sandbox.
    Sandbox(Instance),
    /// In the node's own network.
    Host,
}

/// Looks at the network namespace of a process, on a thread of its own kind: it visits the namespace. `None` if the process
/// is gone.
pub(crate) async fn visit(pid: u32) -> Option<Visited> {
    let visited = tokio::task::spawn_blocking(move || {
        let netns = Netns::of_process(pid)?;
        if netns.is_same(&Netns::current()?)? {
            return Ok(Visited::Host);
        }
        instance_of(&netns).map(Visited::Sandbox)
    });
    match visited.await {
        Ok(Ok(visited)) => Some(visited),
        Ok(Err(why)) => {
            tracing::debug!(pid, %why, "the namespace of a sandbox could not be looked at");
            None
        }
        Err(_) => None,
    }
}
