//! Plans for people: what is added, removed and changed, with old and new values.

use std::fmt;

use serde_json::Value;

use super::{Change, Plan, Planned, Step};
use crate::link::{Fields, Link};
use crate::sandbox::Scope;

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scope: Option<&Scope> = None;
        for planned in &self.steps {
            if scope != Some(&planned.scope) {
                writeln!(out, "{}", planned.scope)?;
                scope = Some(&planned.scope);
            }
            planned.show(out)?;
        }
        for (scope, problem) in &self.problems {
            writeln!(out, "! {scope}: {problem}")?;
        }
        let count = |mark: char| self.steps.iter().filter(|planned| planned.step.mark() == mark).count();
        let (added, changed, removed) = (count('+'), count('~'), count('-'));
        if self.steps.is_empty() {
            write!(out, "nothing to change")
        } else {
            write!(out, "{added} to add, {changed} to change, {removed} to remove")
        }
    }
}

impl Planned {
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
            Self::ChangeLink { .. } | Self::ReplaceRoute { .. } | Self::SetSysctl { .. } => '~',
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
            Self::SetSysctl { key, from, to } if from.is_empty() => write!(out, "sysctl {key} = {to}"),
            Self::SetSysctl { key, from, to } => write!(out, "sysctl {key}: {from} -> {to}"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {} -> {}", self.field, plain(&self.from), plain(&self.to))
    }
}

fn show_peer(out: &mut fmt::Formatter<'_>, scope: &Scope, peer: &Link) -> fmt::Result {
    write!(out, " (far end {} on {scope}", peer.name)?;
    show_fields(out, &peer.fields())?;
    out.write_str(")")
}

fn show_fields(out: &mut fmt::Formatter<'_>, fields: &Fields) -> fmt::Result {
    // The far end is shown apart.
    for (field, value) in fields.iter().filter(|(field, _)| *field != "peer") {
        write!(out, " {field} {}", plain(value))?;
    }
    Ok(())
}

/// A value without JSON's quotes; "nothing" for an empty text.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "nothing".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
