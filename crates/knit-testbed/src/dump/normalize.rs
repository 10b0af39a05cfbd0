//! Normalizes the tools' JSON into lines that change only when something was changed.
//!
//! Left out, because the kernel changes it by itself or it is meaningless later:
//! - indices, counters, reference counts, timers, handles that the kernel picks;
//! - `tso_max_*`: a new link inherits them from existing links, so they depend on the order of creation;
//! - `operstate`, NO-CARRIER, `linkdown`, a port's STP state and the qdisc `noqueue`: the kernel sets them up to a
//!   second after the change that causes them. LOWER_UP shows the same at once;
//! - link-local addresses that the kernel derives from the MAC, and the kernel's own routes for link-local and
//!   multicast: they appear with duplicate address detection, seconds later.

use std::net::Ipv6Addr;

use serde_json::{Map, Value};

use super::Line;

/// Fields that are never compared.
const VOLATILE_FIELDS: &[&str] = &[
    "ifindex",
    "link_index",
    "link_netnsid",
    "operstate",
    "tso_max_size",
    "tso_max_segs",
    "qdisc",
    "refcnt",
    "stats",
    "stats64",
    "xstats",
    "bytes",
    "packets",
    "used",
    "refcount",
    "expires",
    "age",
    "bridge_id",
    "root_id",
    "root_port",
    "root_path_cost",
    "topology_change",
    "topology_change_detected",
    "topology_change_ack",
    "config_pending",
    "designated_port",
    "designated_cost",
    "designated_bridge",
    "designated_root",
];
/// Numbers that a bridge assigns to its ports in the order of creation, and the state that follows carrier.
const VOLATILE_PORT_FIELDS: &[&str] = &["id", "no", "state"];
/// How `ip` prints an unlimited lifetime.
const FOREVER: u64 = 4_294_967_295;

/// One main line per link, then one for each further property.
pub(super) fn links(links: &[Value]) -> Vec<Line> {
    let mut lines = Vec::new();
    for link in links {
        let name = text_of(link, "ifname");
        let mut fields = fields_of(link);
        let mut main = Vec::new();
        for key in [
            "linkinfo.info_kind",
            "flags",
            "mtu",
            "address",
            "master",
            "link",
            "group",
            "ifalias",
            "altnames",
        ] {
            if let Some(position) = fields.iter().position(|(field, _)| field == key) {
                let (_, value) = fields.remove(position);
                let short = key.rsplit('.').next().unwrap_or(key);
                main.push(format!("{short} {value}"));
            }
        }
        lines.push(line(&name, format!("{name}: {}", main.join(", "))));
        let rest = fields.into_iter().filter(|(key, _)| key != "ifname");
        lines.extend(rest.map(|(key, value)| line(&name, format!("{name}: {key} {value}"))));
    }
    lines
}

/// One line per address.
pub(super) fn addresses(links: &[Value]) -> Vec<Line> {
    let mut lines = Vec::new();
    for link in links {
        let name = text_of(link, "ifname");
        let kept = list(link, "addr_info").iter().filter(|address| !is_kernel_link_local(link, address));
        let mut of_link: Vec<_> = kept.map(|address| format!("{name}: {}", address_text(address))).collect();
        of_link.sort();
        lines.extend(of_link.into_iter().map(|text| line(&name, text)));
    }
    lines
}

fn address_text(address: &Value) -> String {
    let mut fields = fields_of(address);
    fields.retain(|(key, _)| !matches!(key.as_str(), "family" | "local" | "prefixlen"));
    for (key, value) in &mut fields {
        if key.ends_with("_life_time") {
            *value = if *value == FOREVER.to_string() { "forever" } else { "limited" }.to_owned();
        }
    }
    let rest: Vec<_> = fields.iter().map(|(key, value)| format!("{key} {value}")).collect();
    format!("{}/{} {}", text_of(address, "local"), address["prefixlen"], rest.join(" "))
}

/// Whether an address is under duplicate address detection on a link with carrier.
pub(super) fn has_unsettled_address(links: &[Value]) -> bool {
    links.iter().any(|link| {
        let has_flag = |flag| list(link, "flags").iter().any(|found| found == flag);
        has_flag("UP")
            && has_flag("LOWER_UP")
            && list(link, "addr_info").iter().any(|address| {
                address["tentative"] == true
                    && address["dadfailed"] != true
                    && !is_kernel_link_local(link, address)
            })
    })
}

fn is_kernel_link_local(link: &Value, address: &Value) -> bool {
    // Newer versions of `ip` show the origin of an address.
    address["protocol"] == "kernel_ll"
        || address["local"]
            .as_str()
            .and_then(|local| local.parse().ok())
            .is_some_and(|local| is_derived_from_mac(local, &text_of(link, "address")))
}

