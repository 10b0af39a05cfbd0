//! `knit ready`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use knit_kni::{Error, json, v1};

use super::{ClientArgs, format, print};
use crate::node_args::DEFAULT_NAMESPACE;

/// The interval between two requests with `--wait`.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The arguments of `knit ready`.
#[derive(Debug, Args)]
pub struct ReadyArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only this pod
    pod: Option<String>,
    /// Namespace of the pod
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Wait up to this long for readiness, and for the agent to respond
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

/// Prints the readiness of the node or of a pod.
pub async fn run(args: &ReadyArgs) -> Result<ExitCode> {
    let deadline = Instant::now() + Duration::from_secs(args.wait);
    let response = loop {
        let response = request(args).await;
        let done = match &response {
            Ok(response) => is_ready(args, response),
            Err(error) => !error.may_retry(),
        };
        if done || Instant::now() >= deadline {
            break response?;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    print(args.client.output, || json::value(&response), |wide| text(args, &response, wide))?;
    Ok(if is_ready(args, &response) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn request(args: &ReadyArgs) -> Result<v1::GetReadinessResponse, Error> {
    let pod = args.pod.as_ref().map(|name| v1::PodRef {
        id: String::new(),
        name: name.clone(),
        namespace: args.namespace.clone(),
    });
    args.client.connect().await?.get_readiness(v1::GetReadinessRequest { pod }).await
}

fn is_ready(args: &ReadyArgs, response: &v1::GetReadinessResponse) -> bool {
    let ready = |readiness: &Option<v1::Readiness>| readiness.as_ref().is_some_and(|one| one.ready);
    if args.pod.is_some() {
        return !response.pods.is_empty() && response.pods.iter().all(|pod| ready(&pod.readiness));
    }
    ready(&response.node) && ready(&response.new_pods)
}

fn text(args: &ReadyArgs, response: &v1::GetReadinessResponse, wide: bool) -> String {
    let mut text = String::new();
    if args.pod.is_none() {
        text += &readiness_text("node", response.node.as_ref(), wide);
        text += &readiness_text("new pods", response.new_pods.as_ref(), wide);
    }
    for pod in &response.pods {
        let name =
            pod.pod.as_ref().map(|pod| format::qualified_name(&pod.namespace, &pod.name)).unwrap_or_default();
        text += &readiness_text(&format!("pod {name}"), pod.readiness.as_ref(), wide);
    }
    text
}

/// `node: ready`, then the failed conditions; with `wide` also the others.
fn readiness_text(title: &str, readiness: Option<&v1::Readiness>, wide: bool) -> String {
    let Some(readiness) = readiness else { return format!("{title}: unknown\n") };
    let mut text = format!("{title}: {}\n", if readiness.ready { "ready" } else { "not ready" });
    text.extend(format::failures(&readiness.conditions).map(|failure| format!("  {failure}\n")));
    if wide {
        let passed = readiness.conditions.iter().filter(|condition| condition.ok);
        text.extend(passed.map(|condition| format!("  ok: {} {}\n", condition.r#type, condition.message)));
    }
    text
}
