//! The revision of the sources of an image.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use knit_dev::process;

/// The checkout's commit, with `-dirty` if any file differs from it or is untracked; `None` outside git.
pub fn of(checkout: &Path) -> Result<Option<String>> {
    // A source archive that is unpacked inside another repository must not use that one's commit.
    if !checkout.join(".git").exists() {
        return Ok(None);
    }
    let commit = git(checkout, &["rev-parse", "--verify", "HEAD"]).context("cannot read the git commit")?;
    // The flag is explicit, because git settings may hide untracked files.
    let changes = git(checkout, &["status", "--porcelain", "--untracked-files=normal"])
        .context("cannot read the git status")?;
    let suffix = if changes.trim().is_empty() { "" } else { "-dirty" };
    Ok(Some(format!("{}{suffix}", commit.trim())))
}

/// Runs git on this checkout, regardless of a surrounding git hook.
pub fn git(checkout: &Path, args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    process::output(git.arg("-C").arg(checkout).args(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::write(path.join("file"), "one").unwrap();
        git(path, &["init", "--quiet"]).unwrap();
        git(path, &["add", "file"]).unwrap();
        let identity =
            ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"];
        git(path, &[&identity[..], &["commit", "--quiet", "-m", "one"]].concat()).unwrap();
        folder
    }

    #[test]
    fn a_clean_checkout_has_its_commit_as_revision() {
        let folder = checkout();
        let revision = of(folder.path()).unwrap().unwrap();
        assert_eq!(revision, git(folder.path(), &["rev-parse", "HEAD"]).unwrap().trim());
        assert_eq!(revision.len(), 40);
    }

    #[test]
    fn a_changed_file_makes_it_dirty() {
        let folder = checkout();
        std::fs::write(folder.path().join("file"), "two").unwrap();
        assert!(of(folder.path()).unwrap().unwrap().ends_with("-dirty"));
    }

    #[test]
    fn a_new_file_makes_it_dirty_even_if_git_is_configured_to_hide_them() {
        let folder = checkout();
        git(folder.path(), &["config", "status.showUntrackedFiles", "no"]).unwrap();
        std::fs::write(folder.path().join("new"), "new").unwrap();
        assert!(of(folder.path()).unwrap().unwrap().ends_with("-dirty"));
    }

    #[test]
    fn a_directory_inside_another_repository_has_no_revision() {
        let folder = checkout();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        assert_eq!(of(&inner).unwrap(), None);
    }

    #[test]
    fn a_repository_without_a_commit_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet"]).unwrap();
        assert!(format!("{:#}", of(folder.path()).unwrap_err()).contains("cannot read the git commit"));
    }
}
