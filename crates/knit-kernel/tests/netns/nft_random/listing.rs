//! The output of `nft --json list table`, decoded without Knit's own code, and the same description of the model.
//!
//! `nft` leaves out matches of protocols that follow from a later match, so of matches only those of sets, names, marks and
//! numbers are compared; all statements and verdicts are.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

/// Declarations and chains, with their elements and rules.
pub type Description = BTreeMap<String, Vec<String>>;

/// The description of a listed table.
pub fn describe(listing: &Value) -> Description {
    let mut all = Description::new();
    let mut names = BTreeMap::new();
    for item in listing["nftables"].as_array().unwrap() {
        let (kind, body) = item.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "counter" => drop(all.insert(format!("counter {}", text(&body["name"])), Vec::new())),
            "set" | "map" => {
                let (title, ether_types) = set_title(body);
                let mut elements: Vec<String> =
                    list(&body["elem"]).iter().map(|one| element(one, &ether_types)).collect();
                elements.sort_unstable();
                all.insert(title, elements);
            }
            "chain" => {
                let name = text(&body["name"]);
                let title = match body["type"].as_str() {
                    Some(kind) => {
                        assert_eq!(body["policy"], "accept");
                        format!("chain {name} {kind} {} {}", text(&body["hook"]), body["prio"])
                    }
                    None => format!("chain {name}"),
                };
                names.insert(name, title.clone());
                all.insert(title, Vec::new());
            }
            "rule" => {
                let chain = &names[&text(&body["chain"])];
                let mut parts: Vec<String> = list(&body["expr"]).iter().filter_map(statement).collect();
                parts.extend(body["comment"].as_str().map(|comment| format!("comment {comment}")));
                all.get_mut(chain).unwrap().push(parts.join("; "));
            }
            _ => {}
        }
    }
    all
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The parts of the keys and of the data that are ether types.
#[derive(Default)]
struct EtherTypes {
    key: Vec<bool>,
    data: Vec<bool>,
}

fn set_title(body: &Value) -> (String, EtherTypes) {
    let key = match &body["type"] {
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join(" . "),
        one => text(one),
    };
    let is_ether_type = |types: &str| types.split(" . ").map(|kind| kind == "ether_type").collect::<Vec<_>>();
    let mut ether_types = EtherTypes { key: is_ether_type(&key), data: Vec::new() };
    let mut title = format!("set {}: {key}", text(&body["name"]));
    if let Some(data) = body["map"].as_str() {
        title += &format!(" : {data}");
        ether_types.data = is_ether_type(data);
    }
    for flag in list(&body["flags"]) {
        title += &format!(" {}", text(&flag));
    }
    if let Some(timeout) = body["timeout"].as_u64() {
        title += &format!(" {timeout}s");
    }
    (title, ether_types)
}

fn element(listed: &Value, ether_types: &EtherTypes) -> String {
    match listed {
        Value::Array(pair) => {
            let data = match &pair[1] {
                Value::Object(verdict) if !verdict.contains_key("concat") => self::verdict(&pair[1]).unwrap(),
                values => key(values, &ether_types.data),
            };
            format!("{} : {data}", key(&pair[0], &ether_types.key))
        }
        one => key(one, &ether_types.key),
    }
}

/// A key or data: one value, or a concatenation.
fn key(listed: &Value, ether_types: &[bool]) -> String {
    // An element with a timeout has it beside its value.
    let listed = listed.pointer("/elem/val").unwrap_or(listed);
    let parts = match listed.get("concat") {
        Some(parts) => list(parts),
        None => vec![listed.clone()],
    };
    assert_eq!(parts.len(), ether_types.len(), "{listed}");
    parts.iter().zip(ether_types).map(|(part, is)| range(part, *is)).collect::<Vec<_>>().join(" . ")
}

/// One value, or the first and the last one of a range.
fn range(listed: &Value, is_ether_type: bool) -> String {
    if let Some(bounds) = listed.get("range") {
        return format!("{}-{}", value(&bounds[0], is_ether_type), value(&bounds[1], is_ether_type));
    }
    if let Some(prefix) = listed.get("prefix") {
        let network: IpNet = format!("{}/{}", text(&prefix["addr"]), prefix["len"]).parse().unwrap();
        return format!("{}-{}", network.network(), network.broadcast());
    }
    value(listed, is_ether_type)
}

/// An ether type. `nft` writes the numbers of those that it has a name for in the wrong byte order, also of its own sets.
pub fn ether_type(number: u16) -> u16 {
    let named = [0x0800, 0x0806, 0x86dd, 0x8100, 0x88a8];
    if named.contains(&number.swap_bytes()) { number.swap_bytes() } else { number }
}

