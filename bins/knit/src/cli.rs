//! The command line and its dispatch.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::node_args::{DEFAULT_NAMESPACE, NodeArgs};
use crate::output::{Format, TableFormat};
use crate::{
    agent, client, cni, completion, doctor, get, man, objects, replay, sandbox, status, support_bundle,
    version,
};
#[cfg(feature = "cluster")]
use crate::{controller, preflight, uninstall};

/// Pod networking for Kubernetes and for plain network namespaces
#[derive(Debug, Parser)]
#[command(
    name = "knit",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = version::feature_help()
)]
pub struct Cli {
    #[command(flatten)]
    node: NodeArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check which kernel features this node has, and how to enable the missing ones
    ///
    /// Tries each feature in a temporary network namespace and changes nothing on the node. Run it as root. Without root
    /// it uses a user namespace if the system allows that, and reports the features that it could not check.
    ///
    /// Exit code: 0 if all required features are available, 1 if one is missing or could not be checked.
    Doctor {
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Check whether a Kubernetes cluster meets the requirements of Knit, before the installation
    ///
    /// Reads from the API server and changes nothing: versions, your permissions, container runtimes, kernels, the network
    /// plugin, the address ranges of the cluster and overlaps with them. It cannot see kernel features: run `knit doctor`
    /// on the node for these.
    ///
    /// Exit code: 0 if no check failed, 1 if the API server cannot be reached, 2 if a check failed.
    #[cfg(feature = "cluster")]
    Preflight(preflight::Flags),
    /// Run the node agent
    ///
    /// Serves the gRPC packages kni and knit.v1 on a unix socket that only root can open, reconciles the node with objects
    /// and calls, and repairs drift. Flags and environment variables override the configuration file. The agent exits on
    /// SIGTERM; pods keep their network.
    Agent(Box<agent::Flags>),
    /// Install, uninstall and show the CNI plugin knit-cni, through which container runtimes call the agent
    ///
    /// With `cni.install: true` the agent installs the plugin and repairs the installation.
    #[command(subcommand)]
    Cni(cni::CniCommand),
    /// Run the cluster controller: object status, finalizers, sample Deployments
    ///
    /// With several replicas, the one that holds the lease is active. The controller exits on SIGTERM; pod networks work
    /// without it.
    #[cfg(feature = "cluster")]
    Controller(controller::Flags),
    /// Remove Knit from a cluster: first its objects, so that agents clean up nodes and pods, then Knit itself
    ///
    /// Removes leftover finalizers, also if no controller runs. Needs the kubeconfig of a cluster administrator.
    #[cfg(feature = "cluster")]
    Uninstall(uninstall::Flags),
    /// Add, list, label, enter and delete sandboxes: network namespaces that represent pods
    #[command(subcommand)]
    Sandbox(sandbox::SandboxCommand),
    /// Apply the objects in files to this node
    ///
    /// Validates all objects before it changes anything. Repairs drift, also if the objects are unchanged, and reports the
    /// repairs on standard error. Exit code: 0 if all objects are applied, 1 if not; the reason is on standard error and in
    /// the status of the object.
    Apply {
        #[command(flatten)]
        files: Files,
        /// Only validate, and print what would happen to each object
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete objects and remove their configuration from this node
    Delete {
        /// Files or directories with objects; `-` is standard input
        #[arg(short = 'f', long = "filename", value_name = "FILE|DIR")]
        files: Vec<PathBuf>,
        /// Kind, if no file is given
        #[arg(required_unless_present = "files", requires = "name")]
        kind: Option<String>,
        /// Name
        name: Option<String>,
        /// Namespace
        #[arg(short, long, default_value = DEFAULT_NAMESPACE)]
        namespace: String,
        /// Only show what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what `knit apply` would change, without changing it
    ///
    /// Exit code: 0 if nothing would change, 2 if something would.
    Plan {
        #[command(flatten)]
        files: Files,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Roll back the last apply or delete
    ///
    /// Does not change objects from the directory that the agent watches.
    Undo,
    /// List objects with their status
    Get {
        /// Kind, plural or short name [default: all]
        kind: Option<String>,
        /// Name [default: all]
        name: Option<String>,
        /// Only this namespace
        #[arg(short, long)]
        namespace: Option<String>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: TableFormat,
    },
    /// Show details of objects
    Describe {
        /// Kind, plural or short name
        kind: String,
        /// Name [default: all]
        name: Option<String>,
        /// Only this namespace
        #[arg(short, long)]
        namespace: Option<String>,
    },
    /// Show what Knit has configured on this node, problems and drift
    ///
    /// Exit code: 0 if everything is applied, 1 if there are problems, drift or orphaned links.
    Status {
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    #[command(flatten)]
    Client(client::ClientCommand),
    /// Print the version
    Version {
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Print the completion script for a shell
    ///
    /// For bash: `knit completion bash > /etc/bash_completion.d/knit`.
    /// For zsh: `knit completion zsh > "${fpath[1]}/_knit"`.
    /// For fish: `knit completion fish > ~/.config/fish/completions/knit.fish`.
    Completion {
        /// Shell
        #[arg(value_enum)]
        shell: completion::Shell,
    },
    /// Make the decisions of a recording or support bundle again, and compare them
    ///
    /// The recording is a file of `knit agent --record`, or a support bundle, which has the last minutes. Reads the file only:
    /// no agent, kernel or API server is needed. Use the same build of Knit as the agent. Exit code: 0 if all decisions are the
    /// same, 1 if the file cannot be read, 2 if a decision differs.
    Replay {
        /// Recording or support bundle
        file: PathBuf,
        /// Print every input with the decisions that followed
        #[arg(long)]
        show: bool,
    },
    /// Collect state, kernel network configuration, logs and versions of this node in an archive for bug reports
    ///
    /// The archive also has the inputs of the last minutes: `knit replay` makes the agent's decisions again. Annotations and
    /// fields whose names suggest a secret are redacted. Run it as root.
    SupportBundle {
        /// Archive to write [default: knit-support.tar.gz]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Socket of the agent
        #[arg(long, env = "KNIT_KNI_SOCKET", value_name = "PATH")]
        kni_socket: Option<PathBuf>,
    },
    /// Write manual pages to a directory
    ///
    /// For all users: `knit man /usr/local/share/man/man1`, then `man knit`.
    Man {
        /// Directory; created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// Files with objects.
#[derive(Debug, Args)]
struct Files {
    /// Files or directories with objects; `-` is standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(cli: Cli) -> Result<ExitCode> {
    let Cli { node, command } = cli;
    match command {
        Command::Doctor { output } => doctor::run(output),
        #[cfg(feature = "cluster")]
        Command::Preflight(flags) => preflight::run(&flags),
        Command::Agent(flags) => agent::run(&node, *flags),
        Command::Cni(command) => cni::run(&command),
        #[cfg(feature = "cluster")]
        Command::Controller(flags) => controller::run(flags),
        #[cfg(feature = "cluster")]
        Command::Uninstall(flags) => uninstall::run(&flags),
        Command::Sandbox(command) => sandbox::run(&node, command),
        Command::Apply { files, dry_run } => objects::apply(&node, &files.files, dry_run),
        Command::Delete { files, kind, name, namespace, dry_run } => {
            let object =
                kind.zip(name).map(|(kind, name)| get::object_name(&kind, &name, &namespace)).transpose()?;
            objects::delete(&node, &files, object, dry_run)
        }
        Command::Plan { files, output } => objects::plan(&node, &files.files, matches!(output, Format::Json)),
        Command::Undo => objects::undo(&node),
        Command::Get { kind, name, namespace, output } => {
            let selector = get::Selector {
                kind: kind.as_deref(),
                name: name.as_deref(),
                namespace: namespace.as_deref(),
            };
            get::get(&node, &selector, output)
        }
        Command::Describe { kind, name, namespace } => {
            let selector =
                get::Selector { kind: Some(&kind), name: name.as_deref(), namespace: namespace.as_deref() };
            get::describe(&node, &selector)
        }
        Command::Status { output } => status::status(&node, matches!(output, Format::Json)),
        Command::Client(command) => client::run(&command),
        Command::Version { output } => version::run(output),
        Command::Completion { shell } => completion::run(shell),
        Command::Replay { file, show } => replay::run(&file, show),
        Command::SupportBundle { file, kni_socket } => support_bundle::run(&node, file, kni_socket),
        Command::Man { directory } => man::run(&directory),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
