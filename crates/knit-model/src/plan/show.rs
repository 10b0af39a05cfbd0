//! Plans for people: what is added, removed and changed, with old and new values.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::{Change, Plan, Planned, Step};
use crate::link::{Fields, Link, agrees};
use crate::name::IfName;
use crate::sandbox::Scope;

/// What every link has unless someone asks for something else.
const USUAL: [(&str, &str); 20] = [
    ("ageing", "300"),
    ("alias", "nothing"),
    ("allmulticast", "false"),
    ("arp", "true"),
    ("default_pvid", "1"),
    ("fdb_ageing", "300"),
    ("group", "0"),
    ("learning", "true"),
    ("limit", "nothing"),
    ("master", "nothing"),
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
        let born = self.born();
        for planned in self.steps.iter().filter(|planned| !planned.only_brings_up(&born)) {
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
            return "nothing to change".to_owned();
        }
        let born = self.born();
        let shown = || self.steps.iter().filter(|planned| !planned.only_brings_up(&born));
        let count = |mark: char| shown().filter(|planned| planned.step.mark() == mark).count();
        format!("{} to add, {} to change, {} to remove", count('+'), count('~'), count('-'))
    }

    /// The links that this plan makes. That they go up is part of their making, and not worth a line.
    fn born(&self) -> BTreeSet<(&Scope, &IfName)> {
        let mut born = BTreeSet::new();
        for planned in &self.steps {
            if let Step::CreateLink { link, peer } = &planned.step {
                born.insert((&planned.scope, &link.name));
                born.extend(peer.as_ref().map(|(scope, link)| (scope, &link.name)));
            }
        }
        born
    }
}

impl Planned {
    fn only_brings_up(&self, born: &BTreeSet<(&Scope, &IfName)>) -> bool {
        match &self.step {
            Step::ChangeLink { name, changes, .. } => {
                born.contains(&(&self.scope, name)) && changes.iter().all(|change| change.field == "up")
            }
            _ => false,
        }
    }

    fn show(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "  {} {}", self.step.mark(), self.step)?;
        if let Step::ChangeLink { changes, .. } = &self.step {
            for change in changes {
                writeln!(out, "      {change}")?;
            }
        }
        if let Some(note) = &self.note {
            writeln!(out, "      made again: {note}")?;
        }
        for provenance in &self.because {
            writeln!(out, "      asked by {provenance}")?;
        }
        Ok(())
    }
}

impl Step {
    /// `+` for what comes, `-` for what goes, `~` for what changes.
    pub fn mark(&self) -> char {
        match self {
            Self::CreateLink { .. }
            | Self::AddAddress(_)
            | Self::AddRoute(_)
            | Self::AddRule(_)
            | Self::AddNeighbour(_) => '+',
            Self::DeleteLink { .. }
            | Self::RemoveAddress(_)
            | Self::RemoveRoute(_)
            | Self::RemoveRule(_)
            | Self::RemoveNeighbour(_) => '-',
            Self::ChangeLink { .. }
            | Self::ReplaceRoute { .. }
            | Self::ReplaceNeighbour { .. }
            | Self::SetSysctl { .. } => '~',
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
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        say_change(&self.field, &self.from, &self.to, &mut lines);
        out.write_str(&lines.join("\n      "))
    }
}

/// A line for each value that changes; of a map, each entry by itself.
fn say_change(path: &str, from: &Value, to: &Value, lines: &mut Vec<String>) {
    let (Value::Object(before), Value::Object(after)) = (from, to) else {
        lines.push(format!("{path}: {} -> {}", plain(from), plain(to)));
        return;
    };
    for (key, gone) in before.iter().filter(|(key, _)| !after.contains_key(*key)) {
        lines.push(format!("{path} - {key} {}", plain(gone)));
    }
    for (key, to) in after {
        match before.get(key) {
            None => lines.push(format!("{path} + {key} {}", plain(to))),
            Some(from) if !agrees(to, from) => say_change(&format!("{path}.{key}"), from, to, lines),
            Some(_) => {}
        }
    }
}

fn show_peer(out: &mut fmt::Formatter<'_>, scope: &Scope, peer: &Link) -> fmt::Result {
    write!(out, " (far end {} on {scope}", peer.name)?;
    show_fields(out, &peer.fields())?;
    out.write_str(")")
}

fn show_fields(out: &mut fmt::Formatter<'_>, fields: &Fields) -> fmt::Result {
    // The far end is shown apart, and what every link has unless someone asks for something else is no news.
    let is_news = |field: &str, value: &Value| {
        field != "peer" && !USUAL.iter().any(|(usual, plainly)| *usual == field && plain(value) == *plainly)
    };
    for (field, value) in fields.iter().filter(|(field, value)| is_news(field, value)) {
        write!(out, " {field} {}", plain(value))?;
    }
    Ok(())
}

/// A value without JSON's quotes; "nothing" for an empty text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::String(text) if text.is_empty() => "nothing".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let stated = fields.iter().filter(|(_, value)| !value.is_null());
            let stated: Vec<String> = stated.map(|(key, value)| format!("{key} {}", plain(value))).collect();
            format!("({})", stated.join(" "))
        }
        other => other.to_string(),
    }
}
