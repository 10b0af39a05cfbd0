//! Types of plugins that are kinds of Knit's: which object of Knit's would ask for the same.

use knit_model::intent::{Defined, IntentSpec, InterfaceIntent, Limits, RateIntent, Selector};
use knit_model::link::OwnerId;
use knit_model::problem::Reason;
use knit_model::provenance::Dialect;
use knit_model::{IfName, Problems};
use serde_json::{Map, Value, json};

use super::addresses::{Ipam, unknown};
use super::annotation::Bandwidth;
use super::config::Plugin;
use super::{Entry, Refusal, invalid};
use crate::Object;

/// Fields that every plugin has, and that say nothing about its link.
const COMMON: [&str; 7] = ["cniVersion", "name", "type", "ipam", "capabilities", "dns", "args"];

/// Whether a type of plugins is a kind of Knit's.
pub(super) fn is_known(kind: &str) -> bool {
    ["bridge", "macvlan", "ipvlan", "vlan", "ptp", "host-device"].contains(&kind)
}

/// An object of Knit's that asks for the same.
struct Alike {
    kind: &'static str,
    fields: Map<String, Value>,
    defined: Defined,
    /// Fields of the plugin that it was made of.
    known: &'static [&'static str],
    warnings: Vec<String>,
}

impl Entry<'_> {
    /// Asks for what a plugin would make, in Knit's own way.
    pub(super) fn kind(&self, plugin: &Plugin) -> Result<(IntentSpec, Vec<String>), Refusal> {
        let mut ipam = Ipam::read(&plugin.0)?;
        ipam.ask_for(&self.selection.ips)?;
        let mut alike = match plugin.kind() {
            "bridge" => self.bridge(plugin, &ipam)?,
            "ptp" => self.ptp(plugin, &ipam)?,
            "macvlan" => self.on_nic(plugin, "Macvlan", &["mode", "bcqueuelen"])?,
            "ipvlan" => self.on_nic(plugin, "Ipvlan", &["mode"])?,
            "vlan" => self.on_nic(plugin, "Vlan", &["vlanId"])?,
            _ => self.host_device(plugin)?,
        };
        let mut warnings = std::mem::take(&mut alike.warnings);
        warnings.append(&mut ipam.warnings);
        warnings.extend(unknown(&plugin.0, "", &[&COMMON[..], alike.known].concat()));
        warnings.extend(self.unknown());
        warnings.extend(self.no_default_route());
        warnings.extend(self.only_for_plugins());
        let fields = &mut alike.fields;
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
        let mut want = read(alike.kind, alike.fields)?;
        want.pods = Selector::pod(self.pod.uid.as_str());
        want.limits = self.limits()?;
        let defined = Defined { shared: ipam.shared, reserved: ipam.reserved, ..alike.defined };
        if defined.nic.is_some() {
            // Which uplink that is the node knows.
            want.parent = None;
        }
        want.defined = Some(Box::new(defined));
        Ok((IntentSpec::Interface(Box::new(want)), warnings))
    }

    fn defined(&self) -> Defined {
        let selection = self.selection;
        Defined { namespace: selection.namespace.clone(), name: selection.name.clone(), ..Defined::default() }
    }

    /// A pair on a bridge of that name.
    fn bridge(&self, plugin: &Plugin, ipam: &Ipam) -> Result<Alike, Refusal> {
        let mut alike = Alike {
            kind: "Veth",
            fields: Map::new(),
            defined: self.defined(),
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
                return Err((Reason::NotAllowed, format!("spec.config.{key}: Knit has nothing like it")));
            }
        }
        for (key, why) in [
            ("ipMasq", "what leaves by this bridge keeps the pod's address"),
            ("promiscMode", "a Bridge object of the same name can say it"),
            ("isDefaultGateway", "the pod's first interface keeps the default routes"),
        ] {
            if is_set(plugin, key)? {
                alike.warnings.push(format!("spec.config.{key}: {why}"));
            }
        }
        let is_gateway = is_set(plugin, "isGateway")? || is_set(plugin, "isDefaultGateway")?;
        self.check_gateway(is_gateway, ipam)?;
        alike.defined.gateway = is_gateway;
        alike.defined.hairpin = is_set(plugin, "hairpinMode")?;
        let name = text(plugin, "bridge").unwrap_or_else(|| self.own_bridge("nad-"));
        alike.fields.insert("master".to_owned(), json!(name));
        let access = number(plugin, "vlan")?.filter(|vlan| *vlan > 0);
        let trunk = trunk(plugin)?;
        match (access, trunk.is_empty()) {
            (None, true) => {}
            (Some(vlan), true) => {
                alike.fields.insert("vlan".to_owned(), json!({ "access": vlan }));
            }
            (None, false) => {
                alike.fields.insert("vlan".to_owned(), json!({ "trunk": trunk }));
            }
            (Some(vlan), false) => {
                alike.fields.insert("vlan".to_owned(), json!({ "trunk": trunk, "native": vlan }));
            }
        }
        Ok(alike)
    }

    /// A pair on a bridge of the definition's own, which is the router.
    fn ptp(&self, plugin: &Plugin, ipam: &Ipam) -> Result<Alike, Refusal> {
        let mut warnings = Vec::new();
        if is_set(plugin, "ipMasq")? {
            warnings.push("spec.config.ipMasq: what leaves keeps the pod's address".to_owned());
        }
        self.check_gateway(true, ipam)?;
        let fields = Map::from_iter([("master".to_owned(), json!(self.own_bridge("ptp-")))]);
        let defined = Defined { gateway: true, ..self.defined() };
        Ok(Alike { kind: "Veth", fields, defined, known: &["mtu", "ipMasq", "ipMasqBackend"], warnings })
    }

    /// A bridge of the definition's own: named like it where that fits, or by a stable number.
    fn own_bridge(&self, prefix: &str) -> String {
        let name = &self.selection.name;
        let named = format!("{prefix}{name}");
        if IfName::new(named.as_str()).is_ok() {
            named
        } else {
            format!("{prefix}{}", OwnerId::derived(name).0)
        }
    }

    /// A bridge of Knit's has the first address of its range, and no other.
    fn check_gateway(&self, is_gateway: bool, ipam: &Ipam) -> Result<(), Refusal> {
        match ipam.other_gateway().filter(|_| is_gateway) {
            None => Ok(()),
            Some(other) => {
                let message =
                    format!("ipam: the bridge has the first address of its range, and cannot have {other}");
                Err((Reason::NotAllowed, message))
            }
        }
    }

    /// A link on a NIC of the node, or on another interface of the pod.
    fn on_nic(
        &self,
        plugin: &Plugin,
        kind: &'static str,
        own: &'static [&'static str],
    ) -> Result<Alike, Refusal> {
        let is_inside = is_set(plugin, "linkInContainer")?;
        let Some(master) = text(plugin, "master") else {
            let message = "spec.config.master: it is missing, and Knit guesses no NIC of the node";
            return Err(invalid(message));
        };
        let mut alike = Alike {
            kind,
            fields: Map::from_iter([("parent".to_owned(), json!(master))]),
            defined: self.defined(),
            known: &["master", "mtu", "mac", "linkInContainer", "mode", "vlanId", "bcqueuelen"],
            warnings: Vec::new(),
        };
        if !is_inside {
            let nic = IfName::new(&master).map_err(|why| invalid(format!("spec.config.master: {why}")))?;
            alike.defined.nic = Some(nic);
        }
        for key in own {
            let Some(value) = plugin.0.get(*key).filter(|value| !value.is_null() && **value != json!(""))
            else {
                continue;
            };
            match *key {
                "bcqueuelen" => {
                    alike.warnings.push(format!("spec.config.{key}: not known, and does nothing"))
                }
                "vlanId" => alike.fields.extend([("id".to_owned(), value.clone())]),
                _ => alike.fields.extend([((*key).to_owned(), value.clone())]),
            }
        }
        Ok(alike)
    }

    /// A NIC of the node itself.
    fn host_device(&self, plugin: &Plugin) -> Result<Alike, Refusal> {
        let Some(device) = text(plugin, "device") else {
            let message = "spec.config.device: it is missing: Knit finds a NIC by its name on the node only";
            return Err(invalid(message));
        };
        let nic = IfName::new(&device).map_err(|why| invalid(format!("spec.config.device: {why}")))?;
        let defined = Defined { nic: Some(nic), ..self.defined() };
        let fields = Map::from_iter([("parent".to_owned(), json!(device))]);
        Ok(Alike { kind: "HostDevice", fields, defined, known: &["device"], warnings: Vec::new() })
    }

    fn limits(&self) -> Result<Limits, Refusal> {
        let Some(Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }) =
            self.selection.bandwidth
        else {
            return Ok(Limits::default());
        };
        let rate = |bits: u64, burst: u64| {
            (bits > 0).then(|| RateIntent { bits, burst: Some(burst / 8).filter(|bytes| *bytes > 0) })
        };
        let limits =
            Limits { ingress: rate(ingress_rate, ingress_burst), egress: rate(egress_rate, egress_burst) };
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

    /// What of an entry only a plugin could do.
    fn only_for_plugins(&self) -> Vec<String> {
        let selection = self.selection;
        let all = [
            ("portMappings", !selection.port_mappings.is_empty()),
            ("cni-args", selection.cni_args.is_some()),
            ("infiniband-guid", selection.infiniband_guid.is_some()),
        ];
        let said = all.into_iter().filter(|(_, is_said)| *is_said);
        said.map(|(field, _)| format!("{field}: it is for plugins, and does nothing here")).collect()
    }
}

