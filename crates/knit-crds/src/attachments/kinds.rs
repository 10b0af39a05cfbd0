//! CNI plugin types with an equivalent kind of Knit.

use knit_model::intent::{
    BandwidthLimits, IntentSpec, InterfaceIntent, NetworkDefinition, RateIntent, Selector,
};
use knit_model::link::OwnerId;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;
use knit_model::{IfName, Problems};
use serde_json::{Map, Value, json};

use super::addresses::{Ipam, unknown};
use super::annotation::Bandwidth;
use super::config::Plugin;
use super::{Entry, EntryError, invalid};
use crate::Object;

/// Fields that every plugin has.
const COMMON: [&str; 7] = ["cniVersion", "name", "type", "ipam", "capabilities", "dns", "args"];

/// Whether a plugin type has an equivalent kind.
pub(super) fn is_known(kind: &str) -> bool {
    ["bridge", "macvlan", "ipvlan", "vlan", "ptp", "host-device"].contains(&kind)
}

/// An object that is equivalent to a plugin configuration.
struct EquivalentObject {
    kind: &'static str,
    fields: Map<String, Value>,
    definition: NetworkDefinition,
    /// The fields of the plugin that are translated.
    known: &'static [&'static str],
    warnings: Vec<String>,
}

impl Entry<'_> {
    /// The interface of the equivalent kind.
    pub(super) fn equivalent_kind(&self, plugin: &Plugin) -> Result<(IntentSpec, Vec<String>), EntryError> {
        let mut ipam = Ipam::read(&plugin.0)?;
        ipam.set_static(&self.selection.ips)?;
        let mut object = match plugin.kind() {
            "bridge" => self.bridge(plugin, &ipam)?,
            "ptp" => self.ptp(plugin, &ipam)?,
            "macvlan" => self.on_nic(plugin, "Macvlan", &["mode", "bcqueuelen"])?,
            "ipvlan" => self.on_nic(plugin, "Ipvlan", &["mode"])?,
            "vlan" => self.on_nic(plugin, "Vlan", &["vlanId"])?,
            _ => self.host_device(plugin)?,
        };
        let mut warnings = std::mem::take(&mut object.warnings);
        warnings.append(&mut ipam.warnings);
        warnings.extend(unknown(&plugin.0, "", &[&COMMON[..], object.known].concat()));
        warnings.extend(self.unknown_fields());
        warnings.extend(self.default_route_warning());
        warnings.extend(self.plugin_only_fields());
        let fields = &mut object.fields;
        fields.insert("interfaceName".to_owned(), json!(self.interface));
        let mac = self.selection.mac.clone().or_else(|| text(plugin, "mac"));
        fields.extend(mac.map(|mac| ("hardwareAddr".to_owned(), json!(mac))));
        if let Some(mtu) = number(plugin, "mtu")?.filter(|mtu| *mtu > 0) {
            fields.insert("mtu".to_owned(), json!(mtu));
        }
        if !ipam.ranges.is_empty() {
            let ranges: Vec<String> = ipam.ranges.iter().map(ToString::to_string).collect();
            fields.insert("cidr".to_owned(), json!(ranges.join(",")));
        }
        fields.insert("addresses".to_owned(), json!(ipam.fixed));
        fields.insert("routes".to_owned(), Value::Array(ipam.routes.clone()));
        let mut intent = read(object.kind, object.fields)?;
        intent.pods = Selector::pod(self.pod.uid.as_str());
        intent.limits = self.limits()?;
        let definition =
            NetworkDefinition { shared: ipam.shared, reserved: ipam.reserved, ..object.definition };
        if definition.nic.is_some() {
            // The node resolves the Uplink of the NIC.
            intent.parent = None;
        }
        intent.definition = Some(Box::new(definition));
        Ok((IntentSpec::Interface(Box::new(intent)), warnings))
    }

    fn definition(&self) -> NetworkDefinition {
        let selection = self.selection;
        NetworkDefinition {
            namespace: selection.namespace.clone(),
            name: selection.name.clone(),
            ..NetworkDefinition::default()
        }
    }

    /// A veth pair on a bridge.
    fn bridge(&self, plugin: &Plugin, ipam: &Ipam) -> Result<EquivalentObject, EntryError> {
        let mut object = EquivalentObject {
            kind: "Veth",
            fields: Map::new(),
            definition: self.definition(),
            known: &[
                "bridge",
                "mtu",
                "mac",
                "isGateway",
                "isDefaultGateway",
                "forceAddress",
                "ipMasq",
                "ipMasqBackend",
                "hairpinMode",
                "promiscMode",
                "vlan",
                "vlanTrunk",
                "preserveDefaultVlan",
                "macspoofchk",
                "enabledad",
                "disableContainerInterface",
                "portIsolation",
            ],
            warnings: Vec::new(),
        };
        for key in ["macspoofchk", "portIsolation", "disableContainerInterface"] {
            if is_set(plugin, key)? {
                return Err((Reason::NotAllowed, format!("spec.config.{key}: not supported")));
            }
        }
        for (key, why) in [
            ("ipMasq", "ignored: traffic through this bridge is not masqueraded"),
            ("promiscMode", "ignored: set promisc of a Bridge object of the same name"),
            ("isDefaultGateway", "ignored: the primary interface keeps the default routes"),
        ] {
            if is_set(plugin, key)? {
                object.warnings.push(format!("spec.config.{key}: {why}"));
            }
        }
        let is_gateway = is_set(plugin, "isGateway")? || is_set(plugin, "isDefaultGateway")?;
        self.check_gateway(is_gateway, ipam)?;
        object.definition.gateway = is_gateway;
        object.definition.hairpin = is_set(plugin, "hairpinMode")?;
        let name = text(plugin, "bridge").unwrap_or_else(|| self.own_bridge("nad-"));
        object.fields.insert("master".to_owned(), json!(name));
        let access = number(plugin, "vlan")?.filter(|vlan| *vlan > 0);
        let trunk = trunk(plugin)?;
        match (access, trunk.is_empty()) {
            (None, true) => {}
            (Some(vlan), true) => {
                object.fields.insert("vlan".to_owned(), json!({ "access": vlan }));
            }
            (None, false) => {
                object.fields.insert("vlan".to_owned(), json!({ "trunk": trunk }));
            }
            (Some(vlan), false) => {
                object.fields.insert("vlan".to_owned(), json!({ "trunk": trunk, "native": vlan }));
            }
        }
        Ok(object)
    }

    /// A veth pair on a bridge of the definition, which is the gateway.
    fn ptp(&self, plugin: &Plugin, ipam: &Ipam) -> Result<EquivalentObject, EntryError> {
        let mut warnings = Vec::new();
        if is_set(plugin, "ipMasq")? {
            warnings.push("spec.config.ipMasq: ignored: traffic is not masqueraded".to_owned());
        }
        self.check_gateway(true, ipam)?;
        let fields = Map::from_iter([("master".to_owned(), json!(self.own_bridge("ptp-")))]);
        let definition = NetworkDefinition { gateway: true, ..self.definition() };
        Ok(EquivalentObject {
            kind: "Veth",
            fields,
            definition,
            known: &["mtu", "ipMasq", "ipMasqBackend"],
            warnings,
        })
    }

    /// The bridge of the definition: named after it if the name fits, otherwise by a derived number.
    fn own_bridge(&self, prefix: &str) -> String {
        let name = &self.selection.name;
        let named = format!("{prefix}{name}");
        if IfName::new(named.as_str()).is_ok() {
            named
        } else {
            format!("{prefix}{}", OwnerId::derived(name).0)
        }
    }

    /// A bridge has the first address of its range only.
    fn check_gateway(&self, is_gateway: bool, ipam: &Ipam) -> Result<(), EntryError> {
        match ipam.other_gateway().filter(|_| is_gateway) {
            None => Ok(()),
            Some(other) => {
                let message = format!("ipam.gateway must be the first address of its range, got {other}");
                Err((Reason::NotAllowed, message))
            }
        }
    }

    /// A link on a NIC of the node, or on another interface of the pod.
    fn on_nic(
        &self,
        plugin: &Plugin,
        kind: &'static str,
        kind_fields: &'static [&'static str],
    ) -> Result<EquivalentObject, EntryError> {
        let is_in_container = is_set(plugin, "linkInContainer")?;
        let Some(master) = text(plugin, "master") else {
            let message = "spec.config.master must be set";
            return Err(invalid(message));
        };
        let mut object = EquivalentObject {
            kind,
            fields: Map::from_iter([("parent".to_owned(), json!(master))]),
            definition: self.definition(),
            known: &["master", "mtu", "mac", "linkInContainer", "mode", "vlanId", "bcqueuelen"],
            warnings: Vec::new(),
        };
        if !is_in_container {
            let nic = IfName::new(&master).map_err(|why| invalid(format!("spec.config.master: {why}")))?;
            object.definition.nic = Some(nic);
        }
        for key in kind_fields {
            let Some(value) = plugin.0.get(*key).filter(|value| !value.is_null() && **value != json!(""))
            else {
                continue;
            };
            match *key {
                "bcqueuelen" => object.warnings.push(format!("spec.config.{key}: not supported, ignored")),
                "vlanId" => object.fields.extend([("id".to_owned(), value.clone())]),
                _ => object.fields.extend([((*key).to_owned(), value.clone())]),
            }
        }
        Ok(object)
    }

    /// A NIC of the node.
    fn host_device(&self, plugin: &Plugin) -> Result<EquivalentObject, EntryError> {
        let Some(device) = text(plugin, "device") else {
            let message = "spec.config.device must be set: a NIC is found by its name only";
            return Err(invalid(message));
        };
        let nic = IfName::new(&device).map_err(|why| invalid(format!("spec.config.device: {why}")))?;
        let definition = NetworkDefinition { nic: Some(nic), ..self.definition() };
        let fields = Map::from_iter([("parent".to_owned(), json!(device))]);
        Ok(EquivalentObject {
            kind: "HostDevice",
            fields,
            definition,
            known: &["device"],
            warnings: Vec::new(),
        })
    }

    fn limits(&self) -> Result<BandwidthLimits, EntryError> {
        let Some(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }) =
            self.selection.bandwidth
        else {
            return Ok(BandwidthLimits::default());
        };
        let rate = |bits: u64, burst: u64| {
            (bits > 0).then(|| RateIntent { bits, burst: Some(burst / 8).filter(|bytes| *bytes > 0) })
        };
        let limits = BandwidthLimits {
            ingress: rate(ingress_rate, ingress_burst),
            egress: rate(egress_rate, egress_burst),
        };
        let mut problems = Problems::default();
        for (field, rate) in [("ingressRate", limits.ingress), ("egressRate", limits.egress)] {
            if let Some(rate) = rate {
                rate.check(field, &mut problems);
            }
        }
        match problems.0.first() {
            None => Ok(limits),
            Some(problem) => Err(invalid(format!("bandwidth.{}: {}", problem.field, problem.message))),
        }
    }

    /// Warnings about fields that only CNI plugins support.
    fn plugin_only_fields(&self) -> Vec<String> {
        let selection = self.selection;
        let all = [
            ("portMappings", !selection.port_mappings.is_empty()),
            ("cni-args", selection.cni_args.is_some()),
            ("infiniband-guid", selection.infiniband_guid.is_some()),
        ];
        let given = all.into_iter().filter(|(_, is_set)| *is_set);
        given.map(|(field, _)| format!("{field}: ignored: only CNI plugins support it")).collect()
    }
}

