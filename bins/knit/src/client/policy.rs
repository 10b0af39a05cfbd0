//! `knit policy`.

mod show;
mod why;

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use knit_kni::{json, v1};

use self::show::ShowArgs;
use self::why::WhyArgs;
use super::{ClientArgs, format, print};
use crate::node_args::DEFAULT_NAMESPACE;
use crate::output;

/// The exit code of `knit policy why` if there is no verdict: 1 is a denied connection.
const EXIT_NO_VERDICT: u8 = 2;

/// The arguments of `knit policy`.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// List the network policies that restrict pods of this node, and the isolation of its pods
    ///
    /// DROPPED is the number of packets dropped since the policy's rules were last written; a packet that none of several
    /// NetworkPolicies allows counts for each of them. Says why policies are not enforced on this node, or what the agent has
    /// not listed from the API server yet.
    List(ListArgs),
    /// Show the network policies, the isolation and the packet filter chains of one pod of this node
    ///
    /// Policies are listed in the order of their evaluation, and chains with the packets that they dropped, for all pods that
    /// share the chain.
    Show(ShowArgs),
    /// Explain why network policies allow or deny a connection
    ///
    /// Prints the verdict of both ends, with the policy and the number of the rule that decided (from 0, as in the object),
    /// or the policies without a rule that matches, and the node that enforces it. Nothing is sent. Works for pods of all
    /// nodes.
    ///
    /// Exit code: 0 if the connection is allowed, 1 if it is denied, 2 if there is no verdict: no agent responds, it does not
    /// enforce policies or has not listed them yet, or a pod is not known.
    Why(WhyArgs),
}

/// The arguments of `knit policy list`.
#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Only policies and isolation of this namespace, and ClusterNetworkPolicies
    #[arg(short, long)]
    namespace: Option<String>,
}

/// Runs `knit policy`.
pub async fn run(args: &PolicyArgs) -> Result<ExitCode> {
    match &args.command {
        PolicyCommand::List(args) => list(args).await,
        PolicyCommand::Show(args) => show::run(args).await,
        PolicyCommand::Why(args) => why::run(args).await,
    }
}

impl PolicyArgs {
    /// The exit code of every failure, if it is not the one of other commands.
    pub fn failure_code(&self) -> Option<u8> {
        matches!(self.command, PolicyCommand::Why(_)).then_some(EXIT_NO_VERDICT)
    }
}

async fn list(args: &ListArgs) -> Result<ExitCode> {
    let request = v1::ListPoliciesRequest { namespace: args.namespace.clone().unwrap_or_default() };
    let response = args.client.connect().await?.list_policies(request).await?;
    print(args.client.output, || json::value(&response), |_| table(&response))?;
    Ok(ExitCode::SUCCESS)
}

fn table(response: &v1::ListPoliciesResponse) -> String {
    let status = response.status.clone().unwrap_or_default();
    let mut text = status_text(&status);
    if !response.policies.is_empty() {
        let header = ["KIND", "NAMESPACE", "NAME", "TIER", "PRIORITY", "DIRECTIONS", "PODS", "DROPPED"];
        text += &output::table(&header, response.policies.iter().map(row));
    } else if status.enforced && status.pending.is_empty() {
        text += "no policy restricts pods of this node\n";
    }
    text
}

fn row(one: &v1::Policy) -> Vec<String> {
    let policy = one.policy.clone().unwrap_or_default();
    let priority = if has_priority(one.tier()) { one.priority.to_string() } else { String::new() };
    let directions: Vec<&str> = one.directions().map(direction_name).collect();
    vec![
        policy.kind,
        policy.namespace,
        policy.name,
        tier_name(one.tier()).to_owned(),
        priority,
        directions.join(","),
        one.pods.to_string(),
        one.dropped_packets.map(|packets| packets.to_string()).unwrap_or_default(),
    ]
}

