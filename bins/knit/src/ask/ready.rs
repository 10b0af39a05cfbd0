//! `knit ready`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use knit_kni::{Error, json, v1};

use super::{Asking, print, words};
use crate::place::DEFAULT_NAMESPACE;

/// How long to rest between two questions while waiting.
const REST: Duration = Duration::from_millis(200);

/// Whose readiness.
#[derive(Debug, Args)]
pub struct Which {
    #[command(flatten)]
    asking: Asking,
    /// Only this pod
    pod: Option<String>,
    /// The pod's namespace
    #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
    namespace: String,
    /// Wait so long for it to become ready, also for the agent to answer at all
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
}

/// Prints how ready the node, or a pod, is.
pub async fn run(which: &Which) -> Result<ExitCode> {
    let end = Instant::now() + Duration::from_secs(which.wait);
    let answer = loop {
        let answer = ask(which).await;
        let settled = match &answer {
            Ok(answer) => is_ready(which, answer),
            Err(error) => !error.may_retry(),
        };
        if settled || Instant::now() >= end {
            break answer?;
        }
        tokio::time::sleep(REST).await;
    };
    print(which.asking.output, || json::value(&answer), |wide| text(which, &answer, wide))?;
    Ok(if is_ready(which, &answer) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn ask(which: &Which) -> Result<v1::GetReadinessResponse, Error> {
    let pod = which.pod.as_ref().map(|name| v1::PodRef {
        id: String::new(),
        name: name.clone(),
        namespace: which.namespace.clone(),
    });
    which.asking.connect().await?.get_readiness(v1::GetReadinessRequest { pod }).await
}

fn is_ready(which: &Which, answer: &v1::GetReadinessResponse) -> bool {
    let ready = |readiness: &Option<v1::Readiness>| readiness.as_ref().is_some_and(|one| one.ready);
    if which.pod.is_some() {
        return !answer.pods.is_empty() && answer.pods.iter().all(|pod| ready(&pod.readiness));
    }
    ready(&answer.node) && ready(&answer.new_pods)
}

fn text(which: &Which, answer: &v1::GetReadinessResponse, wide: bool) -> String {
    let mut text = String::new();
    if which.pod.is_none() {
        text += &told("node", answer.node.as_ref(), wide);
        text += &told("new pods", answer.new_pods.as_ref(), wide);
    }
    for pod in &answer.pods {
        let name = pod.pod.as_ref().map(|pod| words::titled(&pod.namespace, &pod.name)).unwrap_or_default();
        text += &told(&format!("pod {name}"), pod.readiness.as_ref(), wide);
    }
    text
}

/// `node: ready`, then what is not well; with `wide` also what is.
fn told(title: &str, readiness: Option<&v1::Readiness>, wide: bool) -> String {
    let Some(readiness) = readiness else { return format!("{title}: unknown\n") };
    let mut text = format!("{title}: {}\n", if readiness.ready { "ready" } else { "not ready" });
    text.extend(words::complaints(&readiness.conditions).map(|complaint| format!("  {complaint}\n")));
    if wide {
        let well = readiness.conditions.iter().filter(|condition| condition.ok);
        text.extend(well.map(|condition| format!("  ok: {} {}\n", condition.r#type, condition.message)));
    }
    text
}