/// What an object of this kind with these fields asks for, or the first thing that is wrong with it.
fn read(kind: &str, fields: Map<String, Value>) -> Result<InterfaceIntent, Refusal> {
    let version = Object::kinds().iter().find(|info| info.kind == kind).map(|info| info.api_version());
    let metadata = json!({ "name": "attachment" });
    let manifest = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": fields });
    let place = |field: &str| field.trim_start_matches("spec").trim_start_matches('.').to_owned();
    let said = |field: &str, message: &str| match place(field) {
        field if field.is_empty() => message.to_owned(),
        field => format!("{field}: {message}"),
    };
    let object = Object::parse(&manifest.to_string()).map_err(|errors| {
        let first = errors.0.first();
        invalid(first.map_or_else(String::new, |first| said(&first.field, &first.message)))
    })?;
    let translation = object.intents(Dialect::Annotation).map_err(|problems| {
        let first = problems.0.into_iter().next();
        first.map_or_else(|| invalid(""), |first| (first.reason, said(&first.field, &first.message)))
    })?;
    let mut wants = translation.intents.into_iter();
    let want = wants.find_map(|intent| match intent.spec {
        IntentSpec::Interface(want) => Some(*want),
        _ => None,
    });
    want.ok_or_else(|| invalid(format!("a {kind} makes no interface")))
}

