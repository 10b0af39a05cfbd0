//! `cargo xtask`: the front end of the developer tools.
//!
//! It links none of Knit's crates, so that it builds in seconds. A command that needs more is a crate of its own under
//! `tools/`: the front end has cargo build that crate, with cargo's progress on the terminal, and runs it.

mod tool;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, ArgAction, Command};
use knit_dev::packages;

use tool::TOOLS;

fn main() -> Result<ExitCode> {
    let matches = cli().get_matches();
    match matches.subcommand() {
        Some(("deps", arguments)) => {
            packages::command(arguments.get_flag("install"))?;
            Ok(ExitCode::SUCCESS)
        }
        Some((name, arguments)) => {
            let tool = TOOLS.iter().find(|tool| tool.command == name);
            let tool = tool.expect("every other command is one of the tools");
            tool.run(arguments.get_raw("arguments").unwrap_or_default())
        }
        None => unreachable!("clap requires a command"),
    }
}

fn cli() -> Command {
    let install = Arg::new("install").long("install").action(ArgAction::SetTrue);
    let deps = Command::new("deps")
        .about("Show which Debian packages are installed and which are missing, by purpose")
        .arg(install.help("Install the missing packages (needs root)"));
    let cli = Command::new("cargo xtask")
        .bin_name("cargo xtask")
        .about("Build, test and measure Knit")
        .after_help("`cargo xtask COMMAND --help` describes a command's options.")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(deps);
    TOOLS.iter().fold(cli, |cli, tool| cli.subcommand(tool.subcommand()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        cli().debug_assert();
    }

    #[test]
    fn every_command_is_in_the_contributing_guide() {
        let guide = knit_dev::places::workspace().join("CONTRIBUTING.md");
        let guide = std::fs::read_to_string(guide).expect("the guide is in the checkout");
        for command in cli().get_subcommands() {
            let name = command.get_name();
            assert!(
                guide.contains(&format!("`cargo xtask {name}")),
                "CONTRIBUTING.md does not mention {name}"
            );
        }
    }

    #[test]
    fn options_of_a_tool_are_passed_on_unparsed() {
        let matches = cli().get_matches_from(["cargo xtask", "bench", "attach", "--json", "--help"]);
        let (name, arguments) = matches.subcommand().expect("a command was given");
        let passed: Vec<_> = arguments.get_raw("arguments").expect("arguments were given").collect();
        assert_eq!((name, passed), ("bench", ["attach", "--json", "--help"].map(AsRef::as_ref).to_vec()));
    }
}
