//! Writing answers to standard output.

use std::io::{self, Write};

use anyhow::{Context, Result};
use comfy_table::Table;
use serde::Serialize;

/// Writes text. A reader that went away (`knit doctor | head`) is not an error.
pub fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes JSON, indented, with a newline at its end.
pub fn json(value: &impl Serialize) -> Result<()> {
    text(&(serde_json::to_string_pretty(value).context("cannot write JSON")? + "\n"))
}

/// A table as kubectl prints one: columns, no frame, nothing in front.
pub fn table(table: &Table) -> String {
    table.trim_fmt().lines().map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}
