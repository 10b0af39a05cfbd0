//! `knit watch`, `knit logs`: streaming responses.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use knit_kni::v1::watch_event::Object;
use knit_kni::{Error, Reason, json, v1};
use serde_json::Value;

use super::{ClientArgs, format, yaml};
use crate::output;
use crate::output::TableFormat;

/// How long `knit watch` waits for a restarted agent.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between two connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The arguments of `knit watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this namespace
    #[arg(short, long, default_value = "", hide_default_value = true)]
    namespace: String,
    /// Resume after this position of an earlier watch, as printed by `-o wide`
    #[arg(long, value_name = "EPOCH/SEQUENCE", value_parser = parse_position)]
    after: Option<v1::Position>,
    /// Print the current state and exit
    #[arg(long)]
    once: bool,
}

/// The arguments of `knit logs`.
#[derive(Debug, Args)]
pub struct LogsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Print only this many of the last lines; 0 prints all lines that the agent has in memory
    #[arg(long, default_value_t = 0, value_name = "LINES")]
    tail: u32,
    /// Print new lines as they are written
    #[arg(short, long)]
    follow: bool,
    /// Lowest level to print
    #[arg(long, default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    level: String,
    /// Only lines of the call with this id
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    call: String,
    /// Only lines of the sandbox with this id
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    sandbox: String,
}

/// Prints changes until the agent is unreachable for longer than [`RECONNECT_TIMEOUT`].
pub async fn watch(args: &WatchArgs) -> Result<ExitCode> {
    let mut after = args.after.clone();
    let mut lost: Option<Instant> = None;
    loop {
        match follow(args, &mut after, &mut lost).await {
            Ok(code) => return Ok(code),
            Err(error) => resume(error, &mut after, &mut lost)?,
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Returns the error unless the watch can be resumed.
fn resume(error: anyhow::Error, after: &mut Option<v1::Position>, lost: &mut Option<Instant>) -> Result<()> {
    let error = error.downcast::<Error>()?;
    if error.reason() == Some(Reason::PositionGone) && after.take().is_some() {
        eprintln!("knit: the agent no longer has the history since that position; printing the full state");
        return Ok(());
    }
    // Before the first event an unreachable agent is an error; afterwards it may be restarting.
    let timed_out = lost.is_some_and(|since| since.elapsed() > RECONNECT_TIMEOUT);
    if after.is_none() || timed_out || !error.may_retry() {
        bail!(error);
    }
    if lost.is_none() {
        eprintln!("knit: {error}; waiting for the agent");
        *lost = Some(Instant::now());
    }
    Ok(())
}

async fn follow(
    args: &WatchArgs,
    after: &mut Option<v1::Position>,
    lost: &mut Option<Instant>,
) -> Result<ExitCode> {
    let request =
        v1::WatchRequest { after: after.clone(), namespace: args.namespace.clone(), subjects: Vec::new() };
    let mut stream = args.client.connect().await?.watch(request).await?;
    while let Some(event) = stream.next().await? {
        *lost = None;
        if event.position.is_some() {
            after.clone_from(&event.position);
        }
        let quiet = matches!(event.change(), v1::Change::Synced | v1::Change::Bookmark);
        if !quiet || args.client.output == TableFormat::Json {
            print_line(args.client.output, || json::value(&event), |wide| line(&event, wide))?;
        }
        if args.once && event.change() == v1::Change::Synced {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints log lines.
pub async fn logs(args: &LogsArgs) -> Result<ExitCode> {
    let request = v1::LogsRequest {
        tail: args.tail,
        follow: args.follow,
        level: args.level.clone(),
        call_id: args.call.clone(),
        sandbox_id: args.sandbox.clone(),
    };
    let mut stream = args.client.connect().await?.logs(request).await?;
    while let Some(entry) = stream.next().await? {
        print_line(args.client.output, || json::value(&entry), |wide| log_line(&entry, wide))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one item of a stream: JSON as one line, YAML as a document.
fn print_line(
    format: TableFormat,
    value: impl FnOnce() -> serde_json::Result<Value>,
    text: impl FnOnce(bool) -> String,
) -> Result<()> {
    match format {
        TableFormat::Json => output::text(&format!("{}\n", value()?)),
        TableFormat::Yaml => output::text(&format!("---\n{}", yaml(value()?)?)),
        TableFormat::Table | TableFormat::Wide => output::text(&(text(format == TableFormat::Wide) + "\n")),
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
                let addresses = interface.addresses.iter().map(format::address);
                [interface.name.clone()].into_iter().chain(addresses).collect::<Vec<_>>().join(" ")
            });
            let name = format::qualified_name(&pod.namespace, &pod.name);
            format!("pod {name} [{}]", interfaces.collect::<Vec<_>>().join(", "))
        }
        Some(Object::Network(network)) => format!(
            "network {} ready={}",
            format::qualified_name(&network.namespace, &network.name),
            format::ready(network.readiness.as_ref())
        ),
        Some(Object::Readiness(readiness)) => format!(
            "readiness node={} new-pods={}",
            format::ready(readiness.node.as_ref()),
            format::ready(readiness.new_pods.as_ref())
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
    let invalid = || format!("invalid position `{text}`: expected EPOCH/SEQUENCE, for example 3f2a/117");
    let (epoch, sequence) = text.rsplit_once('/').ok_or_else(invalid)?;
    Ok(v1::Position { epoch: epoch.to_owned(), sequence: sequence.parse().map_err(|_| invalid())? })
}
