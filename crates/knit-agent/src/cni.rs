//! The CNI shim and its configuration on the node's disk, where container runtimes look for them.
//!
//! A file is put in place whole: written beside, synced, renamed. Only Knit's own files are replaced or removed; they are
//! known by what is in them, so that a node whose state was lost can still be cleaned.

mod keep;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use knit_kni::frame::SHIM_MARK;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) use keep::keep;

use crate::error::{Error, Result};

/// The shim's file name: what configurations call `type`.
pub const SHIM: &str = "knit-cni";
/// The configuration's name: what one garbage collection is about.
const NETWORK: &str = "knit";
/// The key that says whose a configuration is.
const OWNER: &str = "knit.opdev.io/owner";
/// What runtimes take for configurations.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

/// Where the shim and its configuration go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CniConfig {
    /// Whether the agent puts both there and keeps them there. When it no longer should, it removes what it put there.
    pub install: bool,
    /// Where runtimes look for plugins.
    pub bin_dir: PathBuf,
    /// Where runtimes look for configurations.
    pub conf_dir: PathBuf,
    /// The configuration's file name. Runtimes take the first one in the order of names.
    pub conf_name: String,
    /// The shim to install. Empty: the one beside this program.
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

/// How a file stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Standing {
    /// There is none.
    Missing,
    /// It is as it should be.
    AsAsked,
    /// It is Knit's, and says something else.
    Outdated,
    /// Someone else's file has the name.
    Foreign,
}

/// What is on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Look {
    /// The shim's file.
    pub shim: PathBuf,
    /// How it stands.
    pub shim_stands: Standing,
    /// The configuration's file.
    pub configuration: PathBuf,
    /// How it stands.
    pub configuration_stands: Standing,
    /// The file that runtimes take; none when there is no configuration at all.
    pub wins: Option<PathBuf>,
}

/// A file or folder as it is: whoever changes it changes one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Print {
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        let changed = (found.ctime(), found.ctime_nsec());
        Some(Self { device: found.dev(), inode: found.ino(), size: found.size(), changed })
    }
}

impl Look {
    /// Whether both files are as they should be, and the configuration is the one that runtimes take.
    fn stands(&self) -> bool {
        let files = [self.shim_stands, self.configuration_stands];
        files.iter().all(|file| *file == Standing::AsAsked) && self.shadow().is_none()
    }

    /// Someone else's configuration that goes before Knit's.
    pub fn shadow(&self) -> Option<&Path> {
        self.wins.as_deref().filter(|wins| *wins != self.configuration)
    }
}

impl CniConfig {
    /// Checks every value.
    pub fn check(&self) -> Result<(), String> {
        let ending = Path::new(&self.conf_name).extension().and_then(|ending| ending.to_str());
        let plain = !self.conf_name.contains('/') && !self.conf_name.starts_with('.');
        if ending != Some("conflist") || !plain {
            let name = &self.conf_name;
            return Err(format!("cni.confName: `{name}` is no file name that ends with .conflist"));
        }
        for (key, folder) in [("binDir", &self.bin_dir), ("confDir", &self.conf_dir)] {
            if !folder.is_absolute() {
                return Err(format!("cni.{key}: `{}` is no absolute path", folder.display()));
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

    /// Where the shim to install is.
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
        if !has_mark(&bytes) {
            let why = "this is not Knit's CNI shim".to_owned();
            return Err(Error::Config { path: path.display().to_string(), why });
        }
        Ok(bytes)
    }

    /// What tells whether anything that [`CniConfig::look`] looks at is another than before; `None` if something is missing.
    fn prints(&self) -> Option<[Print; 4]> {
        let [shim, conf] = [self.shim_file(), self.conf_file()].map(|path| Print::of(&path));
        Some([shim?, conf?, Print::of(&self.source_file().ok()?)?, Print::of(&self.conf_dir)?])
    }

    /// Looks at what is there.
    pub fn look(&self, socket: &Path) -> Result<Look> {
        let (shim, configuration) = (self.shim_file(), self.conf_file());
        let shim_stands = match read(&shim)? {
            None => Standing::Missing,
            Some(bytes) if !has_mark(&bytes) => Standing::Foreign,
            // Without one to compare with, whichever is there will do.
            Some(bytes) if self.source().is_ok_and(|source| source != bytes) => Standing::Outdated,
            Some(_) => Standing::AsAsked,
        };
        let configuration_stands = match read(&configuration)? {
            None => Standing::Missing,
            Some(bytes) if !is_ours(&bytes) => Standing::Foreign,
            Some(bytes) if bytes != conflist(socket).into_bytes() => Standing::Outdated,
            Some(_) => Standing::AsAsked,
        };
        Ok(Look { shim, shim_stands, configuration, configuration_stands, wins: self.winner()? })
    }

    /// The first configuration in the order of names: the one that runtimes take.
    fn winner(&self) -> Result<Option<PathBuf>> {
        let entries = match fs::read_dir(&self.conf_dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(|source| file_error(&self.conf_dir, source))?,
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_conf = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ENDINGS.contains(&ending)) && path.is_file()
        };
        Ok(paths.filter(is_conf).min())
    }

    /// Puts shim and configuration in their places, the shim first. Says what was done; nothing when both stood.
    pub fn install(&self, socket: &Path) -> Result<Vec<String>> {
        let look = self.look(socket)?;
        let foreign = |path: &Path| Error::Config {
            path: path.display().to_string(),
            why: "someone else's file has this name: remove it, or choose another folder or name".to_owned(),
        };
        let mut done = Vec::new();
        match look.shim_stands {
            Standing::AsAsked => {}
            Standing::Foreign => return Err(foreign(&look.shim)),
            Standing::Missing | Standing::Outdated => {
                put(&look.shim, &self.source()?, 0o755)?;
                done.push(format!("installed {}", look.shim.display()));
            }
        }
        match look.configuration_stands {
            Standing::AsAsked => {}
            Standing::Foreign => return Err(foreign(&look.configuration)),
            Standing::Missing | Standing::Outdated => {
                put(&look.configuration, conflist(socket).as_bytes(), 0o644)?;
                done.push(format!("installed {}", look.configuration.display()));
            }
        }
        Ok(done)
    }

    /// Removes the configuration, so that runtimes add no more pods. Says what was done.
    pub fn remove_configuration(&self) -> Result<Vec<String>> {
        remove(&self.conf_file(), is_ours)
    }

    /// Removes the shim. Pods that were added with it cannot be deleted by their runtime any more.
    pub fn remove_shim(&self) -> Result<Vec<String>> {
        remove(&self.shim_file(), has_mark)
    }
}

/// The configuration. Runtimes that know `cniVersions` choose the newest that they speak.
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

fn is_ours(bytes: &[u8]) -> bool {
    let list: Option<Value> = serde_json::from_slice(bytes).ok();
    list.is_some_and(|list| list.get(OWNER).is_some())
}

fn has_mark(bytes: &[u8]) -> bool {
    bytes.windows(SHIM_MARK.len()).any(|window| window == SHIM_MARK.as_bytes())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error(path, source)),
    }
}

/// Puts a file in its place: whoever looks sees the old one or the new one, also after a power cut.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Runtimes watch the folder: what begins with a dot and ends with no known word is no configuration.
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

fn remove(path: &Path, is_ours: impl Fn(&[u8]) -> bool) -> Result<Vec<String>> {
    match read(path)? {
        None => Ok(Vec::new()),
        Some(bytes) if !is_ours(&bytes) => Ok(vec![format!("kept {}: it is someone else's", path.display())]),
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
