//! `knit man`: manual pages.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{cli, output};

/// Writes one page for each command into the folder, and says which.
pub fn run(folder: &Path) -> Result<ExitCode> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut command = cli::Cli::command().disable_help_subcommand(true);
    // Gives every command the names of those above it: `knit-sandbox-add`.
    command.build();
    write(command, folder)?;
    Ok(ExitCode::SUCCESS)
}

fn write(command: Command, folder: &Path) -> Result<()> {
    let below: Vec<Command> = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned().collect();
    let page = Man::new(command).manual("Knit");
    let path = page
        .generate_to(folder)
        .with_context(|| format!("cannot write {}", folder.join(page.get_filename()).display()))?;
    output::text(&format!("{}\n", path.display()))?;
    below.into_iter().try_for_each(|command| write(command, folder))
}
