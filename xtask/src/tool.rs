//! The tools: which command is which crate, and how it is built and run.

use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, Command};
use knit_dev::packages::{self, Purpose};
use knit_dev::{places, process};

/// A command that a crate under `tools/` implements.
pub struct Tool {
    /// The command.
    pub command: &'static str,
    /// One line for `--help`.
    about: &'static str,
    /// The package with the program, which has the package's name.
    package: &'static str,
    /// Arguments before those of the caller.
    arguments: &'static [&'static str],
    /// Further arguments of its build.
    cargo: &'static [&'static str],
    /// The cargo profile that it is built with.
    profile: &'static str,
    /// Debian packages that its build needs.
    build: &'static [Purpose],
    /// Shown before the build: what happens, and how long it usually takes.
    notice: Option<&'static str>,
}

const TOOL: Tool = Tool {
    command: "",
    about: "",
    package: "",
    arguments: &[],
    cargo: &[],
    profile: "dev",
    build: &[],
    notice: None,
};

/// All tools, in the order of `--help`.
pub const TOOLS: &[Tool] = &[
    Tool {
        command: "demo",
        about: "Show what Knit does, in namespaces of its own: no cluster, and no root where user namespaces are allowed",
        package: "knit-demo",
        notice: Some(
            "builds Knit without cluster support (about two minutes the first time, seconds later), then shows it in ten seconds",
        ),
        ..TOOL
    },
    Tool {
        command: "test",
        about: "Run every test that protects a change, or some families: unit, netns, vm, cluster",
        package: "knit-testrunner",
        arguments: &["test"],
        notice: Some(
            "all families take about an hour the first time, 45 minutes later; `test unit` five minutes, then two",
        ),
        ..TOOL
    },
    Tool {
        command: "suite",
        about: "Run a long suite (conformance, soak, sim) and record its result in docs/conformance.md",
        package: "knit-testrunner",
        arguments: &["suite"],
        ..TOOL
    },
    Tool {
        command: "fresh",
        about: "Run the README's commands in a fresh Debian root, to find missing install steps",
        package: "knit-testrunner",
        arguments: &["fresh"],
        ..TOOL
    },
    Tool {
        command: "ci",
        about: "Run checks, the demo, unit and netns tests; with --all also vm and cluster",
        package: "knit-testrunner",
        arguments: &["ci"],
        ..TOOL
    },
    Tool {
        command: "cluster",
        about: "Run a real Kubernetes on this machine",
        package: "knit-testcluster",
        ..TOOL
    },
    Tool {
        command: "vm",
        about: "Run programs in a QEMU guest, for kernel features that this machine lacks",
        package: "knit-guest",
        ..TOOL
    },
    Tool { command: "image", about: "Build the container image", package: "knit-image", ..TOOL },
    Tool {
        command: "bench",
        about: "Measure Knit against the bare kernel and against peers",
        package: "knit-bench",
        profile: "benchmark",
        build: &[Purpose::Build],
        notice: Some("builds the benchmarks, optimised (about five minutes the first time)"),
        ..TOOL
    },
    Tool {
        command: "sim",
        about: "Simulate a large cluster without a kernel; a seed replays",
        package: "knit-sim",
        profile: "benchmark",
        notice: Some("builds the simulator, optimised (about three minutes the first time)"),
        ..TOOL
    },
    Tool {
        command: "soak",
        about: "Apply random changes and failures to a real cluster",
        package: "knit-soak",
        ..TOOL
    },
    Tool {
        command: "fuzz",
        about: "Fuzz everything that reads bytes from outside, guided by coverage",
        package: "knit-fuzz",
        // The command itself links no crate of Knit.
        cargo: &["--no-default-features"],
        ..TOOL
    },
    Tool {
        command: "generate",
        about: "Write the files that follow from the code; with --check only compare them",
        package: "knit-generate",
        ..TOOL
    },
];

impl Tool {
    /// The command as clap sees it: everything after its name belongs to the tool.
    pub fn subcommand(&self) -> Command {
        let arguments = Arg::new("arguments").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        Command::new(self.command).about(self.about).disable_help_flag(true).arg(arguments.hide(true))
    }

    /// Builds the tool and runs it; its exit code is the result.
    pub fn run<'a>(&self, arguments: impl Iterator<Item = &'a OsStr>) -> Result<ExitCode> {
        if let Some(notice) = self.notice {
            eprintln!("cargo xtask {}: {notice}", self.command);
        }
        packages::ensure(self.build)?;
        let mut cargo = process::cargo();
        cargo.current_dir(std::env::current_dir().unwrap_or_else(|_| places::workspace().to_owned()));
        cargo.arg("run").arg("--manifest-path").arg(places::workspace().join("Cargo.toml"));
        cargo.args(["--locked", "--profile", self.profile, "--package", self.package, "--bin", self.package]);
        cargo.args(self.cargo);
        let status = process::status(cargo.arg("--").args(self.arguments).args(arguments))?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}
