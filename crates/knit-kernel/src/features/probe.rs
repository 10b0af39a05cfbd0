//! A probe: a feature and its test, and the text of its result.

use nix::errno::Errno;

use super::modules::Modules;
use super::scratch::Scratch;
use super::{Area, Feature, FeatureState};
use crate::error::Error;

/// The hint for a probe that was not permitted.
pub const ROOT: &str = "run it as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN";

/// A feature and how it is tested.
#[derive(Clone, Copy)]
pub struct Probe {
    pub name: &'static str,
    /// Its display name: "WireGuard".
    pub title: &'static str,
    pub area: Area,
    pub needed_for: &'static str,
    pub config: &'static str,
    /// The module that provides it, if it can be one.
    pub module: Option<&'static str>,
    /// Whether loading that module creates devices in the host's namespace.
    pub makes_devices: bool,
    pub required: bool,
    pub run: ProbeRun,
}

/// ProbeRun a probe runs.
#[derive(Clone, Copy)]
pub enum ProbeRun {
    /// On the host, read-only.
    Host(fn() -> Finding),
    /// In the scratch namespace.
    Scratch(fn(&mut Scratch) -> Finding),
}

/// The result of a probe.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    Present,
    PresentWith(String),
    /// The kernel does not support it.
    Absent,
    /// The kernel supports it, but it does not work.
    Broken {
        reason: String,
        hint: String,
    },
    /// It could not be tested.
    NotTested {
        reason: String,
        hint: String,
    },
}

impl Probe {
    /// A probe with defaults; the lists add what differs.
    pub const fn new(
        name: &'static str,
        title: &'static str,
        area: Area,
        config: &'static str,
        run: ProbeRun,
    ) -> Self {
        let (module, makes_devices, required, needed_for) = (None, false, false, "");
        Self { name, title, area, needed_for, config, module, makes_devices, required, run }
    }

    /// A probe of links.
    pub const fn link(
        name: &'static str,
        title: &'static str,
        config: &'static str,
        run: fn(&mut Scratch) -> Finding,
    ) -> Self {
        Self::new(name, title, Area::Links, config, ProbeRun::Scratch(run))
    }

    /// A probe of links that needs no namespace.
    pub const fn host_link(
        name: &'static str,
        title: &'static str,
        config: &'static str,
        run: fn() -> Finding,
    ) -> Self {
        Self::new(name, title, Area::Links, config, ProbeRun::Host(run))
    }

    /// A probe of tunnels.
    pub const fn tunnel(
        name: &'static str,
        title: &'static str,
        config: &'static str,
        run: fn(&mut Scratch) -> Finding,
    ) -> Self {
        Self::new(name, title, Area::Tunnels, config, ProbeRun::Scratch(run))
    }

    pub const fn needed_for(mut self, what: &'static str) -> Self {
        self.needed_for = what;
        self
    }

    pub const fn module(mut self, module: &'static str) -> Self {
        self.module = Some(module);
        self
    }

    pub const fn makes_devices(mut self) -> Self {
        self.makes_devices = true;
        self
    }

    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// Whether the test would load a module that creates devices.
    pub fn leaves_devices(&self, modules: &Modules) -> bool {
        self.makes_devices && self.module.is_some_and(|module| modules.would_load(module))
    }

    /// The module is installed and loads on first use; testing it would leave devices behind.
    pub fn loadable_module(&self) -> Finding {
        let module = self.module.unwrap_or_default();
        Finding::PresentWith(format!("not tested: module {module} is installed and loads on first use"))
    }

    /// Runs the probe and describes its result.
    pub fn feature(&self, modules: &Modules, run: impl FnOnce(&Self) -> Finding) -> Feature {
        let state = match run(self) {
            Finding::Present => FeatureState::Present { note: None },
            Finding::PresentWith(note) => FeatureState::Present { note: Some(note) },
            Finding::Absent => {
                let reason = match self.module.filter(|module| modules.would_load(module)) {
                    Some(module) => {
                        format!("this kernel has {} as a module, {module}, that is not loaded", self.title)
                    }
                    None => format!("this kernel has no {}: {}", self.title, self.config),
                };
                FeatureState::Absent { reason, hint: modules.hint(self.module, self.config) }
            }
            Finding::Broken { reason, hint } => FeatureState::Absent { reason, hint },
            Finding::NotTested { reason, hint } => FeatureState::Unknown { reason, hint },
        };
        let Self { name, area, needed_for, config, required, .. } = *self;
        Feature { name, area, needed_for, config, required, state }
    }
}

impl Finding {
    /// The result of an attempt: success, not supported, or another error.
    pub fn of(attempt: Result<(), Error>, absent: &[Errno]) -> Self {
        match attempt {
            Ok(()) => Self::Present,
            Err(error) if error.errno().is_some_and(|errno| absent.contains(&errno)) => Self::Absent,
            Err(error) if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)) => {
                Self::NotTested { reason: format!("not permitted ({error})"), hint: ROOT.into() }
            }
            Err(error) => Self::Broken {
                reason: format!("the kernel rejected the test: {error}"),
                hint: "see the kernel log (dmesg)".into(),
            },
        }
    }
}
