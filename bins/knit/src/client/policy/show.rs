//! `knit policy show`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};

use super::{direction_name, parse_pod, policy_name, ranked_name, status_text};
use crate::client::{ClientArgs, format, print};

/// The arguments of `knit policy show`.
#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The pod
    #[arg(value_name = "NAMESPACE/NAME", value_parser = parse_pod)]
    pod: v1::NamedPod,
}

/// Prints what restricts the pod.
pub(super) async fn run(args: &ShowArgs) -> Result<ExitCode> {
    let v1::NamedPod { namespace, name } = args.pod.clone();
    let request = v1::GetPodPoliciesRequest { pod: Some(v1::PodRef { id: String::new(), name, namespace }) };
    let response = args.client.connect().await?.get_pod_policies(request).await?;
    print(args.client.output, || json::value(&response), |_| description(&response))?;
    Ok(ExitCode::SUCCESS)
}

fn description(pod: &v1::GetPodPoliciesResponse) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let mut text = status_text(&status);
    text += &format!("Pod:        {}\n", format::qualified_name(&pod.namespace, &pod.name));
    if !pod.addresses.is_empty() {
        text += &format!("Addresses:  {}\n", pod.addresses.join(", "));
    }
    if pod.closed {
        text += "Closed:     its labels or those of its namespace are not known yet\n";
    }
    if status.enforced {
        text.extend(pod.directions.iter().map(direction));
        text += &isolation(pod);
    }
    text
}

fn direction(one: &v1::DirectionPolicies) -> String {
    let mut title = direction_name(one.direction()).to_owned();
    title[..1].make_ascii_uppercase();
    if !one.restricted {
        return format!("{title}: not restricted\n");
    }
    let mut text = format!("{title}:\n");
    text.extend(one.policies.iter().map(policy));
    let is_tenants = |policy: &v1::AppliedPolicy| policy.tier() == v1::PolicyTier::NetworkPolicy;
    if one.policies.iter().any(is_tenants) {
        text += "  everything else is denied\n";
    }
    text.extend(one.chains.iter().map(chain));
    text
}

fn policy(one: &v1::AppliedPolicy) -> String {
    let name = ranked_name(one.policy.as_ref(), one.tier(), one.priority);
    let rules = match one.rules {
        1 => "1 rule".to_owned(),
        count => format!("{count} rules"),
    };
    let skipped = if one.skipped { ", not evaluated: NetworkPolicies are about the pod" } else { "" };
    format!("  {name}: {rules}{skipped}\n")
}

fn chain(one: &v1::PolicyChain) -> String {
    let shared = match one.pods {
        0 | 1 => String::new(),
        count => format!(", shared by {count} pods of this node"),
    };
    let dropped = match one.dropped_packets {
        None => String::new(),
        Some(1) => ", 1 packet dropped".to_owned(),
        Some(count) => format!(", {count} packets dropped"),
    };
    format!("  chain {}{shared}{dropped}\n", one.name)
}

fn isolation(pod: &v1::GetPodPoliciesResponse) -> String {
    match &pod.isolation {
        None => "Isolation: none\n".to_owned(),
        Some(segment) => {
            let name = policy_name(segment);
            let chain = pod.isolation_chain.as_ref().map(chain).unwrap_or_default();
            format!("Isolation:\n  {name}: other pods reach it through Services only\n{chain}")
        }
    }
}
