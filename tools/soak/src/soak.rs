//! `cargo xtask soak`: a real cluster on which everything happens at once, for as long as one likes, and of which nothing is
//! left in the end: no link, address, route, rule, table or qdisc on nodes and in pods, no state in the API or in agents.

mod deed;
mod farewell;
mod hands;
mod picture;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use self::deed::{Chooser, PODS};
use self::farewell::Before;
use self::hands::{Hands, Outcome};
use crate::harness::{Beside, pods};
use knit_dev::process;
use knit_dev::progress::{Step, seconds};

/// The cluster's name, so that others stay as they are.
const CLUSTER: &str = "soak";
/// How often it is told how far it is.
const TOLD: Duration = Duration::from_secs(30);

/// What a soak takes.
#[derive(Args, Debug)]
pub struct Options {
    /// For how long things happen
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Which things happen; by default others every time
    #[arg(long)]
    seed: Option<u64>,
    /// A cluster that is up and has Knit on it; by default one of its own, which goes afterwards
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// An image of Knit for the cluster of its own; by default that of this checkout is built
    #[arg(long, value_name = "FILE", conflicts_with = "cluster")]
    image: Option<PathBuf>,
}

/// What `cargo xtask soak` does.
pub fn command(options: &Options) -> Result<()> {
    process::require_root("a soak")?;
    let seed = options.seed.unwrap_or_else(any_seed);
    let beside = match &options.cluster {
        Some(name) => Beside::open(name)?,
        None => Beside::up(CLUSTER, options.image.as_deref())?,
    };
    println!("seed {seed}");
    soak(&beside, seed, options.minutes).with_context(|| {
        format!("to see it again: cargo xtask soak --seed {seed} --minutes {}", options.minutes)
    })
}

fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |time| u64::from(time.subsec_micros()))
}

fn soak(beside: &Beside, seed: u64, minutes: f64) -> Result<()> {
    // Another one with the same seed may have begun before its namespace is gone.
    let namespace = format!("soak-{seed}-{}", std::process::id());
    pods::make_namespace(beside, &namespace)?;
    let gone = Gone { beside, namespace: &namespace };
    let step = Step::start(format!("start {PODS} pods"));
    pods::run(beside, &namespace, &(0..PODS).map(hands::wanted).collect::<Vec<_>>())?;
    step.done();
    let hands = Hands { beside, namespace: &namespace };
    let before = Before::look(&hands)?;
    println!("{} things on nodes and in pods before", before.len());

    let done = happen(&hands, seed, Duration::from_secs_f64(minutes * 60.0))?;
    farewell::settle(&hands)?;
    let usage = farewell::farewell(&hands, &before)?;
    drop(gone);
    for (what, (done, refused)) in done {
        println!(
            "{done:6} {what}{}",
            if refused > 0 { format!(", {refused} refused") } else { String::new() }
        );
    }
    println!(
        "nothing is left; the larger agent has {} files, {} sockets and {:.1} MiB of anonymous memory",
        usage.files, usage.sockets, usage.anonymous
    );
    Ok(())
}

/// How often what was done, and refused.
type Counts = BTreeMap<&'static str, (usize, usize)>;

fn happen(hands: &Hands<'_>, seed: u64, time: Duration) -> Result<Counts> {
    let (mut chooser, mut counts) = (Chooser::new(seed), Counts::new());
    let began = Instant::now();
    let (mut told, mut number) = (began, 0);
    while began.elapsed() < time {
        std::thread::sleep(Duration::from_millis(chooser.pause()));
        let deed = chooser.next();
        number += 1;
        let outcome = hands.carry_out(&deed).with_context(|| format!("deed {number}: {deed:?}"))?;
        let (done, refused) = counts.entry(deed.word()).or_default();
        match outcome {
            Outcome::Done => *done += 1,
            Outcome::Refused => *refused += 1,
        }
        if told.elapsed() > TOLD {
            told = Instant::now();
            eprintln!("  ...  {number} deeds in {}", seconds(began.elapsed()));
        }
    }
    println!("{number} deeds in {}", seconds(began.elapsed()));
    Ok(counts)
}

/// The namespace goes, also when something fails.
struct Gone<'a> {
    beside: &'a Beside,
    namespace: &'a str,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        // A cluster of its own goes anyway; in another one this is all there is to take away.
        let _ = self.beside.kubectl(&["delete", "namespace", self.namespace, "--wait=false"]);
    }
}
