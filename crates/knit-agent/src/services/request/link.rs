//! Links, routes and sysctls of a request. They are parsed as an object of the link's kind, with the same fields, rules and errors; only
//! field names are translated.

use std::collections::BTreeMap;

use knit_crds::Object;
use knit_kni::v1;
use knit_model::Problem;
use knit_model::intent::{IntentSpec, InterfaceIntent};
use knit_model::provenance::Dialect;
use serde_json::{Map, Value, json};

use super::{Checked, invalid};

/// Fields of objects that a request sets otherwise, or not at all.
const NOT_OPTIONS: [&str; 12] = [
    "selector",
    "interfaceName",
    "namePrefix",
    "network",
    "parent",
    "master",
    "cidr",
    "addresses",
    "mtu",
    "hardwareAddr",
    "routes",
    "sysctls",
];

/// Translates the spec of an interface with its own link, or only the routes and sysctls of one on a network.
pub(super) fn described(field: &str, spec: &v1::InterfaceSpec) -> Checked<InterfaceIntent> {
    let none = v1::LinkSpec::default();
    let link = match &spec.to {
        Some(v1::interface_spec::To::Link(link)) => Some(link),
        _ => None,
    };
    let kind = link.map_or(Ok("Veth"), |link| known(field, &link.kind))?;
    let mut fields = common(spec, link.is_some());
    let options = &link.unwrap_or(&none).options;
    if let Some(link) = link {
        for (key, text) in options {
            if NOT_OPTIONS.contains(&key.as_str()) {
                let message = "not an option: use the field of the interface or of the link";
                return Err(invalid(&format!("{field}.link.options[{key}]"), message));
            }
            fields.insert(key.clone(), scalar(text));
        }
        let text = |text: &String| (!text.is_empty()).then(|| Value::from(text.clone()));
        fields.extend(text(&link.parent).map(|parent| ("parent".to_owned(), parent)));
        fields.extend(text(&link.master).map(|master| ("master".to_owned(), master)));
        fields.extend(text(&link.ranges.join(",")).map(|ranges| ("cidr".to_owned(), ranges)));
    } else {
        // The network determines the actual bridge.
        fields.insert("master".to_owned(), "br".into());
    }
    read(kind, fields).map_err(|problem| {
        let place = place(field, &problem.field, options);
        invalid(&place, problem.message)
    })
}

/// The object's kind for a link's kind, in any case and with or without hyphens.
fn known(field: &str, kind: &str) -> Checked<&'static str> {
    let plain = kind.replace('-', "");
    let plain = if plain.is_empty() { "Veth" } else { &plain };
    let known = || Object::kinds().iter().filter(|info| info.creates_link).map(|info| info.kind.as_str());
    known().find(|known| known.eq_ignore_ascii_case(plain)).ok_or_else(|| {
        let known = known().map(str::to_lowercase).collect::<Vec<_>>().join(", ");
        let message = format!("unknown kind of link `{}`, expected one of {known}", kind.escape_debug());
        invalid(&format!("{field}.link.kind"), message)
    })
}

/// The fields of every link.
fn common(spec: &v1::InterfaceSpec, own_link: bool) -> Map<String, Value> {
    let mut fields = Map::new();
    // The actual name may be `eth0`, which an object may not use.
    fields.insert("interfaceName".to_owned(), "link".into());
    if own_link {
        // On a network, the network defines these.
        let mac = (!spec.mac.is_empty()).then(|| spec.mac.clone().into());
        fields.extend(mac.map(|mac| ("hardwareAddr".to_owned(), mac)));
        fields.extend((spec.mtu > 0).then(|| ("mtu".to_owned(), spec.mtu.into())));
        fields.insert("addresses".to_owned(), spec.addresses.clone().into());
    }
    let routes: Vec<Value> = spec.routes.iter().map(route).collect();
    fields.insert("routes".to_owned(), routes.into());
    let sysctls = spec.sysctls.iter().map(|(name, value)| (name.clone(), value.clone().into()));
    fields.insert("sysctls".to_owned(), sysctls.collect::<Map<_, _>>().into());
    fields
}

fn route(route: &v1::Route) -> Value {
    let mut entry = json!({ "to": route.destination });
    for (key, text) in [("via", &route.gateway), ("src", &route.source)] {
        if !text.is_empty() {
            entry[key] = text.clone().into();
        }
    }
    for (key, number) in [("metric", route.metric), ("table", route.table), ("mtu", route.mtu)] {
        if number > 0 {
            entry[key] = number.into();
        }
    }
    if route.onlink {
        entry["onlink"] = true.into();
    }
    entry
}

/// Parses a number, boolean, list or map; anything else is a string.
fn scalar(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::String(_) | Value::Null) | Err(_) => text.into(),
        Ok(value) => value,
    }
}

