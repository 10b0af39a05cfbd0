//! Which state of the sources an image was made from.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use knit_dev::process;

/// The checkout's commit, with `-dirty` when any file differs from it or is not in it; nothing outside git.
pub fn of(checkout: &Path) -> Result<Option<String>> {
    // A source archive unpacked inside somebody else's repository must not take that one's commit.
    if !checkout.join(".git").exists() {
        return Ok(None);
    }
    let commit = git(checkout, &["rev-parse", "--verify", "HEAD"]).context("cannot read the git commit")?;
    // Said in full, because a person's git settings may hide new files.
    let changes = git(checkout, &["status", "--porcelain", "--untracked-files=normal"])
        .context("cannot tell whether the checkout differs from its commit")?;
    let mark = if changes.trim().is_empty() { "" } else { "-dirty" };
    Ok(Some(format!("{}{mark}", commit.trim())))
}

/// Runs git on this checkout, whatever repository a surrounding git hook works on.
pub fn git(checkout: &Path, words: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    process::output(git.arg("-C").arg(checkout).args(words))
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
        let person =
            ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"];
        git(path, &[&person[..], &["commit", "--quiet", "-m", "one"]].concat()).unwrap();
        folder
    }

    #[test]
    fn a_clean_checkout_is_its_commit() {
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
    fn a_new_file_makes_it_dirty_even_where_git_is_told_not_to_show_them() {
        let folder = checkout();
        git(folder.path(), &["config", "status.showUntrackedFiles", "no"]).unwrap();
        std::fs::write(folder.path().join("new"), "new").unwrap();
        assert!(of(folder.path()).unwrap().unwrap().ends_with("-dirty"));
    }

    #[test]
    fn a_folder_inside_another_repository_has_no_revision() {
        let folder = checkout();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        assert_eq!(of(&inner).unwrap(), None);
    }

    #[test]
    fn a_repository_without_a_commit_is_an_error_and_not_a_clean_one() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet"]).unwrap();
        assert!(format!("{:#}", of(folder.path()).unwrap_err()).contains("cannot read the git commit"));
    }
}
