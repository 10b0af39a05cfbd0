//! The proof that `down` leaves nothing: `up` is killed at many moments, and the machine is compared.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::state::Network;
use super::{Outcome, down};
use crate::leftovers::Snapshot;
use knit_dev::process;
use knit_dev::progress::seconds;

/// Kills `up` at moments spread over the time that a whole one takes; each time takes away what is there.
/// Returns what was left behind, in words: nothing, it is hoped.
pub fn killtest(name: &str, moments: u32) -> Result<Vec<String>> {
    process::require_root("a cluster")?;
    let before = Snapshot::settled(name)?;
    let whole = whole_up(name)?;
    see_cluster(name, &before)?;
    let mut wrong = clean(name, &before, "a whole up")?;
    println!("a whole up takes {}", seconds(whole));
    for moment in 0..moments {
        // The first is close to the start, the last close to the end.
        let after = whole.mul_f64((f64::from(moment) + 0.3) / f64::from(moments));
        let mut up = start(name)?;
        std::thread::sleep(after);
        up.kill().context("cannot kill `up`")?;
        let ended = up.wait()?;
        let how = if ended.signal().is_some() { "killed" } else { "had already ended" };
        let what = format!("{how} after {}", seconds(after));
        let found = clean(name, &before, &what)?;
        println!("{what}: {}", if found.is_empty() { "nothing left" } else { "NOT CLEAN" });
        wrong.extend(found);
    }
    Ok(wrong)
}

fn start(name: &str) -> Result<std::process::Child> {
    let mut up = Command::new(std::env::current_exe()?);
    up.args(["cluster", "up", "--network=reference", "--name", name]);
    up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    up.spawn().context("cannot start `cluster up`")
}

fn whole_up(name: &str) -> Result<Duration> {
    // Building what is missing is not part of the time.
    super::up(&super::Options { name: name.to_owned(), nodes: 2, network: Network::Reference })?;
    down(name)?;
    let began = Instant::now();
    let status = start(name)?.wait()?;
    if !status.success() {
        bail!("`cluster up --name {name}` failed: {status}; try it by hand");
    }
    Ok(began.elapsed())
}

/// A picture that does not show a cluster that is up would show nothing of one that was taken away badly.
fn see_cluster(name: &str, before: &Snapshot) -> Result<()> {
    let seen = Snapshot::take(name)?.difference(before);
    for kind in ["process", "link", "cgroup", "route", "file"] {
        if !seen.iter().any(|thing| thing.starts_with(&format!("left behind: {kind} "))) {
            bail!("the picture of the machine shows no {kind} of a cluster that is up");
        }
    }
    Ok(())
}

/// Takes the cluster away twice, and compares.
fn clean(name: &str, before: &Snapshot, what: &str) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    down(name).with_context(|| format!("down after: {what}"))?;
    if down(name)? != Outcome::NothingThere {
        wrong.push(format!("{what}: the second `down` found something"));
    }
    let left = before.left_since(name)?;
    wrong.extend(left.into_iter().map(|thing| format!("{what}: {thing}")));
    Ok(wrong)
}
