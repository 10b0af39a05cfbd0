//! The command line: what people type, and which module does it.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

use crate::{completion, doctor, version};

/// Pod networking for Kubernetes, and for plain network namespaces
#[derive(Debug, Parser)]
#[command(name = "knit", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what this kernel and machine offer for each of Knit's features, what is missing, and what to do about it
    ///
    /// Every feature is tried for real in a scratch network namespace that is gone afterwards; nothing is changed. Run
    /// it as root. Without root it tries in a user namespace, where the machine allows that, and says what it could
    /// not try.
    ///
    /// Exit code: 0 when everything that Knit's basic job needs is there, 1 when something is missing or could not be
    /// tried.
    Doctor {
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Show which Knit this is
    Version {
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Print a script that completes knit's commands in a shell
    ///
    /// For bash: `knit completion bash > /etc/bash_completion.d/knit`.
    /// For zsh: `knit completion zsh > "${fpath[1]}/_knit"`.
    /// For fish: `knit completion fish > ~/.config/fish/completions/knit.fish`.
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: completion::Shell,
    },
}

/// How a command prints its answer.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// Does what was typed.
pub fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Doctor { output } => doctor::run(output),
        Command::Version { output } => version::run(output),
        Command::Completion { shell } => completion::run(shell),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_line_of_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
