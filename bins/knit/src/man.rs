//! `knit man`: manual pages.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{cli, output};

/// Writes one page for each command and prints the paths.
pub fn run(directory: &Path) -> Result<ExitCode> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mut command = cli::Cli::command().disable_help_subcommand(true);
    // Sets the full names of subcommands: `knit-sandbox-add`.
    command.build();
    write(command, directory)?;
    Ok(ExitCode::SUCCESS)
}

fn write(command: Command, directory: &Path) -> Result<()> {
    let subcommands: Vec<Command> =
        command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned().collect();
    let page = Man::new(command).manual("Knit");
    let path = page
        .generate_to(directory)
        .with_context(|| format!("cannot write {}", directory.join(page.get_filename()).display()))?;
    output::text(&format!("{}\n", path.display()))?;
    subcommands.into_iter().try_for_each(|command| write(command, directory))
}
