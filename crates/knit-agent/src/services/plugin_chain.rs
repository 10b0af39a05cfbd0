//! Interfaces created by existing CNI plugins, rendered from the plugins' results.

use knit_engine::State;
use knit_engine::plugin_chain::ChainedInterface;
use knit_kni::v1;
use serde_json::Value;

use super::pods;

/// Networks implemented by chains of plugins.
pub(super) fn networks(state: &State) -> impl Iterator<Item = v1::Network> {
    state.attachments.chains().keys().map(|name| {
        let on_it = state.attachments.all_chained().filter(|chained| chained.network == *name).count();
        v1::Network {
            name: name.clone(),
            readiness: Some(v1::Readiness { ready: true, conditions: Vec::new() }),
            transport: "cni".to_owned(),
            interfaces: u32::try_from(on_it).unwrap_or(u32::MAX),
            ..v1::Network::default()
        }
    })
}

/// An interface that a chain created or is creating.
pub(super) fn interface(chained: &ChainedInterface) -> v1::Interface {
    let result: Value =
        chained.result.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let list = |name: &str| result.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let interfaces = list("interfaces");
    let is_inside = |one: &Value| !text(one, "sandbox").is_empty();
    let inside = interfaces
        .iter()
        .find(|one| text(one, "name") == chained.interface.as_str() && is_inside(one))
        .cloned()
        .unwrap_or_default();
    let mut host = interfaces.iter().filter(|one| !is_inside(one)).map(|one| text(one, "name"));
    // Plugins list the bridge first and the host end of the container's interface last.
    let host_link = host.next_back().unwrap_or_default();
    let mtu = inside.get("mtu").and_then(Value::as_u64).unwrap_or_default();
    v1::Interface {
        name: chained.interface.to_string(),
        kind: "cni".to_owned(),
        network: chained.network.clone(),
        mac: text(&inside, "mac"),
        mtu: u32::try_from(mtu).unwrap_or_default(),
        addresses: list("ips").iter().filter_map(address).collect(),
        routes: list("routes")
            .iter()
            .map(|route| v1::Route {
                destination: text(route, "dst"),
                gateway: text(route, "gw"),
                ..v1::Route::default()
            })
            .collect(),
        host_link,
        provenance: Some(v1::Provenance {
            dialect: format!("{:?}", chained.origin.dialect).to_lowercase(),
            field: chained.origin.field.clone(),
            call_id: chained.origin.call.clone().unwrap_or_default(),
            ..v1::Provenance::default()
        }),
        ready: chained.result.is_some() && !chained.removing,
        since: Some(pods::timestamp(chained.since)),
        group: chained.metadata.group.clone(),
        ..v1::Interface::default()
    }
}

fn address(value: &Value) -> Option<v1::Address> {
    let net: ipnet::IpNet = value.get("address")?.as_str()?.parse().ok()?;
    Some(v1::Address {
        address: net.addr().to_string(),
        prefix_length: u32::from(net.prefix_len()),
        family: pods::family(net.addr().is_ipv6()).into(),
        gateway: value.get("gateway").and_then(Value::as_str).unwrap_or_default().to_owned(),
    })
}
