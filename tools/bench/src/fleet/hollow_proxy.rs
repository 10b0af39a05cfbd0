//! kube-proxy as a peer: hollow proxies of kubemark, which watch what a kube-proxy watches and program no kernel.

use std::process::{Command as Program, Stdio};
use std::time::Duration;

use anyhow::Result;
use http::Method;
use serde_json::{Value, json};

use super::driver::{Measured, Usage};
use super::load::{self, NAMESPACE, for_each, send};
use super::{CHANGE_RATE, CHANGE_TIME, IDLE_TIME, KIB, OBJECTS_PER_NODE, cpu_percent, milliseconds};
use crate::attach::measure;
use crate::cleanup::Cleanup;
use crate::scale::manifests::Load;
use knit_report::Report;
use knit_soak::harness::KnitCluster;
use knit_testcluster::go_tools::{self, Tool};

/// The number of hollow proxies, each a process.
const PROXIES: usize = 2;
/// Endpoints of a Service.
const ENDPOINTS: usize = 10;
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Measures hollow proxies with a Service for every few foreign objects.
pub fn run(report: &mut Report, knit: &KnitCluster, load: Load, cleanup: &Cleanup) -> Result<()> {
    let tools = go_tools::ensure(&[Tool::Kubemark])?;
    let services = load.objects / OBJECTS_PER_NODE;
    measure(&format!("create {services} Services with EndpointSlices"), || create_services(knit, services))?;
    measure("hollow kube-proxies", || {
        let start = |number: usize| {
            let mut program = Program::new(tools.path(Tool::Kubemark));
            program.args(["--morph=proxy", &format!("--name={}", load::node(number))]);
            program.arg(format!("--kubeconfig={}", knit.cluster().kubeconfig().display()));
            program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Measured::start(&mut program, knit, cleanup)
        };
        let mut proxies: Vec<Measured> = (0..PROXIES).map(start).collect::<Result<_>>()?;
        let started = settle(&mut proxies)?;
        std::thread::sleep(IDLE_TIME);
        let idle = usage(&mut proxies)?;
        let changes = change_endpoints(knit, services)?;
        let after = settle(&mut proxies)?;
        let name = |what: &str| format!("{what}, hollow kube-proxy with {services} Services");
        let mean = |value: &dyn Fn(usize) -> f64| (0..PROXIES).map(value).sum::<f64>() / PROXIES as f64;
        let mut add = |what: &str, unit, value: &dyn Fn(usize) -> f64| {
            report.add_value(&name(what), mean(value), unit, None);
        };
        add("start: received", "KiB", &|at| started[at].received as f64 / KIB);
        add("start: CPU", "ms", &|at| milliseconds(started[at].cpu));
        add("RssAnon of the process", "MiB", &|at| started[at].memory);
        add("idle: CPU", "% of a core", &|at| cpu_percent(started[at], idle[at]));
        let each = changes as f64;
        let received = |at: usize| (after[at].received - idle[at].received) as f64;
        add("change of an EndpointSlice: received", "KiB", &|at| received(at) / KIB / each);
        add("change of an EndpointSlice: CPU", "ms", &|at| milliseconds(after[at].cpu - idle[at].cpu) / each);
        Ok(())
    })
}

fn settle(proxies: &mut [Measured]) -> Result<Vec<Usage>> {
    proxies.iter_mut().map(|proxy| proxy.settle(0)).collect()
}

fn usage(proxies: &mut [Measured]) -> Result<Vec<Usage>> {
    proxies.iter_mut().map(Measured::usage).collect()
}

fn create_services(knit: &KnitCluster, services: usize) -> Result<()> {
    let client = knit.client().clone();
    for_each(knit, 0..services, move |number| {
        let client = client.clone();
        async move {
            let name = format!("service-{number:05}");
            let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
            let service = json!({"metadata": {"name": name}, "spec": {"ports": ports}});
            let path = format!("/api/v1/namespaces/{NAMESPACE}/services");
            send(&client, Method::POST, &path, JSON, &service).await?;
            let slice = json!({
                "metadata": {"name": name, "labels": {SERVICE_NAME: name}},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": endpoints(number, true),
            });
            send(&client, Method::POST, &slices(), JSON, &slice).await
        }
    })
    .map(drop)
}

fn slices() -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices")
}

/// The endpoints of a Service; the first one may be unready.
fn endpoints(service: usize, is_ready: bool) -> Vec<Value> {
    let endpoint = |number: usize| {
        let (high, low) = (service / 25, service % 25 * ENDPOINTS + number + 1);
        json!({
            "addresses": [format!("10.{}.{}.{low}", 128 + high / 250, high % 250)],
            "conditions": {"ready": is_ready || number > 0},
            "nodeName": load::node(number % PROXIES),
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": format!("pod-{service}-{number}")},
        })
    };
    (0..ENDPOINTS).map(endpoint).collect()
}

/// Changes the readiness of an endpoint, of one Service after the other. Returns the number of changes.
fn change_endpoints(knit: &KnitCluster, services: usize) -> Result<usize> {
    let number = (CHANGE_TIME.as_secs_f64() * f64::from(CHANGE_RATE)) as usize;
    knit.block_on(async {
        let mut interval = tokio::time::interval(Duration::from_secs(1) / CHANGE_RATE);
        for change in 0..number {
            interval.tick().await;
            let service = change % services;
            let is_ready = change / services % 2 == 1;
            let path = format!("{}/service-{service:05}", slices());
            let body = json!({"endpoints": endpoints(service, is_ready)});
            send(knit.client(), Method::PATCH, &path, MERGE, &body).await?;
        }
        Ok(number)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn endpoints_have_unique_addresses() {
        let all = (0..8_000).flat_map(|service| endpoints(service, true));
        let addresses: BTreeSet<String> = all.map(|endpoint| endpoint["addresses"][0].to_string()).collect();
        assert_eq!(addresses.len(), 8_000 * ENDPOINTS);
    }
}
