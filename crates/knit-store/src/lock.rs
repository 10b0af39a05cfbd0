//! The lock of a state directory. The kernel releases it when its holder exits, for whatever reason.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use crate::disk::Disk;
use crate::error::{Error, Result};

const NAME: &str = "state.lock";

/// The lock, held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(disk: &Disk) -> Result<Self> {
        let path = disk.path(NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| Error::io("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let pid = file.read_to_string(&mut pid).ok().and_then(|_| pid.trim().parse().ok());
                return Err(Error::Locked { dir: disk.dir().to_owned(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", &path, source)),
        }
        // The PID is informational: failing to write it on a full disk is harmless, as long as no stale PID remains.
        file.set_len(0).map_err(|source| Error::io("truncate", &path, source))?;
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Self { _file: file })
    }
}