/// The intent of an object of this kind, or its first problem.
fn read(kind: &str, fields: Map<String, Value>) -> Result<InterfaceIntent, EntryError> {
    let version = Object::kinds().iter().find(|info| info.kind == kind).map(|info| info.api_version());
    let metadata = json!({ "name": "attachment" });
    let manifest = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": fields });
    let relative = |field: &str| field.trim_start_matches("spec").trim_start_matches('.').to_owned();
    let describe = |field: &str, message: &str| match relative(field) {
        field if field.is_empty() => message.to_owned(),
        field => format!("{field}: {message}"),
    };
    let object = Object::parse(&manifest.to_string()).map_err(|errors| {
        let first = errors.0.first();
        invalid(first.map_or_else(String::new, |first| describe(&first.field, &first.message)))
    })?;
    let translation = object.intents(Dialect::Annotation).map_err(|problems| {
        let first = problems.0.into_iter().next();
        first.map_or_else(|| invalid(""), |first| (first.reason, describe(&first.field, &first.message)))
    })?;
    let mut intents = translation.intents.into_iter();
    let intent = intents.find_map(|intent| match intent.spec {
        IntentSpec::Interface(intent) => Some(*intent),
        _ => None,
    });
    intent.ok_or_else(|| invalid(format!("a {kind} describes no interface")))
}