/// The intent of an object of this kind with these fields, or its first problem.
fn read(kind: &str, fields: Map<String, Value>) -> Result<InterfaceIntent, Problem> {
    let invalid_value = |field: String, message: String| {
        Problem::new(field, knit_model::problem::Reason::InvalidValue, message)
    };
    let version = Object::kinds().iter().find(|info| info.kind == kind).map(|info| info.api_version());
    let manifest = json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": { "name": "call" },
        "spec": fields,
    });
    let object =
        Object::parse(&manifest.to_string()).map_err(|errors| match errors.0.into_iter().next() {
            Some(error) => invalid_value(error.field, error.message),
            None => invalid_value(String::new(), "invalid".to_owned()),
        })?;
    let translation = object.intents(Dialect::Kni).map_err(|problems| {
        let first = problems.0.into_iter().next();
        first.unwrap_or_else(|| invalid_value(String::new(), "invalid".to_owned()))
    })?;
    let mut interfaces = translation.intents.into_iter().filter_map(|intent| match intent.spec {
        IntentSpec::Interface(intent) => Some(*intent),
        _ => None,
    });
    let none = || invalid_value(String::new(), format!("a {kind} does not create an interface"));
    interfaces.next().ok_or_else(none)
}

/// The request's field that corresponds to an object's field.
fn place(field: &str, of_object: &str, options: &BTreeMap<String, String>) -> String {
    let path = of_object.strip_prefix("spec").unwrap_or(of_object).trim_start_matches('.');
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (head, rest) = path.split_at(end);
    match head {
        "" => format!("{field}.link"),
        "interfaceName" => format!("{field}.name"),
        "parent" | "master" => format!("{field}.link.{head}"),
        "cidr" => format!("{field}.link.ranges"),
        "hardwareAddr" => format!("{field}.mac"),
        "mtu" | "addresses" | "sysctls" => format!("{field}.{head}{rest}"),
        "routes" => {
            let rest =
                rest.replace(".to", ".destination").replace(".via", ".gateway").replace(".src", ".source");
            format!("{field}.routes{rest}")
        }
        _ if options.contains_key(head) => format!("{field}.link.options[{head}]{rest}"),
        _ => format!("{field}.link.options[{path}]"),
    }
}

#[cfg(test)]
mod tests {
    use knit_model::Kind;

    use super::*;

    fn spec(kind: &str, options: &[(&str, &str)]) -> v1::InterfaceSpec {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let link = v1::LinkSpec { kind: kind.to_owned(), options, ..Default::default() };
        v1::InterfaceSpec { to: Some(v1::interface_spec::To::Link(link)), ..Default::default() }
    }

    #[track_caller]
    fn assert_refused(spec: &v1::InterfaceSpec, field: &str) {
        let refusal = described("interfaces[0]", spec).unwrap_err();
        let message = refusal.message();
        assert!(message.starts_with(&format!("interfaces[0].{field}: ")), "{message}");
    }

    #[test]
    fn every_kind_of_link_is_accepted_by_its_name() {
        for (kind, object) in [("", "Veth"), ("host-device", "HostDevice"), ("WIREGUARD", "WireGuard")] {
            assert_eq!(known("f", kind).unwrap(), object);
        }
        for info in Object::kinds().iter().filter(|info| info.creates_link) {
            assert_eq!(known("f", &info.singular).unwrap(), info.kind);
        }
        assert!(known("f", "bridge").is_err() && known("f", "uplink").is_err());
    }

    #[test]
    fn a_link_is_parsed_like_its_object() {
        let intent = described("interfaces[0]", &spec("vxlan", &[("vni", "77"), ("learning", "false")]));
        let Kind::Vxlan(vxlan) = intent.unwrap().kind else { panic!("another kind") };
        assert_eq!((vxlan.vni, vxlan.learning), (77, Some(false)));
    }

    #[test]
    fn errors_name_the_fields_of_the_request() {
        for (kind, options, field) in [
            ("vxlan", &[][..], "link"),
            ("vxlan", &[("vni", "99999999")], "link.options[vni]"),
            ("dummy", &[("colour", "red")], "link.options[colour]"),
            ("dummy", &[("selector", "{}")], "link.options[selector]"),
            ("bridge", &[], "link.kind"),
            ("veth", &[], "link.master"),
        ] {
            assert_refused(&spec(kind, options), field);
        }
        let dummy = spec("dummy", &[]);
        let routes = vec![v1::Route { destination: "10.0.0.0/40".to_owned(), ..Default::default() }];
        assert_refused(&v1::InterfaceSpec { routes, ..dummy.clone() }, "routes[0].destination");
        let sysctls = [("ipv4/route_localnet".to_owned(), "1".to_owned())].into();
        assert_refused(&v1::InterfaceSpec { sysctls, ..dummy.clone() }, "sysctls[ipv4/route_localnet]");
        let mac = "01:00:00:00:00:01".to_owned();
        assert_refused(&v1::InterfaceSpec { mac, ..dummy }, "mac");
        let mut veth = spec("veth", &[]);
        let Some(v1::interface_spec::To::Link(link)) = &mut veth.to else { unreachable!() };
        (link.master, link.ranges) = ("br0".to_owned(), vec!["10.0.0.1/24".to_owned()]);
        assert_refused(&veth, "link.ranges");
    }
}
