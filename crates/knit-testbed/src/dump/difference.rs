//! The difference of two dumps as text.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Line, Section};

/// An added or removed subject with more lines than this is summarized by its first line and a count.
const MAX_LINES_IN_FULL: usize = 4;

/// The difference by section; empty if there is none.
pub(super) fn between(before: &[Section], after: &[Section]) -> String {
    let mut text = String::new();
    for (old, new) in before.iter().zip(after) {
        let changes = changes(&old.lines, &new.lines);
        if changes.is_empty() {
            continue;
        }
        let _ = writeln!(text, "{}:", old.title);
        let (removed, added) = (only_in(&old.lines, &new.lines), only_in(&new.lines, &old.lines));
        write_changes(&mut text, &changes, &removed, &added);
    }
    text
}

/// Subjects that only the first one has.
fn only_in<'a>(lines: &'a [Line], others: &'a [Line]) -> BTreeSet<&'a str> {
    let others: BTreeSet<_> = others.iter().map(|line| line.subject.as_str()).collect();
    lines.iter().map(|line| line.subject.as_str()).filter(|subject| !others.contains(subject)).collect()
}

fn write_changes(
    text: &mut String,
    changes: &[(char, &Line)],
    removed: &BTreeSet<&str>,
    added: &BTreeSet<&str>,
) {
    let mut rest = changes;
    while let Some((sign, line)) = rest.first() {
        let whole = if *sign == '-' { removed } else { added };
        let same = |other: &&(char, &Line)| other.0 == *sign && other.1.subject == line.subject;
        let together = rest.iter().take_while(same).count();
        if whole.contains(line.subject.as_str()) && together > MAX_LINES_IN_FULL {
            let _ = writeln!(text, "  {sign} {}   (and {} further lines)", line.text, together - 1);
            rest = &rest[together..];
        } else {
            let _ = writeln!(text, "  {sign} {}", line.text);
            rest = &rest[1..];
        }
    }
}

/// The shortest edit script as removed and added lines in place: the longest common subsequence, without the
/// common head and tail.
fn changes<'a>(old: &'a [Line], new: &'a [Line]) -> Vec<(char, &'a Line)> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[head..], &new[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);

    // common[i][j]: length of the longest common subsequence of old[i..] and new[j..].
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut changes = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            changes.push(('-', &old[i]));
            i += 1;
        } else {
            changes.push(('+', &new[j]));
            j += 1;
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines whose first word is the subject.
    fn section(lines: &[&str]) -> Vec<Section> {
        let line = |text: &&str| Line {
            subject: text.split(' ').next().unwrap_or_default().to_owned(),
            text: (*text).to_owned(),
        };
        vec![Section { title: "things", lines: lines.iter().map(line).collect() }]
    }

    fn difference(before: &[&str], after: &[&str]) -> String {
        between(&section(before), &section(after))
    }

    #[test]
    fn equal_dumps_have_no_difference() {
        assert_eq!(difference(&["a 1", "b 2"], &["a 1", "b 2"]), "");
    }

    #[test]
    fn changed_line_is_removed_and_added() {
        assert_eq!(difference(&["a 1", "b 2", "c 3"], &["a 1", "b 9", "c 3"]), "things:\n  - b 2\n  + b 9\n");
    }

    #[test]
    fn unchanged_lines_are_not_shown() {
        assert_eq!(difference(&["a 1", "c 3"], &["a 1", "b 2", "c 3"]), "things:\n  + b 2\n");
        assert_eq!(difference(&["a 1", "b 2", "c 3"], &["b 2"]), "things:\n  - a 1\n  - c 3\n");
    }

    #[test]
    fn moved_line_is_a_difference() {
        assert_eq!(difference(&["a 1", "b 2"], &["b 2", "a 1"]), "things:\n  - a 1\n  + a 1\n");
    }

    #[test]
    fn added_subject_of_many_lines_is_summarized() {
        let eth1 = ["eth1 a", "eth1 b", "eth1 c", "eth1 d", "eth1 e"];
        assert_eq!(
            difference(&["eth0 a"], &[&["eth0 a"], &eth1[..]].concat()),
            "things:\n  + eth1 a   (and 4 further lines)\n"
        );
        // Not if the subject existed before: then each line is shown.
        assert_eq!(difference(&["eth1 x"], &[&["eth1 x"], &eth1[..]].concat()).lines().count(), 6);
    }
}
