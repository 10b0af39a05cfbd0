//! Knit's API requests for one attachment, counted by the API server.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};

use super::latency::Hotplug;
use super::{KnitCluster, Report};
use knit_soak::harness::wait_until;

/// The verbs that change something.
const WRITES: [&str; 5] = ["POST", "PUT", "PATCH", "APPLY", "DELETE"];
/// The goal for the number of writes per pod and object.
const MAX_WRITES: f64 = 3.0;

/// The number of requests by group and verb.
type Counts = BTreeMap<(String, String), f64>;

/// Counts the requests for one object with this many pods until its status is complete, and until it is deleted.
pub fn measure(report: &mut Report, hot: &mut Hotplug<'_>, size: usize) -> Result<()> {
    let before = settled(hot.knit)?;
    hot.attach(size)?;
    hot.wait_for_status(size)?;
    let between = settled(hot.knit)?;
    hot.detach(size)?;
    let after = settled(hot.knit)?;
    let pods = if size == 1 { "1 pod".to_owned() } else { format!("{size} pods") };
    // The benchmark's own create and delete are one request each.
    let (attach, detach) = (writes(&before, &between) - 1.0, writes(&between, &after) - 1.0);
    let each = |number: f64| number / size as f64;
    report.add_value(&format!("{pods}: API writes per attach"), each(attach), "writes", Some(MAX_WRITES));
    report.add_value(&format!("{pods}: API writes per detach"), each(detach), "writes", Some(MAX_WRITES));
    let other = requests(&before, &after) - attach - detach - 2.0;
    report.add_value(&format!("{pods}: API reads per attach and detach"), each(other), "reads", None);
    let events = of_group(&before, &after, |group| group == "events.k8s.io");
    report.add_value(&format!("{pods}: Events per attach and detach"), each(events), "writes", None);
    Ok(())
}

/// The counts, once nothing is written any more.
fn settled(knit: &KnitCluster) -> Result<Counts> {
    let mut last = counts(knit)?;
    wait_until("no API writes happen", Duration::from_secs(30), || {
        std::thread::sleep(Duration::from_millis(1_500));
        let now = counts(knit)?;
        let is_same = writes(&last, &now) == 0.0;
        last = now.clone();
        Ok(if is_same { Ok(now) } else { Err("there are still writes".to_owned()) })
    })
}

fn counts(knit: &KnitCluster) -> Result<Counts> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text =
        knit.block_on(knit.client().request_text(request)).context("cannot read the API server's metrics")?;
    Ok(parse(&text))
}

fn parse(metrics: &str) -> Counts {
    let mut counts = Counts::new();
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{"));
    for (labels, number) in lines.filter_map(|line| line.rsplit_once("} ")) {
        let label = |name: &str| {
            let rest = labels.split(',').find_map(|one| one.strip_prefix(name)?.strip_prefix("=\""));
            rest.unwrap_or_default().trim_end_matches('"').to_owned()
        };
        let number: f64 = number.trim().parse().unwrap_or(0.0);
        *counts.entry((label("group"), label("verb"))).or_default() += number;
    }
    counts
}

fn is_knit(group: &str) -> bool {
    group.ends_with(".opdev.io")
}

fn writes(before: &Counts, after: &Counts) -> f64 {
    difference(before, after, |group, verb| is_knit(group) && WRITES.contains(&verb))
}

fn requests(before: &Counts, after: &Counts) -> f64 {
    of_group(before, after, is_knit)
}

fn of_group(before: &Counts, after: &Counts, matches: fn(&str) -> bool) -> f64 {
    difference(before, after, |group, _| matches(group))
}

fn difference(before: &Counts, after: &Counts, matches: impl Fn(&str, &str) -> bool) -> f64 {
    let matching = after.iter().filter(|((group, verb), _)| matches(group, verb));
    matching.map(|(what, number)| number - before.get(what).unwrap_or(&0.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_of_knits_groups_count() {
        let line = |group: &str, verb: &str, number: u32| {
            format!(
                "apiserver_request_total{{code=\"200\",group=\"{group}\",resource=\"x\",verb=\"{verb}\"}} {number}\n"
            )
        };
        let before = parse(&line("podnetwork.opdev.io", "APPLY", 3));
        let after = parse(
            &[
                line("podnetwork.opdev.io", "APPLY", 5),
                line("podconfig.opdev.io", "PATCH", 1),
                line("podconfig.opdev.io", "WATCH", 4),
                line("events.k8s.io", "POST", 7),
                line("", "PATCH", 9),
            ]
            .concat(),
        );
        assert_eq!(writes(&before, &after), 3.0);
        assert_eq!(requests(&before, &after), 7.0);
        assert_eq!(of_group(&before, &after, |group| group == "events.k8s.io"), 7.0);
    }
}
