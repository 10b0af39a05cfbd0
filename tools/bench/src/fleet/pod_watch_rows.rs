//! Measures each way to watch all pods: its start, and changes of labels.

use std::io::Write;
use std::process::{Command as Program, Stdio};
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use http::Method;
use serde_json::{Value, json};

use super::driver::Measured;
use super::load::{NAMESPACE, for_each, running_status, send};
use super::pod_watch::{Form, PolicyPod, SLICE_KEY, SLICE_LABEL};
use crate::attach::measure;
use crate::cleanup::Cleanup;
use crate::scale::changes::{self, Change};
use crate::scale::manifests::Load;
use knit_report::Report;
use knit_soak::harness::KnitCluster;

/// Changes per second, and for how long.
const RATE: u32 = 50;
const TIME: Duration = Duration::from_secs(6);
/// The numbers of pods in a slice.
const SLICE_SIZES: [usize; 2] = [10, 100];
/// The size of the large cluster that policy has to work in.
const LARGE: f64 = 150_000.0;

const KIB: f64 = 1024.0;
const MIB: f64 = KIB * KIB;
const MERGE: &str = "application/merge-patch+json";

/// Measures all ways.
pub fn run(report: &mut Report, knit: &KnitCluster, load: Load, cleanup: &Cleanup) -> Result<()> {
    measure(&format!("report {} foreign pods as running", load.pods), || start_foreign_pods(knit, load))?;
    let change_pods =
        |first| changes::run(knit, load, &[Change::Pod], RATE, first, TIME).map(|(number, _)| number);
    let forms = [(Form::Full, "full objects"), (Form::Metadata, "metadata only")];
    for (round, (form, what)) in forms.into_iter().enumerate() {
        measure(&format!("watch of all pods, {what}"), || {
            row(report, knit, load, form, what, cleanup, || change_pods(1_000_000 * (round + 1)))
        })?;
    }
    for size in SLICE_SIZES {
        let what = format!("slices of {size} pods");
        let slices = slices(load, size);
        measure(&format!("watch of all pods, {what}"), || {
            write_slices(knit, &slices)?;
            row(report, knit, load, Form::Slices, &what, cleanup, || change_slices(knit, &slices))?;
            delete_slices(knit, slices.len())
        })?;
    }
    Ok(())
}

/// The rows of one way. `change` changes pods and returns their number.
fn row(
    report: &mut Report,
    knit: &KnitCluster,
    load: Load,
    form: Form,
    what: &str,
    cleanup: &Cleanup,
    change: impl FnOnce() -> Result<usize>,
) -> Result<()> {
    let mut program = Program::new(std::env::current_exe().context("this program has no path")?);
    let form = form.to_possible_value().context("the form has a name")?;
    program.args(["watch-pods", "--form", form.get_name()]);
    program.arg("--kubeconfig").arg(knit.cluster().kubeconfig()).stdin(Stdio::piped());
    let mut process = Measured::start(&mut program, knit, cleanup)?;
    let before = process.settle(0)?;
    let mut start = process.child().lock().unwrap_or_else(PoisonError::into_inner).stdin.take();
    start.as_mut().context("no standard input")?.write_all(b"\n")?;
    let listed = process.settle(0)?;
    let changes = change()? as f64;
    let after = process.settle(0)?;

    let name = |value: &str| format!("watch of all pods, {what}: {value}");
    let pods = load.pods as f64;
    let each = (listed.received - before.received) as f64 / pods;
    report.add_value(&name("received at the start, per pod"), each / KIB, "KiB", None);
    let cpu = (listed.cpu - before.cpu).as_secs_f64() / pods;
    report.add_value(&name("CPU of the start, per 1,000 pods"), cpu * 1e6, "ms", None);
    let memory = (listed.memory - before.memory) / pods;
    report.add_value(&name("RssAnon per 1,000 pods"), memory * 1e3, "MiB", None);
    let received = (after.received - listed.received) as f64 / changes;
    report.add_value(&name("received per change"), received / KIB, "KiB", None);
    let per_change = (after.cpu - listed.cpu).as_secs_f64() / changes;
    report.add_value(&name("CPU per change"), per_change * 1e3, "ms", None);
    let large = |value: &str| name(&format!("{value}, extrapolated to 150,000 pods"));
    report.add_value(&large("received at the start"), each * LARGE / MIB, "MiB", None);
    report.add_value(&large("CPU of the start"), cpu * LARGE, "s", None);
    report.add_value(&large("RssAnon"), memory * LARGE, "MiB", None);
    Ok(())
}

