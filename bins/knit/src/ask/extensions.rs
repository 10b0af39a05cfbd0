//! `knit extensions`.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use knit_kni::{json, v1};

use super::{Asking, print, words};
use crate::output;

/// Which extensions, and what about them.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Which {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    asking: Asking,
    /// List the running pods that this extension was meant for and that were attached without it
    #[arg(long, value_name = "NAME")]
    missing: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Show all there is to say about one extension, with the pods that were attached without it
    Describe {
        /// Its name
        name: String,
        #[command(flatten)]
        asking: Asking,
    },
    /// Remove an extension, as an admin: no attach calls it any more, and it is not told what goes
    ///
    /// An extension removes itself with the token of its registration. This needs none. If an Extension object requires it,
    /// the node takes no pods until it is registered again.
    Remove {
        /// Its name
        name: String,
        #[command(flatten)]
        asking: Asking,
    },
}

/// Lists, describes or removes.
pub async fn run(which: &Which) -> Result<ExitCode> {
    match &which.task {
        None => match &which.missing {
            None => list(&which.asking).await,
            Some(name) => missing(&which.asking, name).await,
        },
        Some(Task::Describe { name, asking }) => describe(asking, name).await,
        Some(Task::Remove { name, asking }) => remove(asking, name).await,
    }
}

async fn list(asking: &Asking) -> Result<ExitCode> {
    let answer = asking.connect().await?.list_extensions(v1::ListExtensionsRequest {}).await?;
    print(asking.output, || json::value(&answer), |wide| table(&answer.extensions, wide))?;
    Ok(ExitCode::SUCCESS)
}

fn table(extensions: &[v1::ExtensionStatus], wide: bool) -> String {
    if extensions.is_empty() {
        return "no extensions\n".to_owned();
    }
    let mut header =
        vec!["NAME", "ORDER", "REGISTERED", "REQUIRED", "PHASES", "ON FAILURE", "PODS", "MISSED", "AGE"];
    if wide {
        header.extend(["GENERATION", "DEADLINE", "FOR", "OWED", "SERVICE", "SOCKET"]);
    }
    output::table(&header, extensions.iter().map(|one| row(one, wide)))
}

fn row(one: &v1::ExtensionStatus, wide: bool) -> Vec<String> {
    let spec = one.spec.clone().unwrap_or_default();
    let known = |text: String| if one.registered { text } else { String::new() };
    let mut row = vec![
        spec.name.clone(),
        known(spec.order.to_string()),
        words::yes_no(one.registered).to_owned(),
        words::yes_no(!one.required_by.is_empty()).to_owned(),
        known(phases(&spec)),
        known(policy(&spec).to_owned()),
        one.pods.to_string(),
        one.missed.to_string(),
        words::age(one.since.as_ref(), SystemTime::now()),
    ];
    if wide {
        row.extend([
            known(one.generation.to_string()),
            known(format!("{} ms", spec.deadline_millis)),
            known(selector(&spec)),
            one.owed.to_string(),
            one.service.clone(),
            spec.socket.clone(),
        ]);
    }
    row
}

fn phases(spec: &v1::ExtensionSpec) -> String {
    let word = |phase| match phase {
        v1::ExtensionPhase::BeforeAttach => "before-attach",
        v1::ExtensionPhase::AfterAttach => "after-attach",
        v1::ExtensionPhase::AfterDetach => "after-detach",
        v1::ExtensionPhase::Unspecified => "unknown",
    };
    spec.phases().map(word).collect::<Vec<_>>().join(",")
}

fn policy(spec: &v1::ExtensionSpec) -> &'static str {
    match spec.fail_policy() {
        v1::FailPolicy::Fail => "fail",
        v1::FailPolicy::Ignore => "ignore",
    }
}

/// Which pods it is for.
fn selector(spec: &v1::ExtensionSpec) -> String {
    let mut parts: Vec<String> = Vec::new();
    if !spec.namespaces.is_empty() {
        parts.push(format!("namespaces {}", spec.namespaces.join(",")));
    }
    if !spec.labels.is_empty() {
        let labels: Vec<String> = spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        parts.push(format!("labels {}", labels.join(",")));
    }
    if parts.is_empty() { "all pods".to_owned() } else { parts.join(", ") }
}

async fn describe(asking: &Asking, name: &str) -> Result<ExitCode> {
    let request = v1::GetExtensionRequest { name: name.to_owned() };
    let answer = asking.connect().await?.get_extension(request).await?;
    print(asking.output, || json::value(&answer), |_| text(&answer))?;
    Ok(ExitCode::SUCCESS)
}

fn text(answer: &v1::GetExtensionResponse) -> String {
    let one = answer.extension.clone().unwrap_or_default();
    let spec = one.spec.clone().unwrap_or_default();
    let mut lines = vec![format!("Name:        {}", spec.name)];
    if one.registered {
        let age = words::age(one.since.as_ref(), SystemTime::now());
        lines.extend([
            format!("Registered:  yes, generation {}, {age} ago", one.generation),
            format!("Service:     {} on {}", one.service, spec.socket),
            format!("Order:       {}", spec.order),
            format!("Phases:      {}", phases(&spec)),
            format!("For:         {}", selector(&spec)),
            format!("On failure:  {}, also after {} ms", policy(&spec), spec.deadline_millis),
        ]);
    } else {
        lines.push("Registered:  no".to_owned());
    }
    let required =
        if one.required_by.is_empty() { "no".to_owned() } else { format!("by {}", one.required_by) };
    lines.extend([
        format!("Required:    {required}"),
        format!("Pods:        {} with it, {} without", one.pods, one.missed),
        format!("Owed:        {} calls after a detach", one.owed),
    ]);
    let mut text = lines.join("\n") + "\n";
    if !answer.missed.is_empty() {
        text += "Pods without it:\n";
        for missed in &answer.missed {
            text += &format!("  {}: {}\n", title(missed), missed.why);
        }
    }
    text
}

fn title(missed: &v1::MissedPod) -> String {
    missed.pod.as_ref().map(|pod| words::titled(&pod.namespace, &pod.name)).unwrap_or_default()
}

async fn missing(asking: &Asking, name: &str) -> Result<ExitCode> {
    let request = v1::GetExtensionRequest { name: name.to_owned() };
    let answer = asking.connect().await?.get_extension(request).await?;
    let rows = |_| {
        if answer.missed.is_empty() {
            return "no pods\n".to_owned();
        }
        let row = |missed: &v1::MissedPod| {
            let pod = missed.pod.clone().unwrap_or_default();
            vec![pod.namespace, pod.name, missed.why.clone()]
        };
        output::table(&["NAMESPACE", "NAME", "WHY"], answer.missed.iter().map(row))
    };
    print(asking.output, || json::value(&answer).map(|value| value["missed"].clone()), rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn remove(asking: &Asking, name: &str) -> Result<ExitCode> {
    let request = v1::DeregisterRequest { name: name.to_owned(), token: String::new(), as_admin: true };
    let answer = asking.connect().await?.deregister_extension(request).await?;
    let said = if answer.removed { "removed" } else { "not registered" };
    print(asking.output, || json::value(&answer), |_| format!("extension {name} {said}\n"))?;
    Ok(ExitCode::SUCCESS)
}
