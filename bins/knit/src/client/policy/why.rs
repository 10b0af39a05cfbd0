//! `knit policy why`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use knit_kni::{json, v1};
use v1::connection_end::End;

use super::{parse_end, policy_name, ranked_name};
use crate::client::{ClientArgs, format, print};

/// The port without `--port`.
const DEFAULT_PORT: u16 = 80;

/// The arguments of `knit policy why`.
#[derive(Debug, Args)]
pub(super) struct WhyArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The pod or the IP address that opens the connection
    #[arg(value_name = "FROM", value_parser = parse_end)]
    from: v1::ConnectionEnd,
    /// The other end: a pod or an IP address; with a Service, the backend
    #[arg(value_name = "TO", value_parser = parse_end)]
    to: v1::ConnectionEnd,
    /// The protocol: tcp, udp, sctp, icmp, icmpv6 or a number
    #[arg(long, default_value = "tcp")]
    protocol: String,
    /// The destination port: with a Service, that of the backend [default: 80 with tcp, udp and sctp]
    #[arg(long)]
    port: Option<u16>,
    /// The connection goes through a Service
    #[arg(long)]
    service: bool,
}

impl WhyArgs {
    fn request(&self) -> v1::ExplainConnectionRequest {
        let has_ports = ["tcp", "udp", "sctp"].contains(&self.protocol.to_ascii_lowercase().as_str());
        let default = if has_ports { DEFAULT_PORT } else { 0 };
        v1::ExplainConnectionRequest {
            from: Some(self.from.clone()),
            to: Some(self.to.clone()),
            protocol: self.protocol.clone(),
            port: self.port.unwrap_or(default).into(),
            through_service: self.service,
        }
    }
}

/// Prints the verdict.
pub(super) async fn run(args: &WhyArgs) -> Result<ExitCode> {
    let request = args.request();
    let response = args.client.connect().await?.explain_connection(request.clone()).await?;
    print(args.client.output, || json::value(&response), |_| description(&request, &response))?;
    Ok(if response.allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn description(request: &v1::ExplainConnectionRequest, response: &v1::ExplainConnectionResponse) -> String {
    let mut text = String::new();
    text.extend(response.warnings.iter().map(|warning| format!("warning: {warning}\n")));
    if response.connections.is_empty() {
        let title = title(request, &[]);
        return text
            + &format!("{title}: allowed\n  there is no policy in the cluster, and nothing is isolated\n");
    }
    let mut rest = response.connections.as_slice();
    while let Some((first, others)) = rest.split_first() {
        // The families differ only if policies have ranges.
        let same = others.iter().take_while(|other| is_same(first, other)).count();
        text += &format!("{}: {}\n", title(request, &rest[..=same]), allowed(first.allowed));
        text += &connection(first);
        rest = &others[same..];
    }
    text
}

/// Whether two connections have the same verdict for the same reason.
fn is_same(one: &v1::ExplainedConnection, other: &v1::ExplainedConnection) -> bool {
    let addresses = |one: &v1::ExplainedConnection| (one.source.clone(), one.destination.clone());
    let (source, destination) = addresses(one);
    v1::ExplainedConnection { source, destination, ..other.clone() } == *one
}

/// The connection with the addresses of its ends.
fn title(request: &v1::ExplainConnectionRequest, connections: &[v1::ExplainedConnection]) -> String {
    let end = |end: &Option<v1::ConnectionEnd>, address: fn(&v1::ExplainedConnection) -> &str| {
        let addresses: Vec<&str> = connections.iter().map(address).collect();
        match end.as_ref().and_then(|end| end.end.as_ref()) {
            Some(End::Pod(pod)) if addresses.is_empty() => pod_name(pod),
            Some(End::Pod(pod)) => format!("{} ({})", pod_name(pod), addresses.join(", ")),
            Some(End::Address(text)) => text.clone(),
            None => String::new(),
        }
    };
    let (from, to) = (end(&request.from, |one| &one.source), end(&request.to, |one| &one.destination));
    let port = if request.port == 0 { String::new() } else { format!(" port {}", request.port) };
    let service = if request.through_service { " through a Service" } else { "" };
    format!("{from} to {to}, {}{port}{service}", request.protocol)
}

fn connection(one: &v1::ExplainedConnection) -> String {
    let (egress, ingress) = (one.egress.clone().unwrap_or_default(), one.ingress.clone().unwrap_or_default());
    let mut text = end("egress", &one.source, &egress) + &end("ingress", &one.destination, &ingress);
    if let Some(segment) = &one.isolation {
        let node = enforced(&egress);
        text += &format!(
            "  isolation{node}: denied, other pods reach {} through Services only\n",
            policy_name(segment)
        );
    }
    text
}

fn end(direction: &str, address: &str, end: &v1::EndVerdict) -> String {
    let Some(pod) = &end.pod else {
        return format!("  {direction} of {address}: allowed, not a pod of the cluster network\n");
    };
    let mut text = format!(
        "  {direction} of {}{}: {}, {}\n",
        pod_name(pod),
        enforced(end),
        allowed(end.allowed),
        reason(direction, end)
    );
    text.extend(end.steps.iter().map(|one| step(direction, one)));
    text
}

/// The node that enforces the policies of an end.
fn enforced(end: &v1::EndVerdict) -> String {
    match (end.local, end.node.as_str()) {
        (true, _) => ", enforced on this node".to_owned(),
        (false, "") => ", enforced on a node that is not known".to_owned(),
        (false, node) => format!(", enforced on node {node}"),
    }
}

fn reason(direction: &str, end: &v1::EndVerdict) -> String {
    match end.reason() {
        v1::VerdictReason::Rule => {
            let policy = end.policy.as_ref().map(policy_name).unwrap_or_default();
            format!("by {policy} {direction}[{}]", end.rule)
        }
        v1::VerdictReason::NoPolicyDecides if end.steps.is_empty() => "no policy is about it".to_owned(),
        v1::VerdictReason::NoPolicyDecides => "no policy denies it".to_owned(),
        v1::VerdictReason::NoRuleMatches => "no rule of its NetworkPolicies matches".to_owned(),
        v1::VerdictReason::SamePod => "a pod reaches itself".to_owned(),
        v1::VerdictReason::OwnNode => {
            "no policy is about connections between a pod and its own node".to_owned()
        }
        v1::VerdictReason::NotAPod | v1::VerdictReason::Unspecified => "no policy is about it".to_owned(),
    }
}

fn step(direction: &str, one: &v1::PolicyStep) -> String {
    let rule = format!("{direction}[{}]", one.rule);
    let outcome = match one.outcome() {
        v1::PolicyOutcome::Allow => format!("{rule} allows it"),
        v1::PolicyOutcome::Deny => format!("{rule} denies it"),
        v1::PolicyOutcome::Pass => format!("{rule} passes it on"),
        v1::PolicyOutcome::Skipped => "not evaluated".to_owned(),
        v1::PolicyOutcome::NoMatch | v1::PolicyOutcome::Unspecified => "no rule matches".to_owned(),
    };
    format!("    {}: {outcome}\n", ranked_name(one.policy.as_ref(), one.tier(), one.priority))
}

fn pod_name(pod: &v1::NamedPod) -> String {
    format::qualified_name(&pod.namespace, &pod.name)
}

fn allowed(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "denied" }
}
