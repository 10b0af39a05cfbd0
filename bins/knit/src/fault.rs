//! A crash or a refusal at a chosen moment, for tests: `KNIT_FAULT_KILL_AT=3` has knit kill itself after three steps of its
//! plans, before the next one; `KNIT_FAULT_FAIL_AT=3:EBUSY` has the kernel refuse that step, once. Only debug builds know
//! them.

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

    if let Ok(text) = std::env::var("KNIT_FAULT_FAIL_AT") {
        let fault = armed::FailAt::parse(&text);
        let fault = fault.with_context(|| format!("KNIT_FAULT_FAIL_AT: `{text}` is no step and errno"))?;
        return Ok(Some(Box::new(fault)));
    }
    let Ok(number) = std::env::var("KNIT_FAULT_KILL_AT") else { return Ok(None) };
    let left = number.parse().with_context(|| format!("KNIT_FAULT_KILL_AT: `{number}` is no number"))?;
    Ok(Some(Box::new(armed::KillAt { left })))
}

#[cfg(debug_assertions)]
mod armed {
    use knit_kernel::fault::{Fault, Observer};
    use knit_model::plan::Planned;
    use nix::errno::Errno;
    use nix::sys::signal::{Signal, raise};

    /// Has the kernel refuse a step, once.
    pub(super) struct FailAt {
        /// How many steps are still carried out; `None` when it was refused.
        left: Option<usize>,
        errno: Errno,
    }

    impl FailAt {
        /// `3:EBUSY`.
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (number, name) = text.split_once(':')?;
            let known = [Errno::EBUSY, Errno::EEXIST, Errno::ENOBUFS, Errno::ENODEV];
            let errno = known.into_iter().find(|errno| format!("{errno:?}") == name)?;
            Some(Self { left: Some(number.parse().ok()?), errno })
        }
    }

    impl Observer for FailAt {
        fn before(&mut self, _step: usize, _planned: &Planned) -> Option<Fault> {
            let left = self.left?;
            self.left = left.checked_sub(1);
            (left == 0).then_some(Fault::Fail(self.errno))
        }
    }

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