/// A value.
fn value(listed: &Value, is_ether_type: bool) -> String {
    match listed {
        Value::Number(number) if is_ether_type => {
            ether_type(u16::try_from(number.as_u64().unwrap()).unwrap()).to_string()
        }
        Value::Number(number) => number.to_string(),
        Value::String(text) => match text.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            Err(_) => text.clone(),
        },
        other => panic!("no value: {other}"),
    }
}

fn verdict(listed: &Value) -> Option<String> {
    let (kind, to) = listed.as_object()?.iter().next()?;
    match kind.as_str() {
        "accept" | "drop" | "return" => Some(kind.clone()),
        "jump" | "goto" => Some(format!("{kind} {}", text(&to["target"]))),
        _ => None,
    }
}

/// A statement, or a match that is compared.
fn statement(listed: &Value) -> Option<String> {
    if let Some(text) = listed.as_str() {
        return Some(addition_to_map(text));
    }
    if let Some(verdict) = verdict(listed) {
        return Some(verdict);
    }
    let (kind, body) = listed.as_object()?.iter().next()?;
    let described = match kind.as_str() {
        "match" => return matched(body),
        "vmap" => format!("{}vmap {}", computed(&body["key"]), text(&body["data"])),
        "counter" => body.as_str().map_or_else(|| "counter".to_owned(), |name| format!("counter {name}")),
        "limit" => {
            // Some versions omit the default.
            let burst = body["burst"].as_u64().unwrap_or(5);
            format!("limit {}/{} burst {burst}", body["rate"], text(&body["per"]))
        }
        "log" => {
            let group = body["group"].as_u64().map(|group| format!(" group {group}")).unwrap_or_default();
            format!("log {:?}{group}", body["prefix"].as_str().unwrap_or_default())
        }
        "reject" => format!("reject {} {}", text(&body["type"]), body["expr"]),
        "notrack" => "notrack".to_owned(),
        "masquerade" => format!("masquerade {}", body["flags"]),
        "snat" | "dnat" => format!("{kind} {} {}", text(&body["family"]), computed(&body["addr"])),
        "mangle" => {
            let what = if body["key"].get("ct").is_some() { "ct mark" } else { "mark" };
            format!("{what} set {}", computed(&body["value"]))
        }
        "set" | "map" => {
            let timeout = body.pointer("/elem/elem/timeout").map(|timeout| format!(" timeout {timeout}s"));
            format!("{} {}{}", text(&body["op"]), text(&body[kind]), timeout.unwrap_or_default())
        }
        other => panic!("unknown statement {other}: {body}"),
    };
    Some(described)
}

/// A statement that adds to a map has no JSON form in every version: `add @m { ip saddr timeout 5s : meta mark }`.
fn addition_to_map(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let timeout =
        words.windows(2).find(|pair| pair[0] == "timeout").map(|pair| format!(" timeout {}", pair[1]));
    format!("{} {}{}", words[0], words[1], timeout.unwrap_or_default())
}

fn matched(body: &Value) -> Option<String> {
    let op = text(&body["op"]);
    if let Some(set) = body["right"].as_str().filter(|right| right.starts_with('@')) {
        return Some(format!("{}{op} {set}", computed(&body["left"])));
    }
    let left = match body["left"].as_object()?.iter().next()? {
        (kind, of) if kind == "meta" => {
            of["key"].as_str().filter(|key| ["iifname", "oifname", "mark"].contains(key))?
        }
        (kind, of) if kind == "ct" => of["key"].as_str().filter(|key| *key == "mark").map(|_| "ct mark")?,
        (kind, _) if kind == "numgen" || kind == "jhash" => "",
        _ => return None,
    };
    if !(body["right"].is_number() || body["right"].is_string()) {
        return None;
    }
    Some(format!("{}{left} {op} {}", computed(&body["left"]), value(&body["right"], false)))
}

/// How a value is computed, if by a number generator, a hash or a map; empty for fields.
fn computed(listed: &Value) -> String {
    let Some((kind, body)) = listed.as_object().and_then(|object| object.iter().next()) else {
        return String::new();
    };
    match kind.as_str() {
        "numgen" => format!("numgen {} {} {} ", text(&body["mode"]), body["mod"], body["offset"]),
        "jhash" => {
            format!("jhash {} {} {} ", body["mod"], body["seed"], body["offset"].as_u64().unwrap_or(0))
        }
        "map" => format!("{}map {} ", computed(&body["key"]), text(&body["data"])),
        _ => String::new(),
    }
}
