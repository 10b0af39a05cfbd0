//! Moves a running cluster between kube-proxy and Knit, in the order that docs/services.md describes.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use knit_dev::process;

use super::daemon::{self, Readiness};
use super::layout::{DNS_SERVICE, node_name};
use super::reference::{proxy_component, start_kube_proxy};
use super::restart;
use super::state::{Cluster, Network, ServiceProxy};
use super::{node, primary};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The tables of kube-proxy in nftables mode.
const TABLES: [[&str; 2]; 2] = [["ip", "kube-proxy"], ["ip6", "kube-proxy"]];

/// Moves the cluster.
pub fn change(cluster: &mut Cluster, to: ServiceProxy) -> Result<()> {
    ensure!(
        cluster.network == Network::Knit,
        "only Knit as the cluster's network can be in place of kube-proxy"
    );
    match to {
        ServiceProxy::Knit => {
            primary::configure(cluster, "serviceProxy", "knit")?;
            primary::wait(cluster)?;
            for number in cluster.node_numbers() {
                remove_kube_proxy(cluster, number)?;
            }
        }
        ServiceProxy::KubeProxy => {
            for number in cluster.node_numbers() {
                start_kube_proxy(cluster, number)?;
                wait_for_rules(cluster, number)?;
            }
            primary::configure(cluster, "serviceProxy", "kube-proxy")?;
            primary::wait(cluster)?;
        }
    }
    cluster.set_service_proxy(to)
}

fn remove_kube_proxy(cluster: &Cluster, number: u8) -> Result<()> {
    let component = proxy_component(number);
    if daemon::find(cluster, &component).is_none() {
        return Ok(());
    }
    restart::stop(cluster, &component)?;
    for table in TABLES {
        process::output(nft(cluster, number)?.args(["delete", "table"]).args(table))?;
    }
    Ok(())
}

/// Waits until kube-proxy translates the DNS Service.
fn wait_for_rules(cluster: &Cluster, number: u8) -> Result<()> {
    let component = proxy_component(number);
    let what = format!("kube-proxy has its rules on {}", node_name(number));
    daemon::wait(cluster, &what, TIMEOUT, &[component], || {
        let listed = process::output(nft(cluster, number)?.args(["list", "table"]).args(TABLES[0]));
        let listed = listed.unwrap_or_default();
        Ok(match listed.contains(&DNS_SERVICE.to_string()) {
            true => Readiness::Ready(()),
            false => Readiness::NotYet("the DNS Service is missing".to_owned()),
        })
    })
}

fn nft(cluster: &Cluster, number: u8) -> Result<Command> {
    let mut enter = daemon::enter(node::init(cluster, number)?);
    enter.arg("nft");
    Ok(enter)
}
