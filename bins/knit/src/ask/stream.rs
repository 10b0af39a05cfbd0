//! `knit watch`, `knit logs`: answers that do not end by themselves.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use knit_kni::v1::watch_event::Object;
use knit_kni::{Error, Reason, json, v1};
use serde_json::Value;

use super::{Asking, words, yaml};
use crate::output;
use crate::show::Form;

/// How long an agent that went away is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to rest between two tries.
const REST: Duration = Duration::from_millis(500);

/// Which changes.
#[derive(Debug, Args)]
pub struct Watch {
    #[command(flatten)]
    asking: Asking,
    /// Only this namespace
    #[arg(short, long, default_value = "", hide_default_value = true)]
    namespace: String,
    /// Go on after this position of an earlier watch, as `-o wide` shows it
    #[arg(long, value_name = "EPOCH/SEQUENCE", value_parser = parse_position)]
    after: Option<v1::Position>,
    /// End when everything that is there now has been shown
    #[arg(long)]
    once: bool,
}

/// Which log lines.
#[derive(Debug, Args)]
pub struct Logs {
    #[command(flatten)]
    asking: Asking,
    /// Show only so many of the last lines; 0 is all that the agent still has
    #[arg(long, default_value_t = 0, value_name = "LINES")]
    tail: u32,
    /// Stay, and show lines as they come
    #[arg(short, long)]
    follow: bool,
    /// The least important level to show
    #[arg(long, default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    level: String,
    /// Only lines of this call
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    call: String,
    /// Only lines about this sandbox
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    sandbox: String,
}

/// Prints changes until the agent is gone for good.
pub async fn watch(which: &Watch) -> Result<ExitCode> {
    let mut after = which.after.clone();
    let mut lost: Option<Instant> = None;
    loop {
        match follow(which, &mut after, &mut lost).await {
            Ok(code) => return Ok(code),
            Err(error) => resume(error, &mut after, &mut lost)?,
        }
        tokio::time::sleep(REST).await;
    }
}

/// Whether to try once more after an error, and from where.
fn resume(error: anyhow::Error, after: &mut Option<v1::Position>, lost: &mut Option<Instant>) -> Result<()> {
    let error = error.downcast::<Error>()?;
    if error.reason() == Some(Reason::PositionGone) && after.take().is_some() {
        eprintln!("knit: the agent's history does not reach back so far; showing everything again");
        return Ok(());
    }
    // Before the first answer a missing agent is an error; after it, it is being restarted.
    let waited = lost.is_some_and(|since| since.elapsed() > PATIENCE);
    if after.is_none() || waited || !error.may_retry() {
        bail!(error);
    }
    if lost.is_none() {
        eprintln!("knit: {error}; waiting for the agent");
        *lost = Some(Instant::now());
    }
    Ok(())
}

async fn follow(
    which: &Watch,
    after: &mut Option<v1::Position>,
    lost: &mut Option<Instant>,
) -> Result<ExitCode> {
    let request =
        v1::WatchRequest { after: after.clone(), namespace: which.namespace.clone(), subjects: Vec::new() };
    let mut stream = which.asking.connect().await?.watch(request).await?;
    while let Some(event) = stream.next().await? {
        *lost = None;
        if event.position.is_some() {
            after.clone_from(&event.position);
        }
        let quiet = matches!(event.change(), v1::Change::Synced | v1::Change::Bookmark);
        if !quiet || which.asking.output == Form::Json {
            print_line(which.asking.output, || json::value(&event), |wide| line(&event, wide))?;
        }
        if which.once && event.change() == v1::Change::Synced {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints log lines.
pub async fn logs(which: &Logs) -> Result<ExitCode> {
    let request = v1::LogsRequest {
        tail: which.tail,
        follow: which.follow,
        level: which.level.clone(),
        call_id: which.call.clone(),
        sandbox_id: which.sandbox.clone(),
    };
    let mut stream = which.asking.connect().await?.logs(request).await?;
    while let Some(entry) = stream.next().await? {
        print_line(which.asking.output, || json::value(&entry), |wide| log_line(&entry, wide))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one answer of many: JSON on one line each, YAML as documents.
fn print_line(
    form: Form,
    value: impl FnOnce() -> serde_json::Result<Value>,
    text: impl FnOnce(bool) -> String,
) -> Result<()> {
    match form {
        Form::Json => output::text(&format!("{}\n", value()?)),
        Form::Yaml => output::text(&format!("---\n{}", yaml(value()?)?)),
        Form::Table | Form::Wide => output::text(&(text(form == Form::Wide) + "\n")),
    }
}

fn line(event: &v1::WatchEvent, wide: bool) -> String {
    let verb = match event.change() {
        v1::Change::Added => "added",
        v1::Change::Modified => "modified",
        v1::Change::Deleted => "deleted",
        v1::Change::Synced => "synced",
        v1::Change::Bookmark => "bookmark",
        v1::Change::Unspecified => "unknown",
    };
    let time = event.time.map(|time| time.to_string()).unwrap_or_default();
    let mut text = format!("{time} {verb} {}", subject(event.object.as_ref()));
    if wide {
        let position = event.position.clone().unwrap_or_default();
        text += &format!(" position={}/{}", position.epoch, position.sequence);
        if !event.call_id.is_empty() {
            text += &format!(" call={}", event.call_id);
        }
    }
    text
}

fn subject(object: Option<&Object>) -> String {
    match object {
        Some(Object::Pod(pod)) => {
            let interfaces = pod.interfaces.iter().map(|interface| {
                let addresses = interface.addresses.iter().map(words::address);
                [interface.name.clone()].into_iter().chain(addresses).collect::<Vec<_>>().join(" ")
            });
            let name = words::titled(&pod.namespace, &pod.name);
            format!("pod {name} [{}]", interfaces.collect::<Vec<_>>().join(", "))
        }
        Some(Object::Network(network)) => format!(
            "network {} ready={}",
            words::titled(&network.namespace, &network.name),
            words::ready(network.readiness.as_ref())
        ),
        Some(Object::Readiness(readiness)) => format!(
            "readiness node={} new-pods={}",
            words::ready(readiness.node.as_ref()),
            words::ready(readiness.new_pods.as_ref())
        ),
        None => String::new(),
    }
}

fn log_line(entry: &v1::LogLine, wide: bool) -> String {
    let time = entry.time.map(|time| time.to_string()).unwrap_or_default();
    let target = if wide { format!(" {}", entry.target) } else { String::new() };
    let fields: String = entry.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    format!("{time} {:5}{target} {}{fields}", entry.level.to_uppercase(), entry.message)
}

fn parse_position(text: &str) -> Result<v1::Position, String> {
    let wrong = || format!("`{text}` is no position: it looks like `3f2a/117`");
    let (epoch, sequence) = text.rsplit_once('/').ok_or_else(wrong)?;
    Ok(v1::Position { epoch: epoch.to_owned(), sequence: sequence.parse().map_err(|_| wrong())? })
}
