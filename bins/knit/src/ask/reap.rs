//! `knit gc`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_kni::v1::collect_garbage_request::Garbage;
use knit_kni::{json, v1};

use super::{Asking, print, words};

/// What is garbage.
#[derive(Debug, Args)]
pub struct Which {
    #[command(flatten)]
    asking: Asking,
    /// A sandbox that lives, or one interface of it; may be given many times. Everything else goes
    #[arg(long = "living", value_name = "ID[/INTERFACE]")]
    living: Vec<String>,
    /// No sandbox lives: everything goes
    #[arg(long, conflicts_with = "living")]
    nothing_lives: bool,
    /// Only what calls of this group made, such as those of one CNI configuration
    #[arg(long, default_value = "")]
    group: String,
    /// Only show what would go
    #[arg(long)]
    dry_run: bool,
}

/// Removes what is dead, and prints it.
pub async fn run(which: &Which) -> Result<ExitCode> {
    let attachments: Vec<v1::Attachment> = which.living.iter().map(|text| attachment(text)).collect();
    let garbage = if attachments.is_empty() && !which.nothing_lives {
        Garbage::Gone(v1::Gone {})
    } else {
        Garbage::Living(v1::Living { none: attachments.is_empty(), attachments })
    };
    let request = v1::CollectGarbageRequest {
        garbage: Some(garbage),
        group: which.group.clone(),
        dry_run: which.dry_run,
    };
    let answer = which.asking.connect().await?.collect_garbage(request).await?;
    print(which.asking.output, || json::value(&answer), |wide| text(which, &answer, wide))?;
    Ok(ExitCode::SUCCESS)
}

fn attachment(text: &str) -> v1::Attachment {
    let (sandbox_id, interface) = text.split_once('/').unwrap_or((text, ""));
    v1::Attachment { sandbox_id: sandbox_id.to_owned(), interface: interface.to_owned() }
}

fn text(which: &Which, answer: &v1::CollectGarbageResponse, wide: bool) -> String {
    if answer.collected.is_empty() {
        return "nothing to collect\n".to_owned();
    }
    let verb = if which.dry_run { "would be removed" } else { "removed" };
    let mut text: String = answer.collected.iter().map(|one| line(one, verb)).collect();
    if let Some(plan) = answer.plan.as_ref().filter(|_| wide) {
        text += &plan.text;
    }
    text
}

fn line(collected: &v1::Collected, verb: &str) -> String {
    let what = match (collected.name.as_str(), collected.sandbox_id.as_str()) {
        ("", "") => "of no pod".to_owned(),
        ("", id) => format!("sandbox {id}"),
        (name, _) => format!("pod {}", words::titled(&collected.namespace, name)),
    };
    let items: Vec<&str> =
        collected.interfaces.iter().chain(&collected.addresses).map(String::as_str).collect();
    format!("{what}: {} {verb}: {}\n", items.join(", "), collected.why)
}
