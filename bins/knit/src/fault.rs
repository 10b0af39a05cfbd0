//! A crash at a chosen moment, for tests: `KNIT_FAULT_KILL_AT=3` has knit kill itself after three steps of its plans,
//! before the next one. Only debug builds know it.

use anyhow::Result;
use knit_agent::Standalone;

/// Arms the fault point, if one was asked for.
#[cfg(not(debug_assertions))]
pub fn arm(_node: &mut Standalone) -> Result<()> {
    Ok(())
}

/// Arms the fault point, if one was asked for.
#[cfg(debug_assertions)]
pub fn arm(node: &mut Standalone) -> Result<()> {
    use anyhow::Context;

    if let Ok(number) = std::env::var("KNIT_FAULT_KILL_AT") {
        let left = number.parse().with_context(|| format!("KNIT_FAULT_KILL_AT: `{number}` is no number"))?;
        node.node().set_faults(Box::new(armed::KillAt { left }));
    }
    Ok(())
}

#[cfg(debug_assertions)]
mod armed {
    use knit_kernel::fault::{Fault, Observer};
    use knit_model::plan::Planned;
    use nix::sys::signal::{Signal, raise};

    /// Kills this process before a step.
    pub(super) struct KillAt {
        /// How many steps are still carried out.
        pub(super) left: usize,
    }

    impl Observer for KillAt {
        fn before(&mut self, _step: usize, _planned: &Planned) -> Option<Fault> {
            if self.left == 0 {
                // Nobody survives this signal, so nothing follows it.
                let _ = raise(Signal::SIGKILL);
            }
            self.left -= 1;
            None
        }
    }
}
