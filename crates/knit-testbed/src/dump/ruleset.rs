//! Normalizes `nft -s list ruleset` into lines with their full path.
//!
//! The order of rules is kept. The order of tables and of set elements is not: it depends on the history. The owner of a table is left
//! out: it is a process, which may end without any change of the table.

use super::Line;

/// One line per rule, property and element: `table inet knit > chain forward > drop`.
pub(super) fn lines(ruleset: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut blocks: Vec<String> = Vec::new();
    let ruleset = without_table_owners(ruleset);
    let mut text = ruleset.lines().map(str::trim).filter(|line| !line.is_empty());
    while let Some(line) = text.next() {
        if let Some(first) = line.strip_prefix("elements = {") {
            let mut all = first.to_owned();
            while !all.contains('}') {
                let Some(more) = text.next() else { break };
                all.push(' ');
                all.push_str(more);
            }
            let mut elements: Vec<_> = all.trim_end_matches('}').split(',').map(str::trim).collect();
            elements.sort_unstable();
            let elements = elements.iter().filter(|element| !element.is_empty());
            lines.extend(elements.map(|element| with_path(&blocks, &format!("element {element}"))));
        } else if line == "}" {
            blocks.pop();
        } else if let Some(block) = line.strip_suffix('{') {
            blocks.push(block.trim().to_owned());
            // An empty table or chain is shown, too.
            lines.push(with_path(&blocks, ""));
        } else {
            lines.push(with_path(&blocks, line));
        }
    }
    lines.sort_by(|a, b| a.subject.cmp(&b.subject));
    lines
}

/// A listing of `nft` without the owners of tables: the flags of tables, and the name of the owner's program.
pub fn without_table_owners(listing: &str) -> String {
    let is_flags = |line: &str| {
        let flags = line.strip_prefix("\tflags ");
        flags.is_some_and(|flags| flags.split(',').all(|flag| matches!(flag, "" | "owner" | "persist")))
    };
    let lines = listing.lines().filter(|line| !is_flags(line));
    lines.map(|line| format!("{}\n", line.split(" # progname ").next().unwrap_or(line))).collect()
}

fn with_path(blocks: &[String], line: &str) -> Line {
    let mut text = blocks.join(" > ");
    if !line.is_empty() {
        text = format!("{text} > {line}");
    }
    Line { subject: blocks.first().cloned().unwrap_or_default(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULESET: &str = "\
table inet knit {
	set pods {
		type ipv4_addr
		elements = { 10.4.0.1, 10.0.0.1,
			     10.2.0.1 }
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr @pods counter drop
		accept
	}
}
table ip a {
}
";

    #[test]
    fn every_line_has_its_full_path() {
        let lines = lines(RULESET);
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "table inet knit",
                "table inet knit > set pods",
                "table inet knit > set pods > type ipv4_addr",
                "table inet knit > set pods > element 10.0.0.1",
                "table inet knit > set pods > element 10.2.0.1",
                "table inet knit > set pods > element 10.4.0.1",
                "table inet knit > chain forward",
                "table inet knit > chain forward > type filter hook forward priority filter; policy accept;",
                "table inet knit > chain forward > ip saddr @pods counter drop",
                "table inet knit > chain forward > accept",
                "table ip a",
            ]
        );
    }

    #[test]
    fn the_owner_of_a_table_is_left_out() {
        let owned = RULESET.replacen("knit {\n", "knit { # progname knit\n\tflags owner\n", 1);
        assert_eq!(without_table_owners(&owned), RULESET);
        assert_eq!(lines(&owned), lines(RULESET));
        let orphan = RULESET.replacen("knit {\n", "knit {\n\tflags \n", 1);
        assert_eq!(without_table_owners(&orphan), RULESET);
        let set = "\t\tflags interval\n";
        assert_eq!(without_table_owners(set), set);
    }

    #[test]
    fn order_of_tables_is_ignored_and_order_of_rules_is_kept() {
        let a = "table ip a {\n}\n";
        let b = "table ip b {\n}\n";
        assert_eq!(lines(&format!("{a}{b}")), lines(&format!("{b}{a}")));
        let chain = |rules: &str| lines(&format!("table ip a {{\n chain c {{\n{rules}\n }}\n}}\n"));
        assert_ne!(chain("accept\ndrop"), chain("drop\naccept"));
    }

    #[test]
    fn empty_rule_set_has_no_lines() {
        assert!(lines("").is_empty());
    }
}
