//! The agents' API requests, counted by the API server.
//!
//! Its metrics have no client. The agents' requests are identified by what is requested: the benchmark itself lists and watches nothing, and
//! writes only pods, Nodes, Namespaces and the objects that tenants create.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use knit_soak::harness::KnitCluster;

/// What only agents write.
const AGENT_RESOURCES: [&str; 3] = ["podnetworkstates", "nodenetworks", "podaddressblocks"];
/// What agents read besides Knit's kinds.
const READ_RESOURCES: [&str; 3] = ["nodes", "pods", "namespaces"];
const READS: [&str; 2] = ["LIST", "WATCH"];

/// The number of the agents' requests so far. A watch counts from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    /// Lists, watches and single objects.
    pub reads: f64,
    /// Writes of status, blocks and claims.
    pub writes: f64,
    /// Written Events.
    pub events: f64,
}

impl Requests {
    /// Reads the API server's metrics.
    pub fn count(knit: &KnitCluster) -> Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = knit.block_on(knit.client().request_text(request));
        Ok(parse(&text.context("cannot read the API server's metrics")?))
    }

    /// The requests since an earlier count.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            events: self.events - earlier.events,
        }
    }
}

fn parse(metrics: &str) -> Requests {
    let mut requests = Requests::default();
    for line in metrics.lines() {
        // A watch is in the total when it has ended, and in the gauge while it lasts.
        let labels = line
            .strip_prefix("apiserver_request_total{")
            .or_else(|| line.strip_prefix("apiserver_longrunning_requests{"));
        let Some((labels, number)) = labels.and_then(|rest| rest.rsplit_once("} ")) else { continue };
        let labels = labels_of(labels);
        let label = |name: &str| labels.get(name).copied().unwrap_or_default();
        let (group, resource, verb) = (label("group"), label("resource"), label("verb"));
        let number: f64 = number.trim().parse().unwrap_or(0.0);
        let is_knit = group.ends_with(".opdev.io");
        if group == "events.k8s.io" && verb == "POST" {
            requests.events += number;
        } else if READS.contains(&verb) && (is_knit || group.is_empty() && READ_RESOURCES.contains(&resource))
        {
            requests.reads += number;
        } else if is_knit && AGENT_RESOURCES.contains(&resource) {
            requests.writes += number;
        }
    }
    requests
}

fn labels_of(text: &str) -> BTreeMap<&str, &str> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name, value.trim_matches('"'))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(metric: &str, group: &str, resource: &str, verb: &str, number: u32) -> String {
        format!(
            "{metric}{{code=\"200\",group=\"{group}\",resource=\"{resource}\",verb=\"{verb}\"}} {number}\n"
        )
    }

    #[test]
    fn requests_of_the_benchmark_do_not_count() {
        let total = "apiserver_request_total";
        let text = [
            line(total, "", "pods", "POST", 100),
            line(total, "", "pods", "LIST", 2),
            line("apiserver_longrunning_requests", "", "pods", "WATCH", 3),
            line(total, "podnetwork.opdev.io", "veths", "POST", 100),
            line(total, "podnetwork.opdev.io", "veths", "LIST", 4),
            line(total, "podnetwork.opdev.io", "podnetworkstates", "APPLY", 5),
            line(total, "podnetwork.opdev.io", "podnetworkstates", "DELETE", 6),
            line(total, "events.k8s.io", "events", "POST", 7),
            line(total, "coordination.k8s.io", "leases", "PUT", 100),
        ];
        assert_eq!(parse(&text.concat()), Requests { reads: 9.0, writes: 11.0, events: 7.0 });
    }
}
