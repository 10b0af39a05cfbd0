//! The CNI shim and its configuration in the directories where container runtimes look for them.
//!
//! Files are replaced atomically: written to a temporary file, synced, renamed. Only files that Knit owns are replaced or removed;
//! ownership is read from the content, so that a node whose state was lost can still be cleaned.

mod installer;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use knit_kni::frame::SHIM_MARK;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use installer::start as start_installer;

use crate::error::{Error, Result};

/// The shim's file name: the `type` in configurations.
pub const SHIM: &str = "knit-cni";
/// The configuration's name: the scope of a garbage collection.
const NETWORK: &str = "knit";
/// The key that marks a configuration as Knit's.
const OWNER: &str = "knit.opdev.io/owner";
/// File name extensions that runtimes read as configurations.
const CONF_EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];

/// Where the shim and its configuration are installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CniConfig {
    /// Whether the agent installs both and restores them. Changing it to `false` removes what the agent installed.
    pub install: bool,
    /// The directory where runtimes look for plugins.
    pub bin_dir: PathBuf,
    /// The directory where runtimes look for configurations.
    pub conf_dir: PathBuf,
    /// The configuration's file name. Runtimes use the first one in lexical order.
    pub conf_name: String,
    /// The shim to install. Default: `knit-cni` in the directory of this program.
    pub shim: PathBuf,
}

impl Default for CniConfig {
    fn default() -> Self {
        Self {
            install: false,
            bin_dir: "/opt/cni/bin".into(),
            conf_dir: "/etc/cni/net.d".into(),
            conf_name: "10-knit.conflist".to_owned(),
            shim: PathBuf::new(),
        }
    }
}

/// The state of an installed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FileState {
    /// The file does not exist.
    Missing,
    /// The file is up to date.
    UpToDate,
    /// The file is Knit's, with other content.
    Outdated,
    /// A file of this name exists and is not Knit's.
    Foreign,
}

/// What is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CniStatus {
    /// The shim's path.
    pub shim: PathBuf,
    /// The state of the shim.
    pub shim_state: FileState,
    /// The configuration's path.
    pub configuration: PathBuf,
    /// The state of the configuration.
    pub configuration_state: FileState,
    /// The configuration that runtimes use; `None` when there is none.
    pub active: Option<PathBuf>,
}

/// Identity and change time of a file or directory: every modification changes one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileFingerprint {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl FileFingerprint {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { device: found.dev(), inode: found.ino(), size: found.size(), changed })
    }
}

impl CniStatus {
    /// Whether both files are up to date and runtimes use Knit's configuration.
    fn is_complete(&self) -> bool {
        let files = [self.shim_state, self.configuration_state];
        files.iter().all(|file| *file == FileState::UpToDate) && self.shadowed_by().is_none()
    }

    /// A foreign configuration that precedes Knit's.
    pub fn shadowed_by(&self) -> Option<&Path> {
        self.active.as_deref().filter(|active| *active != self.configuration)
    }
}

impl CniConfig {
    /// Validates every value.
    pub fn check(&self) -> Result<(), String> {
        let ending = Path::new(&self.conf_name).extension().and_then(|ending| ending.to_str());
        let plain = !self.conf_name.contains('/') && !self.conf_name.starts_with('.');
        if ending != Some("conflist") || !plain {
            let name = &self.conf_name;
            return Err(format!("cni.confName: `{name}` is not a file name ending in .conflist"));
        }
        for (key, folder) in [("binDir", &self.bin_dir), ("confDir", &self.conf_dir)] {
            if !folder.is_absolute() {
                return Err(format!("cni.{key}: `{}` is not an absolute path", folder.display()));
            }
        }
        Ok(())
    }

    fn shim_file(&self) -> PathBuf {
        self.bin_dir.join(SHIM)
    }

    fn conf_file(&self) -> PathBuf {
        self.conf_dir.join(&self.conf_name)
    }

    /// The path of the shim to install.
    fn source_file(&self) -> Result<PathBuf> {
        if !self.shim.as_os_str().is_empty() {
            return Ok(self.shim.clone());
        }
        let this = std::env::current_exe();
        let this = this.map_err(|source| file_error(Path::new("/proc/self/exe"), source))?;
        Ok(this.with_file_name(SHIM))
    }

    /// The shim to install.
    fn source(&self) -> Result<Vec<u8>> {
        let path = self.source_file()?;
        let bytes = fs::read(&path).map_err(|source| file_error(&path, source))?;
        if !is_shim(&bytes) {
            let why = "this is not Knit's CNI shim".to_owned();
            return Err(Error::Config { path: path.display().to_string(), why });
        }
        Ok(bytes)
    }

    /// Fingerprints of all files that [`CniConfig::status`] reads; `None` if one is missing.
    fn fingerprints(&self) -> Option<[FileFingerprint; 4]> {
        let [shim, conf] = [self.shim_file(), self.conf_file()].map(|path| FileFingerprint::of(&path));
        Some([
            shim?,
            conf?,
            FileFingerprint::of(&self.source_file().ok()?)?,
            FileFingerprint::of(&self.conf_dir)?,
        ])
    }

