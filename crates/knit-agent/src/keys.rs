//! Secret keys of tunnels, on disk where only root reads.
//!
//! Keys that Knit makes are files below `keys/` in the state folder, one for each attachment. Without a cluster a Secret
//! is a folder `secrets/<namespace>/<name>` there, with a file for each entry; in a cluster it is [`Fetched`].

mod fetched;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use knit_engine::NoKey;
use knit_kernel::Secrets;
use knit_model::key::KEY_BYTES;
use knit_model::problem::Reason;
use knit_model::{KeyRef, PrivateKey, SecretKey};

pub use fetched::{Fetched, Known, SecretName};

/// A file of a key is never longer: some spaces and a line's end are fine.
const LONGEST: u64 = 256;

/// The keys of a node.
#[derive(Debug)]
pub struct KeyFolder {
    made: PathBuf,
    secrets: PathBuf,
    /// Where Secrets are in a cluster: then those on disk do not count.
    fetched: Option<Arc<Fetched>>,
}

impl KeyFolder {
    /// The keys in a state folder.
    pub fn new(state: &Path) -> Self {
        Self { made: state.join("keys"), secrets: state.join("secrets"), fetched: None }
    }

    /// The same, with Secrets from an API server if there are any.
    #[must_use]
    pub fn with_secrets(self, fetched: Option<Arc<Fetched>>) -> Self {
        Self { fetched, ..self }
    }

    /// The key, if it is there; or why it cannot be used, in words.
    pub fn find(&self, key: &KeyRef) -> Result<Option<PrivateKey>, NoKey> {
        if let (KeyRef::Secret { .. }, Some(fetched)) = (key, &self.fetched) {
            return fetched.find(key);
        }
        let path = self.path(key)?;
        read(&path).map_err(|why| unusable(format!("{key}: {}: {why}", path.display())))
    }

    /// The key that Knit makes for an attachment; it is made if it is not there.
    pub fn make(&self, id: &str) -> Result<PrivateKey, NoKey> {
        let key = KeyRef::Made { id: id.to_owned() };
        if let Some(key) = self.find(&key)? {
            return Ok(key);
        }
        let path = self.path(&key)?;
        write_new(&self.made, &path).map_err(|why| unusable(format!("{key}: {}: {why}", path.display())))
    }

    /// Removes the keys of all attachments but these.
    pub fn retain(&self, is_used: impl Fn(&str) -> bool) -> io::Result<()> {
        let entries = match fs::read_dir(&self.made) {
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

    fn path(&self, key: &KeyRef) -> Result<PathBuf, NoKey> {
        let (folder, parts) = match key {
            KeyRef::Made { id } => (&self.made, vec![id]),
            KeyRef::Secret { namespace, name, key } => (&self.secrets, vec![namespace, name, key]),
        };
        let is_plain =
            |part: &&String| !part.is_empty() && *part != "." && *part != ".." && !part.contains('/');
        if !parts.iter().all(is_plain) {
            return Err(unusable(format!("{key}: its names are no file names")));
        }
        Ok(parts.into_iter().fold(folder.clone(), |path, part| path.join(part)))
    }

    /// Every key that is here.
    fn all(&self) -> Vec<PrivateKey> {
        let below = |folders: Vec<PathBuf>| -> Vec<PathBuf> {
            let entries = folders.into_iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
            entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
        };
        let mut files = below(vec![self.made.clone()]);
        files.extend(below(below(below(vec![self.secrets.clone()]))));
        let on_disk = files.iter().filter_map(|path| read(path).ok().flatten());
        on_disk.chain(self.fetched.iter().flat_map(|fetched| fetched.all())).collect()
    }
}

impl Secrets for KeyFolder {
    fn key(&self, wanted: &SecretKey) -> Result<PrivateKey, String> {
        match (&wanted.from, wanted.public) {
            (Some(from), _) => {
                let found = self.find(from).map_err(|no_key| no_key.why)?;
                found.ok_or_else(|| format!("{from} is not there"))
            }
            // What was seen in the kernel is to come back: only its public key is known.
            (None, Some(public)) => {
                let found = self.all().into_iter().find(|key| key.public() == public);
                found.ok_or_else(|| format!("the key of public key {public} is not there any more"))
            }
            (None, None) => Err("no key is named".to_owned()),
        }
    }
}

fn unusable(why: String) -> NoKey {
    NoKey { reason: Reason::InvalidValue, why }
}

fn read(path: &Path) -> Result<Option<PrivateKey>, String> {
    let mut text = String::new();
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| error.to_string())?,
    };
    file.take(LONGEST).read_to_string(&mut text).map_err(|error| error.to_string())?;
    PrivateKey::parse(&text).map(Some).map_err(|why| why.to_string())
}

/// Writes a new random key, wholly or not at all.
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
    fn a_key_is_made_once_where_only_root_reads_and_goes_with_its_attachment() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path());
        let made = keys.make("0123456789").unwrap();
        assert!(keys.make("0123456789").unwrap() == made);
        assert!(keys.make("9876543210").unwrap() != made);
        let mode = fs::metadata(folder.path().join("keys/0123456789")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(keys.key(&SecretKey::of(made.public())).unwrap() == made);
        keys.retain(|id| id == "9876543210").unwrap();
        assert!(keys.find(&KeyRef::Made { id: "0123456789".to_owned() }).unwrap().is_none());
        assert!(keys.find(&KeyRef::Made { id: "9876543210".to_owned() }).unwrap().is_some());
    }

    #[test]
    fn a_secret_is_a_file_and_a_bad_one_is_told_without_its_text() {
        let folder = tempfile::tempdir().unwrap();
        let keys = KeyFolder::new(folder.path());
        let secret =
            |key: &str| KeyRef::Secret { namespace: "default".into(), name: "t".into(), key: key.into() };
        assert!(keys.find(&secret("private")).unwrap().is_none());
        let place = folder.path().join("secrets/default/t");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("private"), "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n").unwrap();
        fs::write(place.join("bad"), "not so secret").unwrap();
        assert!(keys.find(&secret("private")).unwrap().is_some());
        let words = keys.find(&secret("bad")).unwrap_err().why;
        assert!(
            words.contains("key bad of Secret t in namespace default") && !words.contains("not so"),
            "{words}"
        );
        assert!(keys.find(&secret("../../x")).is_err());
        // In a cluster a file is no Secret.
        let keys = KeyFolder::new(folder.path()).with_secrets(Some(Arc::default()));
        assert_eq!(keys.find(&secret("private")).unwrap_err().reason, Reason::NotReady);
    }
}
