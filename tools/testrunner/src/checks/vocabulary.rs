//! Names that a network engineer would not search for stay out of the source; names that they would search for are there.

use anyhow::{Result, bail};

use super::tracked;

/// Parts of identifiers (`told` in `told_key` and `ToldKey`) with a better word in this field.
const BANNED: [(&str, &str); 20] = [
    ("anew", "recreated, again"),
    ("asked", "request, requested"),
    ("desk", "local_api"),
    ("elsewhere", "remote"),
    ("errand", "effect"),
    ("hands", "executor"),
    ("heard", "received, has_synced"),
    ("heed", "on_change"),
    ("hears", "receives"),
    ("patience", "timeout"),
    ("said", "reported, output"),
    ("seats", "lower_links"),
    ("teller", "status_writer"),
    ("tellers", "status_writers"),
    ("told", "reported, published"),
    ("wanted", "desired, spec"),
    ("way", "route, path, direction, mode"),
    ("ways", "node_routes"),
    ("wish", "spec"),
    ("wished", "spec"),
];

/// Terms of the field, and where a search for them has to lead.
const TERMS: [(&str, &str); 10] = [
    ("SNAT", "crates/knit-engine/src/packet_filter"),
    ("masquerade", "crates/knit-engine/src/packet_filter"),
    ("overlay", "crates/knit-engine/src/overlay"),
    ("anti-spoofing", "crates/knit-engine/src/packet_filter"),
    ("reconcile", "crates/knit-agent/src/kubernetes"),
    ("rollback", "crates/knit-kernel/src/apply"),
    ("conntrack", "crates/knit-kernel/src/conntrack"),
    ("egress gateway", "crates/knit-engine/src/egress"),
    ("has_synced", "crates/knit-agent/src/kubernetes"),
    ("next hop", "crates/knit-model/src/route"),
];

/// Fails with every banned identifier, and with every term that is not found where it belongs.
pub fn check() -> Result<()> {
    let files = tracked(&["bins", "crates", "examples", "tools", "xtask"], ".rs")?;
    let mut findings = Vec::new();
    for (file, text) in &files {
        // The list itself, and generated code, whose names come from `.proto` files and the generator.
        let is_generated = file.components().any(|part| part.as_os_str() == "generated");
        if is_generated || file.ends_with("checks/vocabulary.rs") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            for (identifier, better) in banned_in(line) {
                findings.push(format!("  {}:{}: `{identifier}`: use {better}", file.display(), number + 1));
            }
        }
    }
    for (term, place) in TERMS {
        let is_there = |text: &str| text.to_lowercase().contains(&term.to_lowercase());
        if !files.iter().any(|(file, text)| file.to_string_lossy().starts_with(place) && is_there(text)) {
            findings.push(format!("  no file at {place}* contains \"{term}\""));
        }
    }
    if !findings.is_empty() {
        bail!("{} names to change:\n{}", findings.len(), findings.join("\n"));
    }
    Ok(())
}

/// The identifiers of a line with a banned part.
fn banned_in(line: &str) -> impl Iterator<Item = (String, &'static str)> {
    identifiers(&code(line)).into_iter().filter_map(|identifier| {
        let parts = parts(&identifier);
        let (_, better) = BANNED.iter().find(|(word, _)| parts.iter().any(|part| part == word))?;
        Some((identifier, *better))
    })
}

/// The line without string literals and comments. A literal that spans lines is not recognised as one: its text has to be
/// in plain words, too.
fn code(line: &str) -> String {
    let (mut code, mut letters, mut in_text) = (String::new(), line.chars().peekable(), false);
    while let Some(letter) = letters.next() {
        match letter {
            '\\' if in_text => drop(letters.next()),
            '"' => in_text = !in_text,
            '/' if !in_text && letters.peek() == Some(&'/') => break,
            _ if in_text => {}
            letter => code.push(letter),
        }
    }
    code
}

fn identifiers(code: &str) -> Vec<String> {
    let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words
        .filter(|word| word.starts_with(|first: char| first.is_alphabetic() || first == '_'))
        .map(str::to_owned)
        .collect()
}

/// `told_key`, `ToldKey` and `TOLD_KEY` are `told` and `key`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter == '_' || (letter.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = letter.is_lowercase();
        if letter != '_' {
            parts.last_mut().expect("there is always a last part").extend(letter.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Vec<String> {
        banned_in(line).map(|(identifier, _)| identifier).collect()
    }

    #[test]
    fn a_banned_part_of_an_identifier_is_found_in_every_spelling() {
        assert_eq!(found("let told_key = ToldKey::new(TOLD);"), ["told_key", "ToldKey", "TOLD"]);
        assert!(found("let untold = foretold(always, ways_out_of);").contains(&"ways_out_of".to_owned()));
        assert!(found("let gateway = halfway;").is_empty());
    }

    #[test]
    fn comments_and_texts_are_not_identifiers() {
        assert!(found(r#"let message = "told \" wanted"; // told"#).is_empty());
        assert_eq!(found(r#"f("wanted", told) // x"#), ["told"]);
    }
}
