//! Compares output with a page.

/// Matches any number of lines.
const ANYTHING: &str = "...";

/// Whether the lines of a page match the output.
pub fn matches(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == ANYTHING => {
            (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]))
        }
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, after)| same(line, first) && matches(rest, after))
        }
    }
}

fn same(one: &str, other: &str) -> bool {
    let depth = |line: &str| line.len() - line.trim_start().len();
    depth(one) == depth(other) && one.split_whitespace().eq(other.split_whitespace())
}

/// The difference with its context.
pub fn difference(shown: &[String], printed: &[String]) -> String {
    let agree = |pair: &(&String, &String)| same(pair.0, pair.1);
    let before = shown.iter().zip(printed).take_while(agree).count();
    let (shown_rest, printed_rest) = (&shown[before..], &printed[before..]);
    let after = shown_rest.iter().rev().zip(printed_rest.iter().rev()).take_while(agree).count();
    let marked = |mark: char, lines: &[String]| -> String {
        lines.iter().map(|line| format!("  {mark} {line}\n")).collect()
    };
    let mut text = marked(' ', &shown[..before]);
    text += &marked('-', &shown_rest[..shown_rest.len() - after]);
    text += &marked('+', &printed_rest[..printed_rest.len() - after]);
    text += &marked(' ', &shown_rest[shown_rest.len() - after..]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn three_dots_match_lines_and_spaces_are_collapsed() {
        let printed = lines("NAME   MTU\na      1\nb      2\n  c");
        for shown in ["NAME MTU\na 1\nb 2\n  c", "...", "...\nb 2\n...", "NAME  MTU\n...\na 1\nb 2\n  c\n..."]
        {
            assert!(matches(&lines(shown), &printed), "{shown}");
        }
        for shown in ["", "NAME MTU\n...\nb 2", "...\nb 3\n...", "NAME MTU\na 1\nb 2\nc"] {
            assert!(!matches(&lines(shown), &printed), "{shown}");
        }
    }

    #[test]
    fn a_difference_has_removed_and_added_lines() {
        let text = difference(&lines("a\nb\nc"), &lines("a\nx\ny\nc"));
        assert_eq!(text, "    a\n  - b\n  + x\n  + y\n    c\n");
    }
}