fn text(plugin: &Plugin, key: &str) -> Option<String> {
    plugin.0.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn is_set(plugin: &Plugin, key: &str) -> Result<bool, Refusal> {
    match plugin.0.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(other) => Err(invalid(format!("spec.config.{key}: {other} is neither true nor false"))),
    }
}

fn number(plugin: &Plugin, key: &str) -> Result<Option<u64>, Refusal> {
    match plugin.0.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(invalid(format!("spec.config.{key}: {value} is no number"))),
        },
    }
}

/// VLANs whose packets pass with a tag: `{"id": 7}`, or `{"minID": 7, "maxID": 9}`.
fn trunk(plugin: &Plugin) -> Result<Vec<String>, Refusal> {
    let all = match plugin.0.get("vlanTrunk") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(all)) => all,
        Some(other) => return Err(invalid(format!("spec.config.vlanTrunk: {other} is no list"))),
    };
    let one = |(at, entry): (usize, &Value)| {
        let id = |key: &str| entry.get(key).and_then(Value::as_u64);
        match (id("id"), id("minID"), id("maxID")) {
            (Some(id), None, None) => Ok(id.to_string()),
            (None, Some(first), Some(last)) => Ok(format!("{first}-{last}")),
            _ => Err(invalid(format!("spec.config.vlanTrunk[{at}]: neither `id` nor `minID` and `maxID`"))),
        }
    };
    all.iter().enumerate().map(one).collect()
}
