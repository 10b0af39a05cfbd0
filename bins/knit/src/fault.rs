//! A crash or a refusal at a chosen moment, for tests: `KNIT_FAULT_KILL_AT=3` has knit kill itself after three steps of its
//! plans, before the next one; `KNIT_FAULT_FAIL_AT=3:EBUSY` has the kernel refuse that step, once;
//! `KNIT_FAULT_KILL_AT_MOMENT=3` has knit kill itself after three other moments: records that are written and extensions
//! that are called. `KNIT_FAULT_SLOW=net1:3000` has the kernel take three seconds before it makes a link `net1`. Only debug
//! builds know them.

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
    if let Ok(text) = std::env::var("KNIT_FAULT_SLOW") {
        let fault = armed::Slow::parse(&text);
        let fault =
            fault.with_context(|| format!("KNIT_FAULT_SLOW: `{text}` is no link and milliseconds"))?;
        return Ok(Some(Box::new(fault)));
    }
    let asked = |name: &str| {
        let number = std::env::var(name).ok();
        let parsed = number.map(|number| {
            number.parse::<usize>().with_context(|| format!("{name}: `{number}` is no number"))
        });
        parsed.transpose()
    };
    let (steps, moments) = (asked("KNIT_FAULT_KILL_AT")?, asked("KNIT_FAULT_KILL_AT_MOMENT")?);
    if steps.is_none() && moments.is_none() {
        return Ok(None);
    }
    Ok(Some(Box::new(armed::KillAt { steps, moments })))
}

#[cfg(debug_assertions)]
mod armed {
    use std::time::Duration;

    use knit_kernel::fault::{Fault, Observer};
    use knit_model::Step;
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

    /// Takes a while before a link is made.
    pub(super) struct Slow {
        link: String,
        takes: Duration,
    }

    impl Slow {
        /// `net1:3000`.
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (link, millis) = text.split_once(':')?;
            Some(Self { link: link.to_owned(), takes: Duration::from_millis(millis.parse().ok()?) })
        }
    }

    impl Observer for Slow {
        fn before(&mut self, _step: usize, planned: &Planned) -> Option<Fault> {
            if matches!(&planned.step, Step::CreateLink { link, .. } if link.name.as_str() == self.link) {
                std::thread::sleep(self.takes);
            }
            None
        }
    }

    /// Kills this process before a step.
    pub(super) struct KillAt {
        /// How many steps are still carried out.
        pub(super) steps: Option<usize>,
        /// How many other moments still pass.
        pub(super) moments: Option<usize>,
    }

    fn pass(left: &mut Option<usize>) {
        let Some(left) = left else { return };
        if *left == 0 {
            // Nobody survives this signal, so nothing follows it.
            let _ = raise(Signal::SIGKILL);
        }
        *left -= 1;
    }

    impl Observer for KillAt {
        fn before(&mut self, _step: usize, _planned: &Planned) -> Option<Fault> {
            pass(&mut self.steps);
            None
        }

        fn moment(&mut self, _what: &'static str) {
            pass(&mut self.moments);
        }
    }
}
