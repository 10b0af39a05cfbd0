//! One probe: a feature, how it is tried, and how the outcome is put in words.

use nix::errno::Errno;

use super::modules::Modules;
use super::scratch::Scratch;
use super::{Area, Feature, State};
use crate::error::Error;

/// What to do when trying was not allowed.
pub const ROOT: &str = "run it as root, with CAP_SYS_ADMIN and CAP_NET_ADMIN";

/// How a feature is found out.
#[derive(Clone, Copy)]
pub struct Probe {
    pub name: &'static str,
    /// As people write it: "WireGuard".
    pub title: &'static str,
    pub area: Area,
    pub needed_for: &'static str,
    pub config: &'static str,
    /// The module that brings it, where it can be one.
    pub module: Option<&'static str>,
    /// Whether loading that module makes devices in the machine's own namespace.
    pub makes_devices: bool,
    pub basic: bool,
    pub run: Where,
}

/// Where a probe runs.
#[derive(Clone, Copy)]
pub enum Where {
    /// On the machine as it is: looks, and changes nothing.
    Machine(fn() -> Finding),
    /// In the scratch namespace.
    Scratch(fn(&mut Scratch) -> Finding),
}

/// What a probe found.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    Present,
    PresentWith(String),
    /// The kernel has no such thing.
    Absent,
    /// It has it, but it does not work, and this is why and what to do.
    Broken {
        why: String,
        hint: String,
    },
    /// It could not be tried, and this is why and what to do.
    Untried {
        why: String,
        hint: String,
    },
}

impl Probe {
    /// A probe in its plainest form; the lists add what differs.
    pub const fn new(
        name: &'static str,
        title: &'static str,
        area: Area,
        config: &'static str,
        run: Where,
    ) -> Self {
        let (module, makes_devices, basic, needed_for) = (None, false, false, "");
        Self { name, title, area, needed_for, config, module, makes_devices, basic, run }
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

    pub const fn basic(mut self) -> Self {
        self.basic = true;
        self
    }

    /// Whether trying would load a module that leaves devices behind.
    pub fn leaves_devices(&self, modules: &Modules) -> bool {
        self.makes_devices && self.module.is_some_and(|module| modules.would_load(module))
    }

    /// The module is on disk and loads on first use; trying it would leave devices behind.
    pub fn promised_by_module(&self) -> Finding {
        let module = self.module.unwrap_or_default();
        Finding::PresentWith(format!("not tried: module {module} is on disk and loads on first use"))
    }

    /// Runs the probe and puts the outcome in words.
    pub fn feature(&self, modules: &Modules, run: impl FnOnce(&Self) -> Finding) -> Feature {
        let state = match run(self) {
            Finding::Present => State::Present { note: None },
            Finding::PresentWith(note) => State::Present { note: Some(note) },
            Finding::Absent => {
                let why = match self.module.filter(|module| modules.would_load(module)) {
                    Some(module) => {
                        format!("this kernel has {} as a module, {module}, that is not loaded", self.title)
                    }
                    None => format!("this kernel has no {}: {}", self.title, self.config),
                };
                State::Absent { why, hint: modules.hint(self.module, self.config) }
            }
            Finding::Broken { why, hint } => State::Absent { why, hint },
            Finding::Untried { why, hint } => State::Unknown { why, hint },
        };
        let Self { name, area, needed_for, config, basic, .. } = *self;
        Feature { name, area, needed_for, config, basic, state }
    }
}

impl Finding {
    /// What an attempt says: done, refused because the kernel has no such thing, or refused for another reason.
    pub fn of(attempt: Result<(), Error>, absent: &[Errno]) -> Self {
        match attempt {
            Ok(()) => Self::Present,
            Err(error) if error.errno().is_some_and(|errno| absent.contains(&errno)) => Self::Absent,
            Err(error) if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)) => {
                Self::Untried { why: format!("not permitted ({error})"), hint: ROOT.into() }
            }
            Err(error) => Self::Broken {
                why: format!("the kernel refuses to {error}"),
                hint: "see the kernel's log (dmesg)".into(),
            },
        }
    }
}