/// Gives the foreign pods the status of running ones, which is half of their size.
fn start_foreign_pods(knit: &KnitCluster, load: Load) -> Result<()> {
    let client = knit.client().clone();
    for_each(knit, 0..load.pods, move |number| {
        let (client, path) = (client.clone(), format!("{}/status", load.pod_path(number)));
        async move {
            let body = json!({"status": running_status(&addresses(number))});
            send(&client, Method::PATCH, &path, MERGE, &body).await
        }
    })
    .map(drop)
}

/// Addresses of a pod in both families.
fn addresses(number: usize) -> [String; 2] {
    let (high, low) = (number / 250, 1 + number % 250);
    [format!("10.{}.{}.{low}", 64 + high / 250, high % 250), format!("fd00:40::{high:x}:{low:x}")]
}

/// All pods as a controller would compile them, by namespace.
fn slices(load: Load, size: usize) -> Vec<Vec<PolicyPod>> {
    let pod = |number: usize| {
        let body = load.pod(number).body;
        let namespace = load.pod_path(number).split('/').nth(4).unwrap_or_default().to_owned();
        PolicyPod {
            name: body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            namespace,
            labels: serde_json::from_value(body["metadata"]["labels"].clone()).unwrap_or_default(),
            addresses: addresses(number).to_vec(),
        }
    };
    let mut pods: Vec<PolicyPod> = (0..load.pods).map(pod).collect();
    pods.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    pods.chunks(size).map(<[PolicyPod]>::to_vec).collect()
}

fn slice_path(number: usize) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/configmaps/slice-{number:05}")
}

fn data(pods: &[PolicyPod]) -> Result<Value> {
    Ok(json!({SLICE_KEY: serde_json::to_string(pods)?}))
}

fn write_slices(knit: &KnitCluster, slices: &[Vec<PolicyPod>]) -> Result<()> {
    let client = knit.client().clone();
    let bodies = slices.iter().enumerate().map(|(number, pods)| {
        let name = format!("slice-{number:05}");
        Ok(json!({"metadata": {"name": name, "labels": {SLICE_LABEL: "true"}}, "data": data(pods)?}))
    });
    let bodies: Vec<Value> = bodies.collect::<Result<_>>()?;
    for_each(knit, bodies, move |body| {
        let client = client.clone();
        async move {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
            send(&client, Method::POST, &path, "application/json", &body).await
        }
    })
    .map(drop)
}

/// Changes a label of one pod at a time; each change is one write of its slice.
fn change_slices(knit: &KnitCluster, slices: &[Vec<PolicyPod>]) -> Result<usize> {
    let number = (TIME.as_secs_f64() * f64::from(RATE)) as usize;
    knit.block_on(async {
        let mut interval = tokio::time::interval(Duration::from_secs(1) / RATE);
        for change in 0..number {
            interval.tick().await;
            let at = change * 7_919 % slices.len();
            let mut pods = slices[at].clone();
            let pod = change % pods.len();
            pods[pod].labels.insert("revision".to_owned(), format!("r{change}"));
            let body = json!({"data": data(&pods)?});
            send(knit.client(), Method::PATCH, &slice_path(at), MERGE, &body).await?;
        }
        Ok(number)
    })
}

fn delete_slices(knit: &KnitCluster, number: usize) -> Result<()> {
    let client = knit.client().clone();
    for_each(knit, 0..number, move |number| {
        let client = client.clone();
        async move { send(&client, Method::DELETE, &slice_path(number), "application/json", &json!({})).await }
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_contain_every_pod_once() {
        let load = Load { nodes: 10, pods: 205, objects: 30 };
        let slices = slices(load, 100);
        assert_eq!(slices.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 5]);
        let names: std::collections::BTreeSet<_> = slices.iter().flatten().map(|pod| &pod.name).collect();
        assert_eq!(names.len(), load.pods);
        assert!(
            slices.iter().flatten().all(|pod| pod.namespace.starts_with("team-") && !pod.labels.is_empty())
        );
    }

    #[test]
    fn addresses_are_unique() {
        let all: std::collections::BTreeSet<_> = (0..100_000).flat_map(addresses).collect();
        assert_eq!(all.len(), 200_000);
    }
}
