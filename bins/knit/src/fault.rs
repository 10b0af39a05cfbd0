//! A crash at a chosen moment, for tests: `KNIT_FAULT_KILL_AT=3` has knit kill itself after three steps of its plans,
//! before the next one. Only debug builds know it.

use anyhow::Result;
use knit_agent::Standalone;
use knit_kernel::fault::Observer;

/// Arms the fault point, if one was asked for.
pub fn arm(node: &mut Standalone) -> Result<()> {
    if let Some(faults) = asked_for()? {
        node.node().set_faults(faults);
    }
    Ok(())
}

/// The fault point that was asked for.
#[cfg(not(debug_assertions))]
pub fn asked_for() -> Result<Option<Box<dyn Observer + Send>>> {
    Ok(None)
}

/// The fault point that was asked for.
#[cfg(debug_assertions)]
pub fn asked_for() -> Result<Option<Box<dyn Observer + Send>>> {
    use anyhow::Context;

    let Ok(number) = std::env::var("KNIT_FAULT_KILL_AT") else { return Ok(None) };
    let left = number.parse().with_context(|| format!("KNIT_FAULT_KILL_AT: `{number}` is no number"))?;
    Ok(Some(Box::new(armed::KillAt { left })))
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
