//! `knit gc`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_kni::v1::collect_garbage_request::Garbage;
use knit_kni::{json, v1};

use super::{ClientArgs, format, print};

/// The arguments of `knit gc`.
#[derive(Debug, Args)]
pub struct GcArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Keep this sandbox, or one interface of it, and remove all others; may be repeated
    #[arg(long, value_name = "ID[/INTERFACE]")]
    keep: Vec<String>,
    /// Remove the interfaces of all sandboxes
    #[arg(long, conflicts_with = "keep")]
    all: bool,
    /// Only attachments of this group, for example of one CNI configuration
    #[arg(long, default_value = "")]
    group: String,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Collects garbage and prints it.
pub async fn run(args: &GcArgs) -> Result<ExitCode> {
    let attachments: Vec<v1::Attachment> = args.keep.iter().map(|text| attachment(text)).collect();
    let garbage = if attachments.is_empty() && !args.all {
        Garbage::Gone(v1::Gone {})
    } else {
        Garbage::Living(v1::Living { none: attachments.is_empty(), attachments })
    };
    let request = v1::CollectGarbageRequest {
        garbage: Some(garbage),
        group: args.group.clone(),
        dry_run: args.dry_run,
    };
    let response = args.client.connect().await?.collect_garbage(request).await?;
    print(args.client.output, || json::value(&response), |wide| text(args, &response, wide))?;
    Ok(ExitCode::SUCCESS)
}

fn attachment(text: &str) -> v1::Attachment {
    let (sandbox_id, interface) = text.split_once('/').unwrap_or((text, ""));
    v1::Attachment { sandbox_id: sandbox_id.to_owned(), interface: interface.to_owned() }
}

fn text(args: &GcArgs, response: &v1::CollectGarbageResponse, wide: bool) -> String {
    if response.collected.is_empty() {
        return "nothing to collect\n".to_owned();
    }
    let verb = if args.dry_run { "would be removed" } else { "removed" };
    let mut text: String = response.collected.iter().map(|one| line(one, verb)).collect();
    if let Some(plan) = response.plan.as_ref().filter(|_| wide) {
        text += &plan.text;
    }
    text
}

fn line(collected: &v1::Collected, verb: &str) -> String {
    let owner = match (collected.name.as_str(), collected.sandbox_id.as_str()) {
        ("", "") => "no pod".to_owned(),
        ("", id) => format!("sandbox {id}"),
        (name, _) => format!("pod {}", format::qualified_name(&collected.namespace, name)),
    };
    let items: Vec<&str> =
        collected.interfaces.iter().chain(&collected.addresses).map(String::as_str).collect();
    format!("{owner}: {} {verb}: {}\n", items.join(", "), collected.why)
}
