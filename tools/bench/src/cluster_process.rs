//! Starts a cluster of a benchmark in another process, so that a signal can end it at any moment.

use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::cleanup::Cleanup;
use knit_dev::{places, process};
use knit_testcluster::down;

/// Starts a cluster with these arguments of `cluster up`. It is removed at the end, also what a killed process had created.
pub fn start(name: &'static str, arguments: &[&str], cleanup: &Cleanup) -> Result<()> {
    // An earlier run that was killed may have left a cluster.
    down(name)?;
    let child = Arc::new(Mutex::new(None::<Child>));
    let to_kill = Arc::clone(&child);
    cleanup.defer(move || {
        if let Some(mut child) = lock(&to_kill).take() {
            // It may have ended already.
            let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
            let _ = child.wait();
        }
        if let Err(error) = down(name) {
            eprintln!("{error:#}; `cargo xtask cluster down --name {name}` retries");
        }
    });
    let mut up = process::cargo();
    up.current_dir(places::workspace());
    // As `cargo xtask cluster` builds it: this program is not measured, and an optimised build takes minutes.
    up.args(["run", "--quiet", "--locked", "--package", "knit-testcluster", "--"]);
    up.args(["up", "--name", name]).args(arguments);
    // Standard output has the rows only.
    up.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    *lock(&child) = Some(up.spawn().context("cannot start `cluster up`")?);
    loop {
        let Some(exited) = lock(&child).as_mut().map(Child::try_wait).transpose()? else {
            bail!("interrupted by a signal");
        };
        if let Some(status) = exited {
            *lock(&child) = None;
            ensure!(status.success(), "the cluster {name} did not start");
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn lock(child: &Mutex<Option<Child>>) -> MutexGuard<'_, Option<Child>> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}
