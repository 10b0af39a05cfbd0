//! Why a connection is allowed or denied.

use std::net::IpAddr;

use knit_engine::State;
use knit_engine::policies::report::{
    ConnectionQuery, ConnectionReport, EndReport, Endpoint, ExplainError, PodNode,
};
use knit_kni::v1::connection_end::End;
use knit_kni::{Reason, RpcError, v1};
use knit_policy::{Action, Outcome, PodKey, PolicyId, Protocol, TraceStep, Verdict};

use super::{named_pod, policy_ref, reason, segment_ref, tier_of, warnings};
use crate::services::request::{Checked, invalid, pod_name};

/// Protocols by name, besides those with ports.
const ICMP: [(&str, u8); 2] = [("icmp", 1), ("icmpv6", 58)];

/// Validates and translates a request.
pub(super) fn connection_query(request: v1::ExplainConnectionRequest) -> Checked<ConnectionQuery> {
    let v1::ExplainConnectionRequest { from, to, protocol, port, through_service } = request;
    let port = u16::try_from(port).map_err(|_| invalid("port", format!("{port} is more than 65535")))?;
    let protocol = protocol_number(&protocol)?;
    let has_ports = Protocol::ALL.iter().any(|one| one.number() == protocol);
    if port != 0 && !has_ports {
        return Err(invalid("port", "the protocol has no ports"));
    }
    Ok(ConnectionQuery {
        from: endpoint("from", from)?,
        to: endpoint("to", to)?,
        protocol,
        port,
        through_service,
    })
}

fn protocol_number(text: &str) -> Checked<u8> {
    let name = text.to_ascii_lowercase();
    let with_ports =
        [("", Protocol::Tcp), ("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("sctp", Protocol::Sctp)];
    let known = with_ports.map(|(name, protocol)| (name, protocol.number())).into_iter().chain(ICMP);
    let number = known.into_iter().find(|(known, _)| *known == name).map(|(_, number)| number);
    number.or_else(|| name.parse().ok()).ok_or_else(|| {
        let message = format!("`{}` is not tcp, udp, sctp, icmp, icmpv6 or a number", text.escape_debug());
        invalid("protocol", message)
    })
}

fn endpoint(field: &str, end: Option<v1::ConnectionEnd>) -> Checked<Endpoint> {
    match end.and_then(|end| end.end) {
        Some(End::Address(text)) => {
            let address: IpAddr = text
                .parse()
                .map_err(|_| invalid(field, format!("`{}` is not an IP address", text.escape_debug())))?;
            Ok(Endpoint::Address(address.to_canonical()))
        }
        Some(End::Pod(v1::NamedPod { namespace, name })) if !name.is_empty() => {
            let namespace = if namespace.is_empty() { "default" } else { &namespace };
            let (namespace, name) = (pod_name(field, namespace)?, pod_name(field, &name)?);
            Ok(Endpoint::Pod(PodKey { namespace, name }))
        }
        _ => Err(invalid(field, "set a pod or an address")),
    }
}

/// Explains a connection.
pub(super) fn explain(
    state: &State,
    node: &str,
    profile: &str,
    query: &ConnectionQuery,
) -> Checked<v1::ExplainConnectionResponse> {
    let reports = state.explain_connection(query).map_err(|why| failed(state, profile, &why))?;
    Ok(v1::ExplainConnectionResponse {
        allowed: reports.iter().all(ConnectionReport::is_allowed),
        connections: reports.iter().map(|report| connection(report, node)).collect(),
        warnings: warnings(&state.policy_status()),
    })
}

fn failed(state: &State, profile: &str, why: &ExplainError) -> RpcError {
    let (reason, message) = match why {
        ExplainError::NotEnforced => {
            let why = reason(&state.policy_status(), profile);
            (Reason::Unsupported, format!("policies are not enforced on this node: {why}"))
        }
        ExplainError::Pending(what) => {
            let message = format!("the agent has not listed {} from the API server yet", what.join(", "));
            (Reason::NotReady, message)
        }
        ExplainError::UnknownPod(PodKey { namespace, name }) => {
            (Reason::NotFound, format!("pod {namespace}/{name} not found"))
        }
        ExplainError::NoAddress(PodKey { namespace, name }) => {
            let message = format!(
                "pod {namespace}/{name} has no address on the cluster network: it is starting, has ended, or is on the host network and has the address of its node"
            );
            (Reason::NotReady, message)
        }
        ExplainError::NoCommonFamily => {
            (Reason::InvalidValue, "both ends must have addresses of one family".to_owned())
        }
    };
    RpcError::new(reason, message)
}

fn connection(report: &ConnectionReport, node: &str) -> v1::ExplainedConnection {
    v1::ExplainedConnection {
        source: report.flow.source.to_string(),
        destination: report.flow.destination.to_string(),
        allowed: report.is_allowed(),
        egress: Some(end(&report.egress, node)),
        ingress: Some(end(&report.ingress, node)),
        isolation: report.isolated.as_ref().map(segment_ref),
    }
}

fn end(end: &EndReport, this_node: &str) -> v1::EndVerdict {
    let (reason, decided) = verdict(end);
    let node = match &end.node {
        PodNode::Local => this_node.to_owned(),
        PodNode::Remote(name) => name.clone(),
        PodNode::Unknown => String::new(),
    };
    v1::EndVerdict {
        pod: end.pod.as_ref().map(named_pod),
        node,
        local: end.node == PodNode::Local,
        allowed: end.verdict.is_allowed(),
        reason: reason.into(),
        policy: decided.map(|(policy, _)| policy_ref(policy)),
        rule: decided.map_or(0, |(_, rule)| super::count(rule)),
        steps: end.trace.iter().map(step).collect(),
    }
}

/// The reason of a verdict, with the policy and the number of the rule that decided.
fn verdict(end: &EndReport) -> (v1::VerdictReason, Option<(&PolicyId, usize)>) {
    match &end.verdict {
        _ if end.pod.is_none() => (v1::VerdictReason::NotAPod, None),
        _ if end.is_own_node => (v1::VerdictReason::OwnNode, None),
        Verdict::Unrestricted => (v1::VerdictReason::NoPolicyDecides, None),
        Verdict::Allowed { policy, rule } | Verdict::DeniedBy { policy, rule } => {
            (v1::VerdictReason::Rule, Some((policy, *rule)))
        }
        Verdict::Denied { .. } => (v1::VerdictReason::NoRuleMatches, None),
        Verdict::Itself => (v1::VerdictReason::SamePod, None),
    }
}

fn step(step: &TraceStep) -> v1::PolicyStep {
    let (outcome, rule) = match step.outcome {
        Outcome::NoMatch => (v1::PolicyOutcome::NoMatch, 0),
        Outcome::Skipped => (v1::PolicyOutcome::Skipped, 0),
        Outcome::Matched { rule, action: Action::Allow } => (v1::PolicyOutcome::Allow, rule),
        Outcome::Matched { rule, action: Action::Deny } => (v1::PolicyOutcome::Deny, rule),
        Outcome::Matched { rule, action: Action::Pass } => (v1::PolicyOutcome::Pass, rule),
    };
    let (tier, priority) = tier_of(step.tier);
    v1::PolicyStep {
        policy: Some(policy_ref(&step.policy)),
        tier: tier.into(),
        priority,
        outcome: outcome.into(),
        rule: super::count(rule),
    }
}
