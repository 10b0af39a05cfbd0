//! Parsing of the annotation: comma-separated `namespace/name@interface` entries, or a JSON list.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::fields::is_object_name;

/// One network selection element.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Selection {
    /// The definition's name.
    pub(super) name: String,
    /// Its namespace; defaults to the pod's.
    #[serde(default)]
    pub(super) namespace: String,
    /// The interface name.
    #[serde(default)]
    pub(super) interface: Option<String>,
    /// Static addresses.
    #[serde(default)]
    pub(super) ips: Vec<String>,
    /// The hardware address.
    #[serde(default)]
    pub(super) mac: Option<String>,
    /// Bandwidth limits.
    #[serde(default)]
    pub(super) bandwidth: Option<Bandwidth>,
    /// Host ports.
    #[serde(default, rename = "portMappings")]
    pub(super) port_mappings: Vec<Value>,
    /// Arguments for CNI plugins.
    #[serde(default, rename = "cni-args")]
    pub(super) cni_args: Option<serde_json::Map<String, Value>>,
    /// Gateways of default routes.
    #[serde(default, rename = "default-route")]
    pub(super) default_route: Vec<String>,
    /// The InfiniBand GUID.
    #[serde(default, rename = "infiniband-guid")]
    pub(super) infiniband_guid: Option<String>,
    /// Unknown fields.
    #[serde(flatten)]
    pub(super) other: BTreeMap<String, Value>,
}

/// Limits in bits per second, and bursts in bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Bandwidth {
    pub(super) ingress_rate: u64,
    pub(super) ingress_burst: u64,
    pub(super) egress_rate: u64,
    pub(super) egress_burst: u64,
}

impl Selection {
    /// The definition, as `namespace/name`.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Parses every entry on its own, or rejects the whole annotation.
pub(super) fn parse(text: &str, namespace: &str) -> Result<Vec<Result<Selection, String>>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if text.contains(['[', '{', '"']) {
        let list: Vec<Value> = serde_json::from_str(text)
            .map_err(|why| format!("must be a JSON list or comma-separated names: {why}"))?;
        let entry = |value: Value| {
            let selection: Selection = serde_json::from_value(value).map_err(|why| why.to_string())?;
            checked(selection, namespace)
        };
        return Ok(list.into_iter().map(entry).collect());
    }
    Ok(text.split(',').map(|part| checked(short(part.trim()), namespace)).collect())
}

/// `namespace/name@interface`, where only the name is required.
fn short(text: &str) -> Selection {
    let (network, interface) = match text.split_once('@') {
        Some((network, interface)) => (network, Some(interface.to_owned())),
        None => (text, None),
    };
    let (namespace, name) = network.split_once('/').unwrap_or(("", network));
    Selection { name: name.to_owned(), namespace: namespace.to_owned(), interface, ..Selection::default() }
}

fn checked(mut selection: Selection, namespace: &str) -> Result<Selection, String> {
    if selection.namespace.is_empty() {
        namespace.clone_into(&mut selection.namespace);
    }
    for (what, text) in [("name", &selection.name), ("namespace", &selection.namespace)] {
        if !is_object_name(text) {
            return Err(format!(
                "must be a {what} of a NetworkAttachmentDefinition, got `{}`",
                text.escape_debug()
            ));
        }
    }
    Ok(selection)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<String, String>> {
        let show = |one: Result<Selection, String>| {
            one.map(|one| format!("{}@{}", one.title(), one.interface.unwrap_or_default()))
        };
        parse(text, "shop").unwrap().into_iter().map(show).collect()
    }

    #[test]
    fn names_are_parsed_with_namespace_and_interface() {
        let ok = |texts: &[&str]| texts.iter().map(|text| Ok((*text).to_owned())).collect::<Vec<_>>();
        assert_eq!(read("blue"), ok(&["shop/blue@"]));
        assert_eq!(
            read(" blue@b0 , lab/green,lab/red@r0"),
            ok(&["shop/blue@b0", "lab/green@", "lab/red@r0"])
        );
        assert_eq!(read(""), []);
        assert_eq!(read("[]"), []);
        assert_eq!(
            read(r#"[{"name": "blue"}, {"name": "green", "namespace": "lab", "interface": "g0"}]"#),
            ok(&["shop/blue@", "lab/green@g0"])
        );
    }

    #[test]
    fn an_invalid_entry_does_not_affect_the_others() {
        let short = read("blue,,a/b/c");
        assert_eq!(short[0], Ok("shop/blue@".to_owned()));
        assert_eq!(short[1], Err("must be a name of a NetworkAttachmentDefinition, got ``".to_owned()));
        assert_eq!(short[2], Err("must be a name of a NetworkAttachmentDefinition, got `b/c`".to_owned()));
        let long = read(r#"[{"name": "blue"}, {"namespace": "lab"}, {"name": "x", "ips": "10.0.0.1"}]"#);
        assert!(long[0].is_ok());
        assert!(long[1].as_ref().unwrap_err().contains("missing field `name`"), "{long:?}");
        assert!(long[2].as_ref().unwrap_err().contains("invalid type"), "{long:?}");
        assert!(parse(r#"{"name": "blue"}"#, "shop").unwrap_err().contains("must be a JSON list"));
    }
}
