//! One network namespace of a testbed, and everything a test does in it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::deployment::Deployed;
use crate::echo::EchoServer;
use crate::holders::{Holder, Identity};
use crate::process::Process;
use crate::{Error, netns};

/// A network namespace with `lo` up. Cheap to clone; it exists as long as its [`Testbed`](crate::Testbed).
#[derive(Clone, Debug)]
pub struct Namespace {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    label: String,
    name: String,
    path: PathBuf,
    identity: Identity,
    /// Taken when the testbed closes, so that a handle that outlives it does not keep the namespace alive.
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
    processes: Mutex<Vec<Process>>,
    echoes: Mutex<Vec<EchoServer>>,
}

/// A poisoned lock only means that a test failed; its contents must still be cleaned up.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Namespace {
    pub(crate) fn new(label: &str, name: String, path: PathBuf, descriptor: OwnedFd) -> Result<Self, Error> {
        let identity = Identity::of(&descriptor).map_err(|source| Error::System {
            namespace: name.clone(),
            action: "inspect its descriptor".to_owned(),
            source,
        })?;
        Ok(Self {
            inner: Arc::new(Inner {
                label: label.to_owned(),
                name,
                path,
                identity,
                descriptor: Mutex::new(Some(Arc::new(descriptor))),
                processes: Mutex::default(),
                echoes: Mutex::default(),
            }),
        })
    }

    /// The label chosen by the test: `pod-a`.
    pub fn label(&self) -> &str {
        &self.inner.label
    }

    /// The machine-wide name, as `ip netns` shows it: `knit-<test>-<token>-pod-a`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The namespace's file, for `nsenter --net=` and for `CNI_NETNS`.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// A descriptor of the namespace, owned by the caller. It keeps the namespace alive, which
    /// [`Testbed::assert_nothing_left`](crate::Testbed::assert_nothing_left) detects.
    #[track_caller]
    pub fn descriptor(&self) -> OwnedFd {
        let copy = self.shared_descriptor().map(|descriptor| descriptor.try_clone());
        copy.unwrap_or_else(|error| panic!("{error}"))
            .unwrap_or_else(|error| panic!("namespace {}: cannot copy its descriptor: {error}", self.name()))
    }

    fn shared_descriptor(&self) -> Result<Arc<OwnedFd>, Error> {
        lock(&self.inner.descriptor)
            .clone()
            .ok_or_else(|| Error::Closed { namespace: self.name().to_owned() })
    }

    /// Runs `work` on a separate thread inside the namespace, and waits for it. A panic of `work` resumes in the
    /// caller. Sockets opened and programs started there belong to the namespace.
    #[track_caller]
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.try_run(work).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`run`](Self::run), with the capabilities and the seccomp filter of the deployed agent: for tests that call its
    /// library. Threads that `work` starts have them, too. Programs are confined by [`Confinement`](crate::Confinement).
    #[track_caller]
    pub fn run_as_agent<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.run_as(Deployed::Primary, work)
    }

    /// As [`run_as_agent`](Self::run_as_agent), with other manifests.
    #[track_caller]
    pub fn run_as<T: Send>(&self, deployed: Deployed, work: impl FnOnce() -> T + Send) -> T {
        self.run(|| {
            crate::confinement::restrict_thread(deployed)
                .unwrap_or_else(|error| panic!("cannot take privileges from a thread: {error}"));
            work()
        })
    }

    pub(crate) fn try_run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let descriptor = self.shared_descriptor()?;
        netns::run_inside(self.name(), &*descriptor, work)
    }

    /// A command that runs inside. Its PID is that of the program itself: `nsenter` does not fork.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut net = std::ffi::OsString::from("--net=");
        net.push(self.path());
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a program inside to completion and returns its standard output.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String, Error> {
        let command = || format!("{program} {}", arguments.join(" "));
        let namespace = || self.name().to_owned();
        let output = self.command(program).args(arguments).output().map_err(|source| Error::Start {
            namespace: namespace(),
            command: command(),
            source,
        })?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Failed {
                namespace: namespace(),
                command: command(),
                status: output.status,
                stderr,
            });
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `ip` inside; panics with its error output if it fails. Use [`output`](Self::output) if the test
    /// expects a failure.
    #[track_caller]
    pub fn ip(&self, arguments: &[&str]) -> String {
        self.output("ip", arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs `ip -j` inside and parses its output; panics if either fails.
    #[track_caller]
    pub fn ip_json(&self, arguments: &[&str]) -> Value {
        let arguments = [&["-j"], arguments].concat();
        let text = self.ip(&arguments);
        // With an empty result some versions print nothing at all.
        if text.trim().is_empty() {
            return Value::Array(Vec::new());
        }
        serde_json::from_str(&text).unwrap_or_else(|source| {
            let command = format!("ip {}", arguments.join(" "));
            panic!("{}", Error::NotJson { namespace: self.name().to_owned(), command, source })
        })
    }

    /// Reads a sysctl: `net.ipv4.ip_forward`, or `net/ipv4/conf/eth0.100/forwarding` if a name has dots.
    pub fn sysctl(&self, key: &str) -> Result<String, Error> {
        let read = self.try_run(|| fs::read_to_string(sysctl_file(key)))?;
        read.map(|value| value.trim_end().to_owned()).map_err(|source| self.sysctl_error(key, source))
    }

    /// Writes a sysctl; panics if the kernel rejects it.
    #[track_caller]
    pub fn set_sysctl(&self, key: &str, value: &str) {
        let written = self.run(|| fs::write(sysctl_file(key), value));
        written.unwrap_or_else(|source| panic!("{}", self.sysctl_error(key, source)));
    }

    fn sysctl_error(&self, key: &str, source: std::io::Error) -> Error {
        Error::Sysctl { namespace: self.name().to_owned(), key: key.to_owned(), source }
    }

    /// Starts a program in the background; it is killed with the testbed. Take the command from
    /// [`command`](Self::command): `ns.spawn(ns.command("tcpdump").arg("-n"))`. Its output is kept, see
    /// [`Process::output`], and printed if the test fails.
    #[track_caller]
    pub fn spawn(&self, command: &mut Command) -> Process {
        let process = Process::start(command).unwrap_or_else(|source| {
            let command = Process::describe(command);
            panic!("{}", Error::Start { namespace: self.name().to_owned(), command, source })
        });
        lock(&self.inner.processes).push(process.clone());
        process
    }

    /// All processes inside, with their command lines.
    pub fn processes(&self) -> Vec<(u32, String)> {
        // The inode number identifies the namespace only while it is held.
        match self.shared_descriptor() {
            Ok(_held) => crate::holders::processes_inside(self.inner.identity),
            Err(_) => Vec::new(),
        }
    }

    pub(crate) fn add_echo(&self, echo: &EchoServer) {
        lock(&self.inner.echoes).push(echo.clone());
    }

    pub(crate) fn background(&self) -> Vec<Process> {
        lock(&self.inner.processes).clone()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// Kills everything inside, deletes the name, and releases the descriptor. Returns the remaining holders.
    /// Errors are collected, so that as much as possible is cleaned up.
    pub(crate) fn close(&self, problems: &mut Vec<String>) -> Vec<Holder> {
        let Some(descriptor) = lock(&self.inner.descriptor).take() else { return Vec::new() };
        for echo in lock(&self.inner.echoes).drain(..) {
            echo.stop();
        }
        for process in lock(&self.inner.processes).iter() {
            if let Err(error) = process.stop() {
                problems.push(format!("process {process}: cannot stop it: {error}"));
            }
        }
        crate::holders::kill_processes_inside(self.identity(), problems);
        if let Err(error) = netns::delete(self.path()) {
            problems.push(format!(
                "namespace {}: cannot remove {}: {error}",
                self.name(),
                self.path().display()
            ));
        }
        crate::holders::wait_until_free(self.identity(), &descriptor)
    }
}

/// The file of a sysctl.
fn sysctl_file(key: &str) -> PathBuf {
    let relative = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
    Path::new("/proc/sys").join(relative)
}

/// The namespace of the test process itself, which no test may touch.
pub(crate) fn machine() -> std::io::Result<File> {
    File::open("/proc/self/ns/net")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_name_uses_dots_or_slashes() {
        assert_eq!(sysctl_file("net.ipv4.ip_forward"), Path::new("/proc/sys/net/ipv4/ip_forward"));
        assert_eq!(
            sysctl_file("net/ipv4/conf/eth0.100/forwarding"),
            Path::new("/proc/sys/net/ipv4/conf/eth0.100/forwarding")
        );
    }
}
