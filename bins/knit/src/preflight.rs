//! `knit preflight`: checks whether a cluster meets the requirements of Knit.
//!
//! [`cluster`] reads the facts from the API server and changes nothing; the checks are pure functions of these facts.

mod cluster;
mod evaluate;
mod nodes;
mod primary;
mod ranges;
mod tenant_ranges;
mod text;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::api_server::ApiServer;
use crate::output;
use ranges::Ranges;

/// The exit code if a check failed.
const EXIT_CHECK_FAILED: u8 = 2;

/// The flags of `knit preflight`.
#[derive(Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    server: ApiServer,
    /// Profile that the agent is to be installed with
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: ReportFormat,
    /// Print only the address ranges of the cluster, as the ClusterRanges object for the admission policies
    ///
    /// Usage: `knit preflight --cluster-ranges | kubectl apply -f -`.
    #[arg(long, conflicts_with = "output")]
    cluster_ranges: bool,
}

/// The profile of the agents of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// In addition to the CNI plugin of the cluster
    #[default]
    Beside,
    /// As the cluster network
    Primary,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ReportFormat {
    /// Human-readable text
    #[default]
    Text,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// The result of all checks.
#[derive(Debug, Serialize)]
struct Report {
    /// The URL of the API server.
    server: String,
    /// Whether no check failed.
    ready: bool,
    /// The address ranges of the cluster.
    ranges: Ranges,
    checks: Vec<Check>,
}

/// The result of one check.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// The stable name of the check.
    name: &'static str,
    verdict: Verdict,
    /// The finding.
    found: String,
    /// What to do, or what follows from the finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// The requirement is met.
    Pass,
    /// Knit works with a limitation.
    Warn,
    /// The requirement is not met.
    Fail,
    /// The caller lacks a permission, or the API server does not have the information.
    Unknown,
}

impl Check {
    fn pass(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Pass, found: found.into(), advice: None }
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

/// Runs all checks and prints the report.
pub fn run(flags: &Flags) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    let facts = runtime.block_on(cluster::collect(&flags.server))?;
    let report = evaluate::evaluate(&facts, flags.profile);
    if flags.cluster_ranges {
        output::text(&report.ranges.manifest()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    match flags.output {
        ReportFormat::Text => output::text(&text::render(&report))?,
        ReportFormat::Json => output::json(&report)?,
        ReportFormat::Yaml => output::text(&serde_saphyr::to_string(&report).context("cannot write YAML")?)?,
    }
    Ok(if report.ready { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CHECK_FAILED) })
}
