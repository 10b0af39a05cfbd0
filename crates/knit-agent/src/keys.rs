//! Private keys of tunnels, in files that only root can read.
//!
//! Keys that Knit generates are files in `keys/` of the state directory, one for each attachment. Without a cluster a Secret is a directory
//! `secrets/<namespace>/<name>` there, with a file for each entry; in a cluster Secrets come from [`ApiSecrets`].

mod api_secrets;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use knit_engine::KeyError;
use knit_kernel::PrivateKeySource;
use knit_model::key::KEY_BYTES;
use knit_model::problem::Reason;
use knit_model::{KeyRef, PrivateKey, SecretKey};

pub use api_secrets::{ApiSecrets, SecretName, SecretState};

/// Upper bound of a key file, in bytes: whitespace around the key is allowed.
const MAX_KEY_FILE: u64 = 256;

/// The keys of a node.
#[derive(Debug)]
pub struct KeyDir {
    generated: PathBuf,
    secret_files: PathBuf,
    /// Secrets of a cluster: they replace those on disk.
    api_secrets: Option<Arc<ApiSecrets>>,
}

impl KeyDir {
    /// The keys in a state directory.
    pub fn new(state: &Path) -> Self {
        Self { generated: state.join("keys"), secret_files: state.join("secrets"), api_secrets: None }
    }

    /// The same, with Secrets from an API server if there is one.
    #[must_use]
    pub fn with_secrets(self, api_secrets: Option<Arc<ApiSecrets>>) -> Self {
        Self { api_secrets, ..self }
    }

    /// The key, if it exists.
    pub fn find(&self, key: &KeyRef) -> Result<Option<PrivateKey>, KeyError> {
        if let (KeyRef::Secret { .. }, Some(secrets)) = (key, &self.api_secrets) {
            return secrets.find(key);
        }
        let path = self.path(key)?;
        read(&path).map_err(|why| unusable(format!("{key}: {}: {why}", path.display())))
    }

    /// The generated key of an attachment; it is generated if it does not exist.
    pub fn generate(&self, id: &str) -> Result<PrivateKey, KeyError> {
        let key = KeyRef::Generated { id: id.to_owned() };
        if let Some(key) = self.find(&key)? {
            return Ok(key);
        }
        let path = self.path(&key)?;
        write_new(&self.generated, &path).map_err(|why| unusable(format!("{key}: {}: {why}", path.display())))
    }

    /// Removes the generated keys of all attachments but these.
    pub fn retain(&self, is_used: impl Fn(&str) -> bool) -> io::Result<()> {
        let entries = match fs::read_dir(&self.generated) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|id| !is_used(id)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn path(&self, key: &KeyRef) -> Result<PathBuf, KeyError> {
        let (folder, parts) = match key {
            KeyRef::Generated { id } => (&self.generated, vec![id]),
            KeyRef::Secret { namespace, name, key } => (&self.secret_files, vec![namespace, name, key]),
        };
        let is_plain =
            |part: &&String| !part.is_empty() && *part != "." && *part != ".." && !part.contains('/');
        if !parts.iter().all(is_plain) {
            return Err(unusable(format!("{key}: invalid name")));
        }
        Ok(parts.into_iter().fold(folder.clone(), |path, part| path.join(part)))
    }

    /// Every key.
    fn all(&self) -> Vec<PrivateKey> {
        let below = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
            let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
            entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
        };
        let mut files = below(vec![self.generated.clone()]);
        files.extend(below(below(below(vec![self.secret_files.clone()]))));
        let on_disk = files.iter().filter_map(|path| read(path).ok().flatten());
        on_disk.chain(self.api_secrets.iter().flat_map(|secrets| secrets.all())).collect()
    }
}

impl PrivateKeySource for KeyDir {
    fn key(&self, requested: &SecretKey) -> Result<PrivateKey, String> {
        match (&requested.source, requested.public) {
            (Some(from), _) => {
                let found = self.find(from).map_err(|no_key| no_key.message)?;
                found.ok_or_else(|| format!("{from} not found"))
            }
            // A key from the kernel is to be restored: only its public key is known.
            (None, Some(public)) => {
                let found = self.all().into_iter().find(|key| key.public() == public);
                found.ok_or_else(|| format!("the private key of public key {public} no longer exists"))
            }
            (None, None) => Err("no key is specified".to_owned()),
        }
    }
}

fn unusable(why: String) -> KeyError {
    KeyError { reason: Reason::InvalidValue, message: why }
}

fn read(path: &Path) -> Result<Option<PrivateKey>, String> {
    let mut text = String::new();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| error.to_string())?,
    };
    file.take(MAX_KEY_FILE).read_to_string(&mut text).map_err(|error| error.to_string())?;
    PrivateKey::parse(&text).map(Some).map_err(|why| why.to_string())
}

/// Writes a new random key atomically.
fn write_new(folder: &Path, path: &Path) -> io::Result<PrivateKey> {
    let mut bytes = [0; KEY_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let key = PrivateKey::from_bytes(bytes);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let draft = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(format!("{}\n", key.reveal()).as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_generated_once_readable_only_by_root_and_removed_with_its_attachment() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyDir::new(folder.path());
        let generated = keys.generate("0123456789").unwrap();
        assert!(keys.generate("0123456789").unwrap() == generated);
        assert!(keys.generate("9876543210").unwrap() != generated);
        let mode = fs::metadata(folder.path().join("keys/0123456789")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(keys.key(&SecretKey::with_public_key(generated.public())).unwrap() == generated);
        keys.retain(|id| id == "9876543210").unwrap();
        assert!(keys.find(&KeyRef::Generated { id: "0123456789".to_owned() }).unwrap().is_none());
        assert!(keys.find(&KeyRef::Generated { id: "9876543210".to_owned() }).unwrap().is_some());
    }

    #[test]
    fn a_secret_is_a_file_and_errors_do_not_contain_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyDir::new(folder.path());
        let secret =
            |key: &str| KeyRef::Secret { namespace: "default".into(), name: "t".into(), key: key.into() };
        assert!(keys.find(&secret("private")).unwrap().is_none());
        let place = folder.path().join("secrets/default/t");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("private"), "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n").unwrap();
        fs::write(place.join("bad"), "not so secret").unwrap();
        assert!(keys.find(&secret("private")).unwrap().is_some());
        let message = keys.find(&secret("bad")).unwrap_err().message;
        assert!(
            message.contains("key bad of Secret t in namespace default") && !message.contains("not so"),
            "{message}"
        );
        assert!(keys.find(&secret("../../x")).is_err());
        // In a cluster a file is not a Secret.
        let keys = KeyDir::new(folder.path()).with_secrets(Some(Arc::default()));
        assert_eq!(keys.find(&secret("private")).unwrap_err().reason, Reason::NotReady);
    }
}
