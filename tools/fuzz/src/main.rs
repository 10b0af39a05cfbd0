//! `cargo xtask fuzz`: fuzzes the parsers, one after the other.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Arg, ArgAction, Command, value_parser};
use knit_fuzz::fuzzer::Fuzzer;
use knit_fuzz::{TARGETS, Target};

fn main() -> Result<ExitCode> {
    let arguments = cli().get_matches();
    if arguments.get_flag("list") {
        for target in TARGETS {
            println!("{:<20} {}", target.name, target.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let names = arguments.get_many::<String>("targets").unwrap_or_default();
    let targets = selected(names.map(String::as_str))?;
    if let Some(input) = arguments.get_one::<PathBuf>("input") {
        let [target] = targets[..] else { bail!("--input needs exactly one target") };
        Fuzzer::build()?.repeat(target, input)?;
        return Ok(ExitCode::SUCCESS);
    }
    let seconds = *arguments.get_one::<u64>("seconds").expect("it has a default");
    fuzz(&targets, seconds)
}

fn cli() -> Command {
    let targets = Arg::new("targets").value_name("TARGET").num_args(0..);
    let list = Arg::new("list").long("list").action(ArgAction::SetTrue);
    let seconds = Arg::new("seconds").long("seconds").value_name("N").default_value("60");
    let input = Arg::new("input").long("input").value_name("FILE").value_parser(value_parser!(PathBuf));
    Command::new("cargo xtask fuzz")
        .bin_name("cargo xtask fuzz")
        .about("Fuzz everything that reads bytes from outside")
        .arg(targets.help("What to fuzz [default: everything]"))
        .arg(list.help("List the targets"))
        .arg(seconds.value_parser(value_parser!(u64).range(1..)).help("How long to fuzz each target"))
        .arg(input.help("Run the target once, with this input"))
}

/// The targets of these names; all without names.
fn selected<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<&'static Target>> {
    let find = |name: &str| {
        let found = TARGETS.iter().find(|target| target.name == name);
        found.with_context(|| format!("there is no target `{name}`: see cargo xtask fuzz --list"))
    };
    let targets: Vec<&Target> = names.map(find).collect::<Result<_>>()?;
    Ok(if targets.is_empty() { TARGETS.iter().collect() } else { targets })
}

fn fuzz(targets: &[&Target], seconds: u64) -> Result<ExitCode> {
    let fuzzer = Fuzzer::build()?;
    let mut failed = Vec::new();
    for target in targets {
        let run = fuzzer.fuzz(target, seconds)?;
        let (inputs, took, rate) = (run.inputs, run.duration.as_secs(), run.rate());
        let result = if run.failed { "FAILED" } else { "ok" };
        println!("{:<20} {result:<6} {inputs:>10} inputs in {took} s, {rate} per second", target.name);
        failed.extend(run.failed.then_some(target.name));
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        cli().debug_assert();
    }

    #[test]
    fn targets_are_selected_by_name() {
        assert_eq!(selected([].into_iter()).unwrap().len(), TARGETS.len());
        assert_eq!(selected(["nri"].into_iter()).unwrap()[0].name, "nri");
        assert!(selected(["other"].into_iter()).unwrap_err().to_string().contains("`other`"));
    }
}
