//! Plans as text: what is added, removed and changed, with old and new values.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::{FieldChange, Plan, PlannedStep, Step, StepEffect};
use crate::filter::FilterStep;
use crate::link::{Fields, Link, values_match};
use crate::name::IfName;
use crate::sandbox::Scope;

/// Default values of fields, which are not shown.
const DEFAULTS: [(&str, &str); 20] = [
    ("ageing", "300"),
    ("alias", "none"),
    ("allmulticast", "false"),
    ("arp", "true"),
    ("default_pvid", "1"),
    ("fdb_ageing", "300"),
    ("group", "0"),
    ("learning", "true"),
    ("limit", "none"),
    ("master", "none"),
    ("multicast", "true"),
    ("multicast_snooping", "true"),
    ("priority", "32768"),
    ("promisc", "false"),
    ("stp", "false"),
    ("ttl", "0"),
    ("txqueuelen", "1000"),
    ("up", "true"),
    ("vlan_filtering", "false"),
    ("vlan_protocol", "802.1Q"),
];

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scope: Option<&Scope> = None;
        for planned in self.shown() {
            if scope != Some(&planned.scope) {
                writeln!(out, "{}", planned.scope)?;
                scope = Some(&planned.scope);
            }
            planned.show(out)?;
        }
        for (scope, problem) in &self.problems {
            writeln!(out, "! {scope}: {problem}")?;
        }
        out.write_str(&self.summary())
    }
}

impl Plan {
    /// The plan in one line.
    pub fn summary(&self) -> String {
        if self.steps.is_empty() {
            return "no changes".to_owned();
        }
        let count = |effect| self.shown().filter(|planned| planned.step.effect() == effect).count();
        format!(
            "{} to add, {} to change, {} to remove",
            count(StepEffect::Add),
            count(StepEffect::Change),
            count(StepEffect::Remove)
        )
    }

    /// Each step in one line, without its origins.
    pub fn step_texts(&self) -> Vec<String> {
        let texts = self.shown().map(|planned| format!("{} {}", planned.step.symbol(), planned.step));
        texts.collect()
    }

    /// The steps without those that only set up a new link.
    fn shown(&self) -> impl Iterator<Item = &PlannedStep> {
        let created = self.created();
        self.steps.iter().filter(move |planned| !planned.only_sets_up(&created))
    }

    /// The links that this plan creates. Setting them up is part of their creation and not shown.
    fn created(&self) -> BTreeSet<(&Scope, &IfName)> {
        let mut created = BTreeSet::new();
        for planned in &self.steps {
            if let Step::CreateLink { link, peer } = &planned.step {
                created.insert((&planned.scope, &link.name));
                created.extend(peer.as_ref().map(|(scope, link)| (scope, &link.name)));
            }
        }
        created
    }
}

impl PlannedStep {
    fn only_sets_up(&self, created: &BTreeSet<(&Scope, &IfName)>) -> bool {
        match &self.step {
            Step::ChangeLink { name, changes, .. } => {
                created.contains(&(&self.scope, name)) && changes.iter().all(|change| change.field == "up")
            }
            _ => false,
        }
    }

    fn show(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "  {} {}", self.step.symbol(), self.step)?;
        if let Step::ChangeLink { changes, .. } = &self.step {
            for change in changes {
                writeln!(out, "      {change}")?;
            }
        }
        if let Step::Filter(FilterStep::SetRules { before, after, .. }) = &self.step {
            for rule in before.iter().filter(|rule| !after.contains(rule)) {
                writeln!(out, "      - {rule}")?;
            }
            for rule in after.iter().filter(|rule| !before.contains(rule)) {
                writeln!(out, "      + {rule}")?;
            }
        }
        if let Some(note) = &self.note {
            writeln!(out, "      recreated: {note}")?;
        }
        for provenance in &self.origins {
            writeln!(out, "      requested by {provenance}")?;
        }
        Ok(())
    }
}

impl Step {
    /// `+` for additions, `-` for removals, `~` for changes.
    pub fn symbol(&self) -> char {
        match self.effect() {
            StepEffect::Add => '+',
            StepEffect::Remove => '-',
            StepEffect::Change => '~',
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateLink { link, peer } | Self::DeleteLink { link, peer } => {
                write!(out, "{} {}", link.kind.name(), link.name)?;
                show_fields(out, &link.fields())?;
                match peer {
                    Some((scope, peer)) => show_peer(out, scope, peer),
                    None => Ok(()),
                }
            }
            Self::ChangeLink { name, kind, .. } if kind.is_empty() => write!(out, "link {name}"),
            Self::ChangeLink { name, kind, .. } => write!(out, "{kind} {name}"),
            Self::AddAddress(address) | Self::RemoveAddress(address) => write!(out, "address {address}"),
            Self::AddRoute(route) | Self::RemoveRoute(route) => write!(out, "route {route}"),
            Self::ReplaceRoute { before, after } => write!(out, "route {before} -> {after}"),
            Self::AddRule(rule) | Self::RemoveRule(rule) => write!(out, "rule {rule}"),
            Self::AddNeighbour(neighbour) | Self::RemoveNeighbour(neighbour) => {
                write!(out, "neighbour {neighbour}")
            }
            Self::ReplaceNeighbour { before, after } => write!(out, "neighbour {before} -> {after}"),
            Self::SetSysctl { key, from, to } if from.is_empty() => write!(out, "sysctl {key} = {to}"),
            Self::SetSysctl { key, from, to } => write!(out, "sysctl {key}: {from} -> {to}"),
            Self::Filter(step) => write!(out, "{step}"),
        }
    }
}

impl fmt::Display for FieldChange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        change_lines(&self.field, &self.from, &self.to, &mut lines);
        out.write_str(&lines.join("\n      "))
    }
}

/// A line for each changed value; for maps, a line for each entry.
fn change_lines(path: &str, from: &Value, to: &Value, lines: &mut Vec<String>) {
    let (Value::Object(before), Value::Object(after)) = (from, to) else {
        lines.push(format!("{path}: {} -> {}", plain(from), plain(to)));
        return;
    };
    for (key, removed) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
        lines.push(format!("{path} - {key} {}", plain(removed)));
    }
    for (key, to) in after {
        match before.get(key) {
            None => lines.push(format!("{path} + {key} {}", plain(to))),
            Some(from) if !values_match(to, from) => change_lines(&format!("{path}.{key}"), from, to, lines),
            Some(_) => {}
        }
    }
}

fn show_peer(out: &mut fmt::Formatter<'_>, scope: &Scope, peer: &Link) -> fmt::Result {
    write!(out, " (peer {} on {scope}", peer.name)?;
    show_fields(out, &peer.fields())?;
    out.write_str(")")
}

fn show_fields(out: &mut fmt::Formatter<'_>, fields: &Fields) -> fmt::Result {
    // The peer is shown separately, default values are omitted.
    let is_notable = |field: &str, value: &Value| {
        field != "peer" && !DEFAULTS.iter().any(|(name, default)| *name == field && plain(value) == *default)
    };
    for (field, value) in fields.iter().filter(|(field, value)| is_notable(field, value)) {
        write!(out, " {field} {}", plain(value))?;
    }
    Ok(())
}

/// A value without JSON quotes; "none" for null and an empty text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) if text.is_empty() => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let set = fields.iter().filter(|(_, value)| !value.is_null());
            let set: Vec<String> = set.map(|(key, value)| format!("{key} {}", plain(value))).collect();
            format!("({})", set.join(" "))
        }
        other => other.to_string(),
    }
}