    /// Reads what is installed.
    pub fn status(&self, socket: &Path) -> Result<CniStatus> {
        let (shim, configuration) = (self.shim_file(), self.conf_file());
        let shim_state = match read(&shim)? {
            None => FileState::Missing,
            Some(bytes) if !is_shim(&bytes) => FileState::Foreign,
            // Without a source to compare with, any version is accepted.
            Some(bytes) if self.source().is_ok_and(|source| source != bytes) => FileState::Outdated,
            Some(_) => FileState::UpToDate,
        };
        let configuration_state = match read(&configuration)? {
            None => FileState::Missing,
            Some(bytes) if !is_knits(&bytes) => FileState::Foreign,
            Some(bytes) if bytes != conflist(socket).into_bytes() => FileState::Outdated,
            Some(_) => FileState::UpToDate,
        };
        Ok(CniStatus {
            shim,
            shim_state,
            configuration,
            configuration_state,
            active: self.active_configuration()?,
        })
    }

    /// The first configuration in lexical order: the one that runtimes use.
    fn active_configuration(&self) -> Result<Option<PathBuf>> {
        let entries = match fs::read_dir(&self.conf_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(|source| file_error(&self.conf_dir, source))?,
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_conf = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| CONF_EXTENSIONS.contains(&ending)) && path.is_file()
        };
        Ok(paths.filter(is_conf).min())
    }

    /// Installs the shim, then the configuration. Returns the actions taken; none when both are up to date.
    pub fn install(&self, socket: &Path) -> Result<Vec<String>> {
        let status = self.status(socket)?;
        let foreign = |path: &Path| Error::Config {
            path: path.display().to_string(),
            why: "a foreign file has this name: remove it, or choose another directory or name".to_owned(),
        };
        let mut done = Vec::new();
        match status.shim_state {
            FileState::UpToDate => {}
            FileState::Foreign => return Err(foreign(&status.shim)),
            FileState::Missing | FileState::Outdated => {
                put(&status.shim, &self.source()?, 0o755)?;
                done.push(format!("installed {}", status.shim.display()));
            }
        }
        match status.configuration_state {
            FileState::UpToDate => {}
            FileState::Foreign => return Err(foreign(&status.configuration)),
            FileState::Missing | FileState::Outdated => {
                put(&status.configuration, conflist(socket).as_bytes(), 0o644)?;
                done.push(format!("installed {}", status.configuration.display()));
            }
        }
        Ok(done)
    }

    /// Removes the configuration, so that runtimes add no more pods. Returns the actions taken.
    pub fn remove_configuration(&self) -> Result<Vec<String>> {
        remove(&self.conf_file(), is_knits)
    }

    /// Removes the shim. Afterwards runtimes cannot delete pods that were added through it.
    pub fn remove_shim(&self) -> Result<Vec<String>> {
        remove(&self.shim_file(), is_shim)
    }
}

/// The configuration list. Runtimes that support `cniVersions` use the newest version that they know.
fn conflist(socket: &Path) -> String {
    let list = json!({
        "cniVersion": "1.0.0",
        "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        "name": NETWORK,
        OWNER: "knit",
        "plugins": [{
            "type": SHIM,
            "socket": socket,
            "capabilities": {
                "portMappings": true, "bandwidth": true, "ips": true, "mac": true, "dns": true, "aliases": true,
                "ipRanges": true, "deviceID": true, "io.kubernetes.cri.pod-annotations": true,
            },
        }],
    });
    format!("{list:#}\n")
}

fn is_knits(bytes: &[u8]) -> bool {
    let list: Option<Value> = serde_json::from_slice(bytes).ok();
    list.is_some_and(|list| list.get(OWNER).is_some())
}

fn is_shim(bytes: &[u8]) -> bool {
    bytes.windows(SHIM_MARK.len()).any(|window| window == SHIM_MARK.as_bytes())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error(path, source)),
    }
}

/// Replaces a file atomically, also across a power failure.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Runtimes watch the directory; they ignore hidden files without a known extension.
    let beside = folder.join(format!(".{name}.knit-new"));
    let written = (|| {
        fs::create_dir_all(folder)?;
        let _ = fs::remove_file(&beside);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    })();
    written.map_err(|source| {
        let _ = fs::remove_file(&beside);
        file_error(path, source)
    })
}

fn remove(path: &Path, is_knits: impl Fn(&[u8]) -> bool) -> Result<Vec<String>> {
    match read(path)? {
        None => Ok(Vec::new()),
        Some(bytes) if !is_knits(&bytes) => Ok(vec![format!("kept {}: not Knit's", path.display())]),
        Some(_) => {
            fs::remove_file(path).map_err(|source| file_error(path, source))?;
            Ok(vec![format!("removed {}", path.display())])
        }
    }
}

fn file_error(path: &Path, source: io::Error) -> Error {
    Error::Config { path: path.display().to_string(), why: source.to_string() }
}

#[cfg(test)]
mod tests;
