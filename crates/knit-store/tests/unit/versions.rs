//! State of an older format is migrated, of a newer one rejected. The files are hand-written.

use std::fs;

use knit_store::{EntryKind, Error, Format, Journal, Options, Seq};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Format 2 renames `value` to `amount` and adds `of`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Amount {
    amount: u32,
    of: String,
}

const OPTIONS: Options = Options { format: Format { version: 2, migrate }, retained_segments: 4 };

fn migrate(from: u32, kind: EntryKind, value: Value) -> Result<Value, String> {
    let amount = |value: &Value| json!({"amount": value, "of": "apples"});
    match (from, kind, &value) {
        (1, EntryKind::Record, Value::Object(record)) => Ok(amount(&record["value"])),
        (1, EntryKind::Snapshot, Value::Array(values)) => Ok(values.iter().map(amount).collect()),
        _ => Err(format!("format {from} does not have {value}")),
    }
}

const OLD_JOURNAL: &str = r#"0 c50d623d {"knit":"journal","format":1,"first":3,"after":2}
3 4cb9516c {"value":3}
4 a4a0430c {"value":4}
"#;

const OLD_SNAPSHOT: &str = r#"0 0560ec4b {"knit":"snapshot","format":1,"seq":2}
2 4f035a72 [1,2]
"#;

fn apples(amount: u32) -> Amount {
    Amount { amount, of: "apples".to_owned() }
}

#[test]
fn an_older_format_is_migrated() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("journal"), OLD_JOURNAL).unwrap();
    fs::write(dir.path().join("snapshot"), OLD_SNAPSHOT).unwrap();
    for extra in [vec![], vec![(Seq(5), Amount { amount: 5, of: "pears".to_owned() })]] {
        let opened = Journal::<Amount, Vec<Amount>>::open(dir.path(), OPTIONS).unwrap();
        assert_eq!(opened.findings, []);
        assert_eq!(opened.snapshot, Some((Seq(2), vec![apples(1), apples(2)])));
        let old = vec![(Seq(3), apples(3)), (Seq(4), apples(4))];
        assert_eq!(opened.records, [old, extra.clone()].concat());
        if extra.is_empty() {
            opened.journal.append(&Amount { amount: 5, of: "pears".to_owned() }).unwrap();
        } else {
            let history: Vec<_> =
                opened.journal.history(Seq(4)).unwrap().map(|record| record.unwrap().0.0).collect();
            assert_eq!(history, [4, 5]);
        }
    }
    let journal = fs::read_to_string(dir.path().join("journal")).unwrap();
    assert!(journal.contains(r#""format":2,"first":5,"after":4"#), "{journal}");
    assert!(!journal.contains("value"), "two formats in one file: {journal}");
}

#[test]
fn a_newer_format_is_rejected_without_changes() {
    let journal =
        ("journal", "0 73f7029c {\"knit\":\"journal\",\"format\":3,\"first\":1,\"after\":0}\n7 half");
    let snapshot = ("snapshot", "0 00b487c8 {\"knit\":\"snapshot\",\"format\":3,\"seq\":2}\n");
    let unfinished = ("snapshot.new", snapshot.1);
    let older = ("journal.1", journal.1);
    for (name, text) in [journal, snapshot, unfinished, older] {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("journal"), OLD_JOURNAL).unwrap();
        fs::write(dir.path().join("snapshot"), OLD_SNAPSHOT).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
        let error = Journal::<Amount, Vec<Amount>>::open(dir.path(), OPTIONS).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "the state in {} was written by a newer Knit (format 3, supported: 2)",
                dir.path().display()
            )
        );
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), text);
    }
}

#[test]
fn an_undecodable_record_is_rejected_and_kept() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("journal"), OLD_JOURNAL).unwrap();
    fs::write(dir.path().join("snapshot"), OLD_SNAPSHOT).unwrap();
    let options = Options { format: Format::initial(), retained_segments: 4 };
    let error = Journal::<Amount, Vec<u32>>::open(dir.path(), options).unwrap_err();
    assert!(matches!(error, Error::Undecodable { seq: 3, format: 1, .. }), "{error}");
    assert_eq!(fs::read_to_string(dir.path().join("journal")).unwrap(), OLD_JOURNAL);
}
