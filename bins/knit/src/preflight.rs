//! `knit preflight`: what would not work on a cluster, and why, before anything is installed there.
//!
//! [`look`] asks the API server, and changes nothing. What follows from the answers is worked out without it.

mod judge;
mod look;
mod nodes;
mod ranges;
mod text;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::api_server::ApiServer;
use crate::output;
use ranges::Ranges;

/// The exit code when something would not work.
const WRONG: u8 = 2;

/// Which cluster, and how to print the answer.
#[derive(Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    server: ApiServer,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    /// Print only the cluster's ranges, as the object that the admission policies compare with
    ///
    /// For use: `knit preflight --cluster-ranges | kubectl apply -f -`.
    #[arg(long, conflicts_with = "output")]
    cluster_ranges: bool,
}

/// How the answer is printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Form {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
}

/// Everything that was found.
#[derive(Debug, Serialize)]
struct Report {
    /// The API server's address.
    server: String,
    /// Whether nothing is wrong.
    ready: bool,
    /// What the cluster uses itself.
    ranges: Ranges,
    checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// What, in a word that stays.
    name: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// What follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// It is as it should be.
    Fine,
    /// It works, and there is something to know.
    Note,
    /// Something would not work.
    Wrong,
    /// The caller may not ask, or the answer cannot be seen from here.
    Unknown,
}

impl Check {
    fn fine(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fine, found: found.into(), advice: None }
    }

    fn new(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { name, verdict, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Looks at the cluster and prints what was found.
pub fn run(flags: &Flags) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime that talks to the API server")?;
    let seen = runtime.block_on(look::look(&flags.server))?;
    let report = judge::judge(&seen);
    if flags.cluster_ranges {
        output::text(&report.ranges.manifest()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    match flags.output {
        Form::Text => output::text(&text::render(&report))?,
        Form::Json => output::json(&report)?,
        Form::Yaml => output::text(&serde_saphyr::to_string(&report).context("cannot write YAML")?)?,
    }
    Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}
