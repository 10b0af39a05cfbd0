//! `knit cni`: installs and uninstalls the CNI plugin and its configuration.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use knit_agent::cni::{CniConfig, FileState};
use knit_kni::frame::DEFAULT_SOCKET;

use crate::output;
use crate::output::Format;

/// The subcommands of `knit cni`.
#[derive(Debug, Subcommand)]
pub enum CniCommand {
    /// Install the CNI plugin and its configuration
    Install(CniArgs),
    /// Remove the CNI configuration and the plugin; files of other networks are kept
    ///
    /// Running pods need the plugin for their deletion: with --keep-shim only the configuration is removed.
    Uninstall {
        #[command(flatten)]
        args: CniArgs,
        /// Keep the plugin
        #[arg(long)]
        keep_shim: bool,
    },
    /// Show what is installed, and which CNI configuration container runtimes use
    ///
    /// Exit code: 0 if both files are up to date and runtimes use Knit's configuration, 1 if not.
    Status {
        #[command(flatten)]
        args: CniArgs,
        /// Output format
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
}

/// The paths of the CNI files.
#[derive(Debug, Args)]
pub struct CniArgs {
    /// CNI plugin directory of the container runtime
    #[arg(long, env = "KNIT_CNI_BIN_DIR", value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// CNI configuration directory of the container runtime
    #[arg(long, env = "KNIT_CNI_CONF_DIR", value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// File name of the CNI configuration
    #[arg(long, env = "KNIT_CNI_CONF_NAME", value_name = "NAME", default_value = "10-knit.conflist")]
    cni_conf_name: String,
    /// CNI plugin to install [default: knit-cni in the directory of this program]
    #[arg(long, env = "KNIT_CNI_SHIM", value_name = "FILE")]
    cni_shim: Option<PathBuf>,
    /// Socket of the agent, written to the CNI configuration
    #[arg(long, env = "KNIT_CNI_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    cni_socket: PathBuf,
}

impl CniArgs {
    fn config(&self) -> Result<CniConfig> {
        let config = CniConfig {
            install: true,
            bin_dir: self.cni_bin_dir.clone(),
            conf_dir: self.cni_conf_dir.clone(),
            conf_name: self.cni_conf_name.clone(),
            shim: self.cni_shim.clone().unwrap_or_default(),
        };
        config.check().map_err(anyhow::Error::msg)?;
        Ok(config)
    }
}

/// Runs `knit cni`.
pub fn run(command: &CniCommand) -> Result<ExitCode> {
    let lines = match command {
        CniCommand::Install(args) => args.config()?.install(&args.cni_socket)?,
        CniCommand::Uninstall { args, keep_shim } => {
            let config = args.config()?;
            let mut lines = config.remove_configuration()?;
            if !keep_shim {
                lines.extend(config.remove_shim()?);
            }
            lines
        }
        CniCommand::Status { args, output } => return status(args, *output),
    };
    let lines = if lines.is_empty() { vec!["nothing to do".to_owned()] } else { lines };
    output::text(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn status(args: &CniArgs, format: Format) -> Result<ExitCode> {
    let status = args.config()?.status(&args.cni_socket)?;
    let up_to_date = [status.shim_state, status.configuration_state] == [FileState::UpToDate; 2];
    let ok = up_to_date && status.shadowed_by().is_none();
    if matches!(format, Format::Json) {
        output::json(&status)?;
    } else {
        let file_state = |state| match state {
            FileState::Missing => "missing",
            FileState::UpToDate => "up to date",
            FileState::Outdated => "outdated: replace it with `knit cni install`",
            FileState::Foreign => "not installed by Knit",
        };
        let in_use = match &status.active {
            None => "none".to_owned(),
            Some(path) if status.shadowed_by().is_some() => {
                format!("{} (not installed by Knit)", path.display())
            }
            Some(path) => path.display().to_string(),
        };
        output::text(&format!(
            "plugin         {}: {}\nconfiguration  {}: {}\nin use          {in_use}\n",
            status.shim.display(),
            file_state(status.shim_state),
            status.configuration.display(),
            file_state(status.configuration_state),
        ))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
