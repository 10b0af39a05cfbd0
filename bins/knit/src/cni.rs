//! `knit cni`: the CNI shim and its configuration, installed and removed by hand.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use knit_agent::cni::{CniConfig, Standing};
use knit_kni::frame::DEFAULT_SOCKET;

use crate::cli::Format;
use crate::output;

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Put the shim and its configuration where container runtimes look for them
    Install(Where),
    /// Remove the configuration and the shim; files of others stay
    ///
    /// Pods that were added through the shim are deleted through it, too: with --keep-shim only the configuration goes.
    Uninstall {
        #[command(flatten)]
        place: Where,
        /// Leave the shim in its place
        #[arg(long)]
        keep_shim: bool,
    },
    /// Show what is installed, and which configuration container runtimes take
    ///
    /// Exit code: 0 when both files stand and runtimes take Knit's configuration, 1 when not.
    Status {
        #[command(flatten)]
        place: Where,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
}

/// Where the files are.
#[derive(Debug, Args)]
pub struct Where {
    /// Where container runtimes look for CNI plugins
    #[arg(long, env = "KNIT_CNI_BIN_DIR", value_name = "DIR", default_value = "/opt/cni/bin")]
    cni_bin_dir: PathBuf,
    /// Where container runtimes look for CNI configurations
    #[arg(long, env = "KNIT_CNI_CONF_DIR", value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// The file name of the configuration
    #[arg(long, env = "KNIT_CNI_CONF_NAME", value_name = "NAME", default_value = "10-knit.conflist")]
    cni_conf_name: String,
    /// The shim to install [default: knit-cni beside this program]
    #[arg(long, env = "KNIT_CNI_SHIM", value_name = "FILE")]
    cni_shim: Option<PathBuf>,
    /// The socket of the agent that the configuration names
    #[arg(long, env = "KNIT_CNI_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    cni_socket: PathBuf,
}

impl Where {
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

/// Does it.
pub fn run(task: &Task) -> Result<ExitCode> {
    let lines = match task {
        Task::Install(place) => place.config()?.install(&place.cni_socket)?,
        Task::Uninstall { place, keep_shim } => {
            let config = place.config()?;
            let mut lines = config.remove_configuration()?;
            if !keep_shim {
                lines.extend(config.remove_shim()?);
            }
            lines
        }
        Task::Status { place, output } => return status(place, *output),
    };
    let nothing = vec!["nothing to do".to_owned()];
    let lines = if lines.is_empty() { nothing } else { lines };
    output::text(&(lines.join("\n") + "\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn status(place: &Where, format: Format) -> Result<ExitCode> {
    let look = place.config()?.look(&place.cni_socket)?;
    let stands = [look.shim_stands, look.configuration_stands] == [Standing::AsAsked; 2];
    let well = stands && look.shadow().is_none();
    if matches!(format, Format::Json) {
        output::json(&look)?;
    } else {
        let words = |standing| match standing {
            Standing::Missing => "missing",
            Standing::AsAsked => "as asked",
            Standing::Outdated => "of another version or configuration: `knit cni install` replaces it",
            Standing::Foreign => "someone else's",
        };
        let taken = match &look.wins {
            None => "none".to_owned(),
            Some(path) if look.shadow().is_some() => format!("{} (not Knit's)", path.display()),
            Some(path) => path.display().to_string(),
        };
        output::text(&format!(
            "shim           {}: {}\nconfiguration  {}: {}\nruntimes take  {taken}\n",
            look.shim.display(),
            words(look.shim_stands),
            look.configuration.display(),
            words(look.configuration_stands),
        ))?;
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
