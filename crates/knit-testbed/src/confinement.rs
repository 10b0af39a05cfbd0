//! Runs a program as the container runtime runs the deployed agent: with the capabilities, the seccomp filter, the root
//! file system and the mounts of the [manifests](Deployed).
//!
//! All of these belong to a thread, and threads and programs inherit them from the thread that starts them. So a test
//! confines a new thread, which then starts the agent; nothing runs between fork and exec.
//!
//! # Differences from a container
//!
//! - The directories of the node in the manifest are new and empty, except those of the kernel (sysctls, BPF file system,
//!   TUN device) and of named network namespaces, which are the machine's. The directory of the test stands in for the
//!   state directory and the sockets.
//! - A program of the test may add directories of the machine, read-only: the agent's binary, or CNI plugins.
//! - There are no cgroups, thus no filter for devices and no limits, and no LSM profile.
//!
//! `KNIT_TESTBED_UNCONFINED=1` disables confinement, to see whether it causes a failure; a test that adds mounts fails then.
//! `KNIT_TESTBED_WITHOUT_CAPABILITIES=NET_RAW,SYS_PTRACE` takes capabilities away, to see which tests need them.

mod privileges;
mod root;
mod seccomp;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::Namespace;
use crate::deployment::{Container, Deployed};

/// Disables confinement.
const UNCONFINED: &str = "KNIT_TESTBED_UNCONFINED";

/// Variables of the manifest that configure the agent for a cluster; tests configure it by flags.
const CLUSTER_CONFIGURATION: [&str; 3] = ["KNIT_PROFILE", "KNIT_STATE_DIR", "KNIT_CONFIG"];

/// The confinement of an agent.
#[derive(Clone, Debug)]
pub struct Confinement {
    container: Option<Container>,
    /// The directory of the test, which also has the directories of the node.
    directory: PathBuf,
    extra: Vec<ExtraMount>,
}

/// What a test adds to the container.
#[derive(Clone, Debug)]
enum ExtraMount {
    /// A directory of the machine at the same place, read-only.
    ReadOnly(PathBuf),
    /// A file or directory of the test at another place.
    Bind { source: PathBuf, place: PathBuf, is_nodev: bool },
}

impl Confinement {
    /// As these manifests deploy the agent, with a directory of the test that it may write.
    #[track_caller]
    pub fn new(deployed: Deployed, directory: &Path) -> Self {
        Self { container: Some(Container::of(deployed)), directory: directory.to_owned(), extra: Vec::new() }
    }

    /// No confinement, for an agent that is a service of its machine. A test says why it needs that.
    pub fn none() -> Self {
        Self { container: None, directory: PathBuf::new(), extra: Vec::new() }
    }

    /// Adds a directory of the machine, read-only.
    #[must_use]
    pub fn read_only(mut self, directory: impl Into<PathBuf>) -> Self {
        self.extra.push(ExtraMount::ReadOnly(directory.into()));
        self
    }

    /// Adds the programs and libraries of the machine, read-only. The image of the agent has none.
    #[must_use]
    pub fn with_programs(self) -> Self {
        let directories = ["/usr", "/bin", "/sbin", "/lib", "/lib64"].map(Path::new);
        directories.into_iter().filter(|path| path.exists()).fold(self, Self::read_only)
    }

    /// Adds a file or directory of the test at another place, over what is there.
    #[must_use]
    pub fn bind(mut self, source: impl Into<PathBuf>, place: impl Into<PathBuf>) -> Self {
        self.extra.push(ExtraMount::Bind { source: source.into(), place: place.into(), is_nodev: false });
        self
    }

    /// As [`bind`](Self::bind); devices in the directory cannot be opened.
    #[must_use]
    pub fn bind_nodev(mut self, source: impl Into<PathBuf>, place: impl Into<PathBuf>) -> Self {
        self.extra.push(ExtraMount::Bind { source: source.into(), place: place.into(), is_nodev: true });
        self
    }

    /// Starts a program in a network namespace, confined, with the environment of the manifest. Variables that the command
    /// sets take precedence.
    ///
    /// # Errors
    ///
    /// The kernel refuses a step of the confinement, or the program cannot be started.
    pub fn spawn(&self, namespace: &Namespace, command: &mut Command) -> io::Result<Child> {
        let Some(container) = self.container.as_ref().filter(|_| !is_disabled()) else {
            return namespace.run(|| command.spawn());
        };
        let own: Vec<_> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        let is_own = |name: &str| own.iter().any(|known| known == name);
        for (name, value) in &container.environment {
            if !CLUSTER_CONFIGURATION.contains(&name.as_str()) && !is_own(name) {
                command.env(name, value);
            }
        }
        namespace.run(|| {
            root::enter(container, &self.directory, &self.extra)?;
            restrict(container)?;
            command.spawn()
        })
    }
}

/// Reduces this thread to the privileges of the agent, without its mounts: for tests that call the agent's library.
pub(crate) fn restrict_thread(deployed: Deployed) -> io::Result<()> {
    if is_disabled() { Ok(()) } else { restrict(&Container::of(deployed)) }
}

/// Threads and programs that this thread starts are restricted, too.
fn restrict(container: &Container) -> io::Result<()> {
    privileges::reduce(container)?;
    if container.is_seccomp_filtered {
        seccomp::install(container.capabilities)?;
    }
    Ok(())
}

fn is_disabled() -> bool {
    std::env::var_os(UNCONFINED).is_some()
}