/// Whether this is the link-local address that RFC 4291 (appendix A) derives from a MAC. Links that share a MAC
/// (ipvlan) have a number in the middle, in the order of creation, and keep the MAC's first byte unchanged.
fn is_derived_from_mac(address: Ipv6Addr, mac: &str) -> bool {
    let bytes: Result<Vec<u8>, _> = mac.split(':').map(|part| u8::from_str_radix(part, 16)).collect();
    let Ok(&[a, b, c, d, e, f]) = bytes.as_deref() else { return false };
    let octets = address.octets();
    let (network, [first, second, third, middle @ .., sixth, seventh, eighth]) = (&octets[..8], &octets[8..])
    else {
        return false;
    };
    let head = if *middle == [0xff, 0xfe] { a ^ 2 } else { a };
    network == [0xfe, 0x80, 0, 0, 0, 0, 0, 0]
        && [*first, *second, *third, *sixth, *seventh, *eighth] == [head, b, c, d, e, f]
}

/// One line per route, sorted: the kernel selects by prefix, metric and table.
pub(super) fn routes(routes: &[Value]) -> Vec<Line> {
    let mut lines: Vec<_> = routes.iter().filter(|route| !is_kernel_route(route)).map(route_line).collect();
    lines.sort();
    lines
}

fn route_line(route: &Value) -> Line {
    let table = route["table"].as_str().unwrap_or("main").to_owned();
    let destination = text_of(route, "dst");
    let mut fields = fields_of(route);
    fields.retain(|(key, _)| !matches!(key.as_str(), "dst" | "table"));
    line(&table, format!("table {table}: {destination} {}", joined(&fields)))
}

fn is_kernel_route(route: &Value) -> bool {
    let destination = text_of(route, "dst");
    let address: Option<Ipv6Addr> = destination.split('/').next().and_then(|address| address.parse().ok());
    route["protocol"] == "kernel"
        && address.is_some_and(|address| address.is_unicast_link_local() || address.is_multicast())
}

/// Rules in the order of evaluation.
pub(super) fn rules(family: &str, rules: &[Value]) -> Vec<Line> {
    rules.iter().map(|rule| line(family, format!("{family}: {}", joined(&fields_of(rule))))).collect()
}

/// One line per object, with all its fields.
pub(super) fn plain(subject: &str, objects: &[Value]) -> Vec<Line> {
    let mut lines: Vec<_> =
        objects.iter().map(|object| line(&text_of(object, subject), joined(&fields_of(object)))).collect();
    lines.sort();
    lines
}

/// Static forwarding entries: without learned ones and multicast, which follows the addresses.
pub(super) fn fdb(entries: &[Value]) -> Vec<Line> {
    let configured = entries.iter().filter(|entry| {
        let multicast = text_of(entry, "mac")
            .split(':')
            .next()
            .and_then(|first| u8::from_str_radix(first, 16).ok())
            .is_some_and(|first| first & 1 == 1);
        !multicast && matches!(entry["state"].as_str(), Some("permanent" | "static"))
    });
    plain("ifname", &configured.cloned().collect::<Vec<_>>())
}

/// Qdiscs without `noqueue` and `noop`.
pub(super) fn qdiscs(qdiscs: &[Value]) -> Vec<Line> {
    let effective = qdiscs.iter().filter(|qdisc| !matches!(qdisc["kind"].as_str(), Some("noqueue" | "noop")));
    plain("dev", &effective.cloned().collect::<Vec<_>>())
}

/// Filters of one direction of a link, in order. A program's ID is new on each load; its name and tag are not.
pub(super) fn filters(link: &str, direction: &str, filters: &[Value]) -> Vec<Line> {
    let text = |filter: &Value| {
        let mut fields = fields_of(filter);
        fields.retain(|(key, _)| !key.ends_with(".id") && key != "options.prog.load_time");
        format!("{link} {direction}: {}", joined(&fields))
    };
    filters.iter().map(|filter| line(link, text(filter))).collect()
}

fn line(subject: &str, text: String) -> Line {
    Line { subject: subject.to_owned(), text: text.trim_end().to_owned() }
}

fn text_of(object: &Value, key: &str) -> String {
    match &object[key] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn list<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object[key].as_array().map_or(&[], Vec::as_slice)
}

fn joined(fields: &[(String, String)]) -> String {
    fields.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(" ")
}

/// All compared fields, by name, with the names of nested ones joined by dots.
fn fields_of(object: &Value) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    if let Some(object) = object.as_object() {
        collect_fields("", object, &mut fields);
    }
    fields.sort();
    fields
}

fn collect_fields(prefix: &str, object: &Map<String, Value>, fields: &mut Vec<(String, String)>) {
    for (key, value) in object {
        let of_port = prefix.ends_with("info_slave_data.") && VOLATILE_PORT_FIELDS.contains(&key.as_str());
        if of_port || VOLATILE_FIELDS.contains(&key.as_str()) || key.ends_with("_timer") {
            continue;
        }
        let name = format!("{prefix}{key}");
        match value {
            Value::Object(nested) => collect_fields(&format!("{name}."), nested, fields),
            other => {
                let text = value_text(other);
                if !text.is_empty() {
                    fields.push((name, text));
                }
            }
        }
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            let kept = values
                .iter()
                .map(value_text)
                .filter(|text| !matches!(text.as_str(), "NO-CARRIER" | "linkdown"));
            kept.collect::<Vec<_>>().join(",")
        }
        Value::Object(_) => format!("[{}]", joined(&fields_of(value))),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
