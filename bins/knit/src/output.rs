//! Output formats, and writing to standard output.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use comfy_table::{Table, presets};
use serde::Serialize;

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Format {
    /// Human-readable text
    #[default]
    Text,
    /// JSON
    Json,
}

/// The format of a list of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TableFormat {
    /// Table
    #[default]
    Table,
    /// Table with additional columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// Writes text. A closed pipe (`knit doctor | head`) is not an error.
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

/// A table as kubectl prints it: a line of column names, then the rows, two spaces between columns.
pub fn table<Row>(header: &[&str], rows: impl IntoIterator<Item = Row>) -> String
where
    Row: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_no_leading_or_trailing_spaces() {
        let rows = [["a", "1"], ["long", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&["NAME", "MTU"], rows), "NAME  MTU\na     1\nlong\n");
    }
}
