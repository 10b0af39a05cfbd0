//! Fault injection for tests, in debug builds only.
//!
//! - `KNIT_FAULT_KILL_AT=3`: the process kills itself after three plan steps, before the next one, which it prints.
//! - `KNIT_FAULT_FAIL_AT=3:EBUSY`: that step fails once with the errno.
//! - `KNIT_FAULT_KILL_AT_MOMENT=3`: the process kills itself after three other fault points: journal records that are
//!   written and extensions that are called.
//! - `KNIT_FAULT_SLOW=net1:3000`: creating the link `net1` takes three seconds.
//! - `KNIT_FAULT_NO_TABLE_OWNER=1`: nftables tables have no owner, as on a kernel before 6.9.

use anyhow::Result;
use knit_agent::Standalone;
use knit_kernel::fault::FaultInjector;

/// Sets up the fault from the environment, if any.
pub fn inject(node: &mut Standalone) -> Result<()> {
    if let Some(faults) = from_env()? {
        node.node().set_faults(faults);
    }
    Ok(())
}

/// The fault from the environment.
#[cfg(not(debug_assertions))]
pub fn from_env() -> Result<Option<Box<dyn FaultInjector + Send>>> {
    Ok(None)
}

/// The fault from the environment.
#[cfg(debug_assertions)]
pub fn from_env() -> Result<Option<Box<dyn FaultInjector + Send>>> {
    use anyhow::Context;

    if let Ok(text) = std::env::var("KNIT_FAULT_FAIL_AT") {
        let fault = faults::FailAt::parse(&text);
        let fault =
            fault.with_context(|| format!("KNIT_FAULT_FAIL_AT: expected STEP:ERRNO, not `{text}`"))?;
        return Ok(Some(Box::new(fault)));
    }
    if let Ok(text) = std::env::var("KNIT_FAULT_SLOW") {
        let fault = faults::SlowLink::parse(&text);
        let fault =
            fault.with_context(|| format!("KNIT_FAULT_SLOW: expected LINK:MILLISECONDS, not `{text}`"))?;
        return Ok(Some(Box::new(fault)));
    }
    if std::env::var_os("KNIT_FAULT_NO_TABLE_OWNER").is_some() {
        return Ok(Some(Box::new(knit_kernel::fault::NoTableOwner)));
    }
    let variable = |name: &str| {
        let number = std::env::var(name).ok();
        let parsed = number.map(|number| {
            number.parse::<usize>().with_context(|| format!("{name}: expected a number, not `{number}`"))
        });
        parsed.transpose()
    };
    let (steps, moments) = (variable("KNIT_FAULT_KILL_AT")?, variable("KNIT_FAULT_KILL_AT_MOMENT")?);
    if steps.is_none() && moments.is_none() {
        return Ok(None);
    }
    Ok(Some(Box::new(faults::KillAt { steps, moments })))
}

#[cfg(debug_assertions)]
mod faults {
    use std::time::Duration;

    use knit_kernel::fault::{Fault, FaultInjector};
    use knit_model::Step;
    use knit_model::plan::PlannedStep;
    use nix::errno::Errno;
    use nix::sys::signal::{Signal, raise};

    /// Fails one step.
    pub(super) struct FailAt {
        /// Steps before the fault; `None` after it.
        remaining: Option<usize>,
        errno: Errno,
    }

    impl FailAt {
        /// `3:EBUSY`.
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (number, name) = text.split_once(':')?;
            let known = [Errno::EBUSY, Errno::EEXIST, Errno::ENOBUFS, Errno::ENODEV];
            let errno = known.into_iter().find(|errno| format!("{errno:?}") == name)?;
            Some(Self { remaining: Some(number.parse().ok()?), errno })
        }
    }

    impl FaultInjector for FailAt {
        fn before_step(&mut self, _step: usize, _planned: &PlannedStep) -> Option<Fault> {
            let remaining = self.remaining?;
            self.remaining = remaining.checked_sub(1);
            (remaining == 0).then_some(Fault::Fail(self.errno))
        }
    }

    /// Delays the creation of a link.
    pub(super) struct SlowLink {
        link: String,
        delay: Duration,
    }

    impl SlowLink {
        /// `net1:3000`.
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (link, millis) = text.split_once(':')?;
            Some(Self { link: link.to_owned(), delay: Duration::from_millis(millis.parse().ok()?) })
        }
    }

    impl FaultInjector for SlowLink {
        fn before_step(&mut self, _step: usize, planned: &PlannedStep) -> Option<Fault> {
            if matches!(&planned.step, Step::CreateLink { link, .. } if link.name.as_str() == self.link) {
                std::thread::sleep(self.delay);
            }
            None
        }
    }

    /// Kills this process.
    pub(super) struct KillAt {
        /// Plan steps before the kill.
        pub(super) steps: Option<usize>,
        /// Other fault points before the kill.
        pub(super) moments: Option<usize>,
    }

    fn count_down(remaining: &mut Option<usize>) {
        let Some(remaining) = remaining else { return };
        if *remaining == 0 {
            // SIGKILL cannot be handled, so `raise` does not return.
            let _ = raise(Signal::SIGKILL);
        }
        *remaining -= 1;
    }

    impl FaultInjector for KillAt {
        fn before_step(&mut self, _step: usize, planned: &PlannedStep) -> Option<Fault> {
            if self.steps == Some(0) {
                eprintln!("knit: killed before step: {} {}", planned.step.symbol(), planned.step);
            }
            count_down(&mut self.steps);
            None
        }

        fn at_point(&mut self, _what: &'static str) {
            count_down(&mut self.moments);
        }
    }
}