fn text(plugin: &Plugin, key: &str) -> Option<String> {
    plugin.0.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn is_set(plugin: &Plugin, key: &str) -> Result<bool, EntryError> {
    match plugin.0.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(other) => Err(invalid(format!("spec.config.{key} must be true or false, got {other}"))),
    }
}

fn number(plugin: &Plugin, key: &str) -> Result<Option<u64>, EntryError> {
    match plugin.0.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(invalid(format!("spec.config.{key} must be a number, got {value}"))),
        },
    }
}

/// Tagged VLANs: `{"id": 7}`, or `{"minID": 7, "maxID": 9}`.
fn trunk(plugin: &Plugin) -> Result<Vec<String>, EntryError> {
    let all = match plugin.0.get("vlanTrunk") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(all)) => all,
        Some(other) => return Err(invalid(format!("spec.config.vlanTrunk must be a list, got {other}"))),
    };
    let one = |(at, entry): (usize, &Value)| {
        let id = |key: &str| entry.get(key).and_then(Value::as_u64);
        match (id("id"), id("minID"), id("maxID")) {
            (Some(id), None, None) => Ok(id.to_string()),
            (None, Some(first), Some(last)) => Ok(format!("{first}-{last}")),
            _ => Err(invalid(format!("spec.config.vlanTrunk[{at}] must have `id`, or `minID` and `maxID`"))),
        }
    };
    all.iter().enumerate().map(one).collect()
}