/// Why policies are not enforced, or not known yet, and warnings: a line for each.
fn status_text(status: &v1::PolicyStatus) -> String {
    let mut text = String::new();
    if !status.enforced {
        text += &format!("policies are not enforced on this node: {}\n", status.reason);
    }
    if !status.pending.is_empty() {
        let pending = status.pending.join(", ");
        text += &format!(
            "not listed from the API server yet: {pending}; until then rules stay as they are, and new pods are closed\n"
        );
    }
    text.extend(status.warnings.iter().map(|warning| format!("warning: {warning}\n")));
    text
}

fn tier_name(tier: v1::PolicyTier) -> &'static str {
    match tier {
        v1::PolicyTier::Unspecified => "",
        v1::PolicyTier::Admin => "Admin",
        v1::PolicyTier::NetworkPolicy => "NetworkPolicy",
        v1::PolicyTier::Baseline => "Baseline",
    }
}

fn has_priority(tier: v1::PolicyTier) -> bool {
    matches!(tier, v1::PolicyTier::Admin | v1::PolicyTier::Baseline)
}

fn direction_name(direction: v1::PolicyDirection) -> &'static str {
    match direction {
        v1::PolicyDirection::Unspecified => "",
        v1::PolicyDirection::Ingress => "ingress",
        v1::PolicyDirection::Egress => "egress",
    }
}

/// `NetworkPolicy shop/db`, `isolated namespace shop`, `app db of namespace shop`.
fn policy_name(policy: &v1::PolicyRef) -> String {
    let v1::PolicyRef { kind, namespace, name } = policy;
    match kind.as_str() {
        "IsolatedNamespace" => format!("isolated namespace {namespace}"),
        "App" => format!("app {name} of namespace {namespace}"),
        _ => format!("{kind} {}", format::qualified_name(namespace, name)),
    }
}

/// The name of a policy with tier and priority, if it has one.
fn ranked_name(policy: Option<&v1::PolicyRef>, tier: v1::PolicyTier, priority: u32) -> String {
    let name = policy.map(policy_name).unwrap_or_default();
    if has_priority(tier) { format!("{name} ({}, priority {priority})", tier_name(tier)) } else { name }
}

/// A pod as `namespace/name`, or `name` in the default namespace.
fn split_pod(text: &str) -> (String, String) {
    let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
    (namespace.to_owned(), name.to_owned())
}

/// Parses a pod's name.
fn parse_pod(text: &str) -> Result<v1::NamedPod, String> {
    let (namespace, name) = split_pod(text);
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err("expected NAMESPACE/NAME".to_owned());
    }
    Ok(v1::NamedPod { namespace, name })
}

/// Parses an IP address, or a pod's name.
fn parse_end(text: &str) -> Result<v1::ConnectionEnd, String> {
    use v1::connection_end::End;
    let end = match text.parse::<IpAddr>() {
        Ok(address) => End::Address(address.to_string()),
        Err(_) => End::Pod(parse_pod(text).map_err(|why| format!("{why} or an IP address"))?),
    };
    Ok(v1::ConnectionEnd { end: Some(end) })
}

#[cfg(test)]
mod tests {
    use v1::connection_end::End;

    use super::*;

    #[test]
    fn ends_are_addresses_or_pods() {
        let pod = |namespace: &str, name: &str| {
            Some(End::Pod(v1::NamedPod { namespace: namespace.to_owned(), name: name.to_owned() }))
        };
        assert_eq!(parse_end("shop/web").unwrap().end, pod("shop", "web"));
        assert_eq!(parse_end("web").unwrap().end, pod("default", "web"));
        assert_eq!(parse_end("fd00::0:2").unwrap().end, Some(End::Address("fd00::2".to_owned())));
        for text in ["", "/", "shop/", "/web", "a/b/c", "10.0.0.0/8/9"] {
            assert!(parse_end(text).is_err(), "{text}");
        }
    }
}
