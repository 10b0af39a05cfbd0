//! Checks that `down` leaves nothing behind: kills `up` at many points in time, runs `down` and compares the machine.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::state::{Network, ServiceProxy};
use super::{Outcome, down};
use crate::leftovers::HostSnapshot;
use knit_dev::process;
use knit_dev::progress::seconds;
use knit_image::Profile;

/// Kills `up` at points spread over the duration of a complete one, and runs `down` each time. Returns what was left
/// behind.
pub fn interrupt_test(name: &str, interruptions: u32) -> Result<Vec<String>> {
    process::require_root("a cluster")?;
    let before = HostSnapshot::take_settled(name)?;
    let complete = complete_up(name)?;
    check_snapshot_detects_cluster(name, &before)?;
    let mut problems = down_and_compare(name, &before, "a complete up")?;
    println!("a complete up takes {}", seconds(complete));
    for number in 0..interruptions {
        // The first is close to the start, the last close to the end.
        let after = complete.mul_f64((f64::from(number) + 0.3) / f64::from(interruptions));
        let mut up = start(name)?;
        std::thread::sleep(after);
        up.kill().context("cannot kill `up`")?;
        let ended = up.wait()?;
        let how = if ended.signal().is_some() { "killed" } else { "had already ended" };
        let what = format!("{how} after {}", seconds(after));
        let found = down_and_compare(name, &before, &what)?;
        println!("{what}: {}", if found.is_empty() { "nothing left" } else { "NOT CLEAN" });
        problems.extend(found);
    }
    Ok(problems)
}

fn start(name: &str) -> Result<std::process::Child> {
    let mut up = Command::new(std::env::current_exe()?);
    up.args(["up", "--network=reference", "--name", name]);
    up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    up.spawn().context("cannot start `cluster up`")
}

fn complete_up(name: &str) -> Result<Duration> {
    // The first `up` also builds what is missing and is not measured.
    super::up(&super::Options {
        name: name.to_owned(),
        nodes: 2,
        network: Network::Reference,
        service_proxy: ServiceProxy::KubeProxy,
        profile: Profile::Dev,
    })?;
    down(name)?;
    let start_time = Instant::now();
    let status = start(name)?.wait()?;
    if !status.success() {
        bail!("`cluster up --name {name}` failed: {status}; run it manually");
    }
    Ok(start_time.elapsed())
}

/// Checks that a snapshot shows a running cluster: otherwise it would not show its remains either.
fn check_snapshot_detects_cluster(name: &str, before: &HostSnapshot) -> Result<()> {
    let added = HostSnapshot::take(name)?.difference(before);
    for kind in ["process", "link", "cgroup", "route", "file"] {
        if !added.iter().any(|item| item.starts_with(&format!("left behind: {kind} "))) {
            bail!("the snapshot of the machine shows no {kind} of a running cluster");
        }
    }
    Ok(())
}

/// Runs `down` twice and compares the machine with the snapshot.
fn down_and_compare(name: &str, before: &HostSnapshot, what: &str) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    down(name).with_context(|| format!("down after: {what}"))?;
    if down(name)? != Outcome::NotFound {
        problems.push(format!("{what}: the second `down` found something to remove"));
    }
    let left = before.leftovers(name)?;
    problems.extend(left.into_iter().map(|item| format!("{what}: {item}")));
    Ok(problems)
}
