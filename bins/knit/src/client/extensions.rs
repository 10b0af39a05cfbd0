//! `knit extensions`.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use knit_kni::{json, v1};

use super::{ClientArgs, format, print};
use crate::output;

/// The arguments of `knit extensions`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ExtensionsArgs {
    #[command(subcommand)]
    command: Option<ExtensionsCommand>,
    #[command(flatten)]
    client: ClientArgs,
    /// List the running pods that this extension selects but that were attached without it
    #[arg(long, value_name = "NAME")]
    missing: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ExtensionsCommand {
    /// Show details of one extension, with the pods that were attached without it
    Describe {
        /// Name of the extension
        name: String,
        #[command(flatten)]
        client: ClientArgs,
    },
    /// Deregister an extension as an administrator: Knit no longer calls it, not even for detached pods
    ///
    /// Does not need the token of the registration. If an Extension object requires the extension, the node accepts no
    /// new pods until it is registered again.
    Remove {
        /// Name of the extension
        name: String,
        #[command(flatten)]
        client: ClientArgs,
    },
}

/// Runs `knit extensions`.
pub async fn run(args: &ExtensionsArgs) -> Result<ExitCode> {
    match &args.command {
        None => match &args.missing {
            None => list(&args.client).await,
            Some(name) => missing(&args.client, name).await,
        },
        Some(ExtensionsCommand::Describe { name, client }) => describe(client, name).await,
        Some(ExtensionsCommand::Remove { name, client }) => remove(client, name).await,
    }
}

async fn list(client: &ClientArgs) -> Result<ExitCode> {
    let response = client.connect().await?.list_extensions(v1::ListExtensionsRequest {}).await?;
    print(client.output, || json::value(&response), |wide| table(&response.extensions, wide))?;
    Ok(ExitCode::SUCCESS)
}

fn table(extensions: &[v1::ExtensionStatus], wide: bool) -> String {
    if extensions.is_empty() {
        return "no extensions\n".to_owned();
    }
    let mut header =
        vec!["NAME", "ORDER", "REGISTERED", "REQUIRED", "PHASES", "ON FAILURE", "PODS", "MISSED", "AGE"];
    if wide {
        header.extend(["GENERATION", "TIMEOUT", "SELECTOR", "PENDING", "SERVICE", "SOCKET"]);
    }
    output::table(&header, extensions.iter().map(|one| row(one, wide)))
}

fn row(one: &v1::ExtensionStatus, wide: bool) -> Vec<String> {
    let spec = one.spec.clone().unwrap_or_default();
    let if_registered = |text: String| if one.registered { text } else { String::new() };
    let mut row = vec![
        spec.name.clone(),
        if_registered(spec.order.to_string()),
        format::yes_no(one.registered).to_owned(),
        format::yes_no(!one.required_by.is_empty()).to_owned(),
        if_registered(phases(&spec)),
        if_registered(policy(&spec).to_owned()),
        one.pods.to_string(),
        one.missed.to_string(),
        format::age(one.since.as_ref(), SystemTime::now()),
    ];
    if wide {
        row.extend([
            if_registered(one.generation.to_string()),
            if_registered(format!("{} ms", spec.deadline_millis)),
            if_registered(selector(&spec)),
            one.owed.to_string(),
            one.service.clone(),
            spec.socket.clone(),
        ]);
    }
    row
}

fn phases(spec: &v1::ExtensionSpec) -> String {
    let name = |phase| match phase {
        v1::ExtensionPhase::BeforeAttach => "before-attach",
        v1::ExtensionPhase::AfterAttach => "after-attach",
        v1::ExtensionPhase::AfterDetach => "after-detach",
        v1::ExtensionPhase::Unspecified => "unknown",
    };
    spec.phases().map(name).collect::<Vec<_>>().join(",")
}

fn policy(spec: &v1::ExtensionSpec) -> &'static str {
    match spec.fail_policy() {
        v1::FailPolicy::Fail => "fail",
        v1::FailPolicy::Ignore => "ignore",
    }
}

/// The pods that the extension selects.
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

async fn describe(client: &ClientArgs, name: &str) -> Result<ExitCode> {
    let request = v1::GetExtensionRequest { name: name.to_owned() };
    let response = client.connect().await?.get_extension(request).await?;
    print(client.output, || json::value(&response), |_| text(&response))?;
    Ok(ExitCode::SUCCESS)
}

fn text(response: &v1::GetExtensionResponse) -> String {
    let one = response.extension.clone().unwrap_or_default();
    let spec = one.spec.clone().unwrap_or_default();
    let mut lines = vec![format!("Name:        {}", spec.name)];
    if one.registered {
        let age = format::age(one.since.as_ref(), SystemTime::now());
        lines.extend([
            format!("Registered:  yes, generation {}, {age} ago", one.generation),
            format!("Service:     {} on {}", one.service, spec.socket),
            format!("Order:       {}", spec.order),
            format!("Phases:      {}", phases(&spec)),
            format!("Selector:    {}", selector(&spec)),
            format!("On failure:  {} (timeout {} ms)", policy(&spec), spec.deadline_millis),
        ]);
    } else {
        lines.push("Registered:  no".to_owned());
    }
    let required =
        if one.required_by.is_empty() { "no".to_owned() } else { format!("by {}", one.required_by) };
    lines.extend([
        format!("Required:    {required}"),
        format!("Pods:        {} attached with it, {} without", one.pods, one.missed),
        format!("Pending:     {} after-detach calls", one.owed),
    ]);
    let mut text = lines.join("\n") + "\n";
    if !response.missed.is_empty() {
        text += "Pods without it:\n";
        for missed in &response.missed {
            text += &format!("  {}: {}\n", title(missed), missed.why);
        }
    }
    text
}

fn title(missed: &v1::MissedPod) -> String {
    missed.pod.as_ref().map(|pod| format::qualified_name(&pod.namespace, &pod.name)).unwrap_or_default()
}

async fn missing(client: &ClientArgs, name: &str) -> Result<ExitCode> {
    let request = v1::GetExtensionRequest { name: name.to_owned() };
    let response = client.connect().await?.get_extension(request).await?;
    let rows = |_| {
        if response.missed.is_empty() {
            return "no pods\n".to_owned();
        }
        let row = |missed: &v1::MissedPod| {
            let pod = missed.pod.clone().unwrap_or_default();
            vec![pod.namespace, pod.name, missed.why.clone()]
        };
        output::table(&["NAMESPACE", "NAME", "REASON"], response.missed.iter().map(row))
    };
    print(client.output, || json::value(&response).map(|value| value["missed"].clone()), rows)?;
    Ok(ExitCode::SUCCESS)
}

async fn remove(client: &ClientArgs, name: &str) -> Result<ExitCode> {
    let request = v1::DeregisterRequest { name: name.to_owned(), token: String::new(), as_admin: true };
    let response = client.connect().await?.deregister_extension(request).await?;
    let outcome = if response.removed { "removed" } else { "not registered" };
    print(client.output, || json::value(&response), |_| format!("extension {name} {outcome}\n"))?;
    Ok(ExitCode::SUCCESS)
}
