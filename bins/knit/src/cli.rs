//! The command line: what people type, and which module does it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::place::{DEFAULT_NAMESPACE, Place};
use crate::{
    agent, ask, cni, completion, controller, doctor, man, objects, preflight, sandbox, show, status, support,
    uninstall, version,
};

/// Pod networking for Kubernetes, and for plain network namespaces
#[derive(Debug, Parser)]
#[command(name = "knit", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    place: Place,
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
    /// Say what would not work on a Kubernetes cluster, and why, before Knit is installed there
    ///
    /// It asks the API server of a kubeconfig and changes nothing: versions, what you may do, container runtimes, kernels,
    /// the main network, the cluster's ranges and what overlaps them. What a node's kernel was built with only `knit
    /// doctor` sees, on the node.
    ///
    /// Exit code: 0 when nothing is known to be in the way, 1 when the API server cannot be asked, 2 when something would
    /// not work.
    Preflight(preflight::Flags),
    /// Run the node's agent: pod networking over one gRPC interface
    ///
    /// It serves packages kni and knit.v1 on a unix socket that only root can open, keeps the node as objects and calls
    /// say, and repairs what someone changes by hand. Flags and environment go before the configuration file. It ends on
    /// SIGTERM; pods keep their network.
    Agent(Box<agent::Flags>),
    /// Install, remove and show the CNI shim, through which container runtimes ask the agent
    ///
    /// An agent does the same by itself with `cni.install: true`, and keeps it so.
    #[command(subcommand)]
    Cni(cni::Task),
    /// Run the cluster's controller: status of objects, finalizers, sample Deployments
    ///
    /// Several may run: the one that holds the lease works. It ends on SIGTERM; networks of pods go on without it.
    Controller(controller::Flags),
    /// Remove Knit from a cluster: its objects, so that pods and nodes are as they were, then Knit itself
    ///
    /// Nothing is left that could hang on a finalizer, also when no controller runs. It needs an admin's kubeconfig.
    Uninstall(uninstall::Flags),
    /// Add, list, enter and delete sandboxes: network namespaces that stand for pods
    #[command(subcommand)]
    Sandbox(sandbox::Task),
    /// Make the node look as the objects of files say
    ///
    /// All objects are checked before the first one changes anything. What someone changed by hand on what Knit made is
    /// repaired, also when the objects are unchanged, and said on standard error. Exit code: 0 when everything stands, 1 when
    /// something is in the way; the reason is on standard error and in the object's status.
    Apply {
        #[command(flatten)]
        files: Files,
        /// Only check, and say what would become of each object
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete objects, and take back what was made for them
    Delete {
        /// Files or folders with the objects; `-` is standard input
        #[arg(short = 'f', long = "filename", value_name = "FILE|DIR")]
        files: Vec<PathBuf>,
        /// The kind, when no file is given
        #[arg(required_unless_present = "files", requires = "name")]
        kind: Option<String>,
        /// The name
        name: Option<String>,
        /// The namespace
        #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
        namespace: String,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what applying the objects of files would change, without changing it
    ///
    /// Exit code: 0 when nothing would change, 2 when something would.
    Plan {
        #[command(flatten)]
        files: Files,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Go back to the objects before the last apply or delete
    ///
    /// What an agent's folder did is not undone, and what one of its files has by now stays.
    Undo,
    /// Print objects with their status
    Get {
        /// The kind, by its name, plural or short name; all when left out
        kind: Option<String>,
        /// The name; all when left out
        name: Option<String>,
        /// Only this namespace
        #[arg(short, long)]
        namespace: Option<String>,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: show::Form,
    },
    /// Print all there is to say about objects
    Describe {
        /// The kind, by its name, plural or short name
        kind: String,
        /// The name; all when left out
        name: Option<String>,
        /// Only this namespace
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// Show what Knit has made on this node, what is in the way, and what someone changed by hand
    ///
    /// Exit code: 0 when everything stands, 1 when something is in the way or is not as it was asked for.
    Status {
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    #[command(flatten)]
    Ask(ask::Task),
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
    /// Collect what a maintainer needs to understand this node: state, kernel dumps, logs, versions; no secrets
    ///
    /// Annotations and whatever is named like a secret are left out. Run it as root.
    SupportBundle {
        /// The archive to write [default: knit-support.tar.gz]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// The agent's socket
        #[arg(long, env = "KNIT_KNI_SOCKET", value_name = "PATH")]
        kni_socket: Option<PathBuf>,
    },
    /// Write knit's manual pages into a folder
    ///
    /// For all users: `knit man /usr/local/share/man/man1`, then `man knit`.
    Man {
        /// The folder; made if it is missing
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// Files with objects.
#[derive(Debug, Args)]
struct Files {
    /// Files or folders with the objects; `-` is standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
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
    let Cli { place, command } = cli;
    match command {
        Command::Doctor { output } => doctor::run(output),
        Command::Preflight(flags) => preflight::run(&flags),
        Command::Agent(flags) => agent::run(&place, *flags),
        Command::Cni(task) => cni::run(&task),
        Command::Controller(flags) => controller::run(flags),
        Command::Uninstall(flags) => uninstall::run(&flags),
        Command::Sandbox(task) => sandbox::run(&place, task),
        Command::Apply { files, dry_run } => objects::apply(&place, &files.files, dry_run),
        Command::Delete { files, kind, name, namespace, dry_run } => {
            let named =
                kind.zip(name).map(|(kind, name)| show::name(&kind, &name, &namespace)).transpose()?;
            objects::delete(&place, &files, named, dry_run)
        }
        Command::Plan { files, output } => {
            objects::plan(&place, &files.files, matches!(output, Format::Json))
        }
        Command::Undo => objects::undo(&place),
        Command::Get { kind, name, namespace, output } => {
            let which =
                show::Which { kind: kind.as_deref(), name: name.as_deref(), namespace: namespace.as_deref() };
            show::get(&place, &which, output)
        }
        Command::Describe { kind, name, namespace } => {
            let which =
                show::Which { kind: Some(&kind), name: name.as_deref(), namespace: namespace.as_deref() };
            show::describe(&place, &which)
        }
        Command::Status { output } => status::status(&place, matches!(output, Format::Json)),
        Command::Ask(task) => ask::run(&task),
        Command::Version { output } => version::run(output),
        Command::Completion { shell } => completion::run(shell),
        Command::SupportBundle { file, kni_socket } => support::run(&place, file, kni_socket),
        Command::Man { folder } => man::run(&folder),
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
