//! The annotation: `name`, `namespace/name@interface`, with commas between them, or a list in JSON.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::fields::is_object_name;

/// One network, as the pod names it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Selection {
    /// The definition's name.
    pub(super) name: String,
    /// Its namespace; the pod's own where the entry names none.
    #[serde(default)]
    pub(super) namespace: String,
    /// The interface's name.
    #[serde(default)]
    pub(super) interface: Option<String>,
    /// Addresses by value.
    #[serde(default)]
    pub(super) ips: Vec<String>,
    /// The hardware address.
    #[serde(default)]
    pub(super) mac: Option<String>,
    /// Limits.
    #[serde(default)]
    pub(super) bandwidth: Option<Bandwidth>,
    /// Ports of the node.
    #[serde(default, rename = "portMappings")]
    pub(super) port_mappings: Vec<Value>,
    /// Whatever is handed to plugins.
    #[serde(default, rename = "cni-args")]
    pub(super) cni_args: Option<serde_json::Map<String, Value>>,
    /// Routers of the pod's default routes.
    #[serde(default, rename = "default-route")]
    pub(super) default_route: Vec<String>,
    /// An InfiniBand address.
    #[serde(default, rename = "infiniband-guid")]
    pub(super) infiniband_guid: Option<String>,
    /// What nobody knows.
    #[serde(flatten)]
    pub(super) other: BTreeMap<String, Value>,
}

/// Limits in bits per second, and in bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Bandwidth {
    pub(super) ingress_rate: u64,
    pub(super) ingress_burst: u64,
    pub(super) egress_rate: u64,
    pub(super) egress_burst: u64,
}

impl Selection {
    /// The definition.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Every entry, or what is wrong with it; or why the annotation cannot be read at all.
pub(super) fn parse(text: &str, namespace: &str) -> Result<Vec<Result<Selection, String>>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    if text.contains(['[', '{', '"']) {
        let list: Vec<Value> = serde_json::from_str(text).map_err(|why| {
            format!("it is neither a list in JSON nor names with commas between them: {why}")
        })?;
        let entry = |value: Value| {
            let selection: Selection = serde_json::from_value(value).map_err(|why| why.to_string())?;
            checked(selection, namespace)
        };
        return Ok(list.into_iter().map(entry).collect());
    }
    Ok(text.split(',').map(|part| checked(short(part.trim()), namespace)).collect())
}

/// `namespace/name@interface`, of which only the name has to be there.
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
            return Err(format!("`{}` is no {what} of a definition", text.escape_debug()));
        }
    }
    Ok(selection)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Result<String, String>> {
        let word = |one: Result<Selection, String>| {
            one.map(|one| format!("{}@{}", one.title(), one.interface.unwrap_or_default()))
        };
        parse(text, "shop").unwrap().into_iter().map(word).collect()
    }

    #[test]
    fn names_are_read_with_their_namespaces_and_interfaces() {
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
    fn an_entry_that_cannot_be_read_leaves_the_others() {
        let short = read("blue,,a/b/c");
        assert_eq!(short[0], Ok("shop/blue@".to_owned()));
        assert_eq!(short[1], Err("`` is no name of a definition".to_owned()));
        assert_eq!(short[2], Err("`b/c` is no name of a definition".to_owned()));
        let long = read(r#"[{"name": "blue"}, {"namespace": "lab"}, {"name": "x", "ips": "10.0.0.1"}]"#);
        assert!(long[0].is_ok());
        assert!(long[1].as_ref().unwrap_err().contains("missing field `name`"), "{long:?}");
        assert!(long[2].as_ref().unwrap_err().contains("invalid type"), "{long:?}");
        assert!(parse(r#"{"name": "blue"}"#, "shop").unwrap_err().contains("neither a list in JSON"));
    }
}
