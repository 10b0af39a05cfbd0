//! `docs/link-kinds.md`: what tests really did to links of each kind, on this machine's kernel and on the guest's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};

use knit_dev::places;
use serde::{Deserialize, Serialize};

/// The environment variable that tells tests where to note what they did.
pub const NOTE: &str = "KNIT_KINDS_SEEN";

/// Has the table written anew instead of compared.
pub const WRITE: &str = "KNIT_DOCS_WRITE";

const PAGE: &str = "docs/link-kinds.md";

const HEAD: &str = "\
# Link kinds

Generated from the tests: each field in this table was changed on a link of that kind, and the kernel was observed
afterwards. `KNIT_DOCS_WRITE=1 cargo xtask test netns vm` writes this page.

- Changed in place: the link stays, with everything on it. Recreated: the kernel cannot make this change, so one plan
  deletes and recreates the link, and notes the reason.
- Tested on: `host`, the kernel of the machine that runs the tests (the kinds that it has); `guest`, Debian's kernel in
  QEMU.

Field names are those of plans. Each page has the names in the object, and a YAML example that is run by a test.
";

/// What was done to links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    kinds: BTreeMap<String, Kind>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Kind {
    places: BTreeSet<String>,
    live: BTreeSet<String>,
    again: BTreeSet<String>,
}

impl Seen {
    /// Takes in the notes among these lines.
    pub fn read(&mut self, lines: &str, place: &'static str) {
        for line in lines.lines() {
            let Some(rest) = line.trim_end().strip_prefix("seen ") else { continue };
            let words: Vec<&str> = rest.split(' ').collect();
            let (kind, field) = match *words.as_slice() {
                [kind, "made"] => (self.kinds.entry(kind.to_owned()).or_default(), None),
                [kind, "live", field] => {
                    let kind = self.kinds.entry(kind.to_owned()).or_default();
                    (kind, Some((false, field)))
                }
                [kind, "again", field] => {
                    let kind = self.kinds.entry(kind.to_owned()).or_default();
                    (kind, Some((true, field)))
                }
                _ => continue,
            };
            kind.places.insert(place.to_owned());
            if let Some((again, field)) = field {
                let fields = if again { &mut kind.again } else { &mut kind.live };
                fields.insert(field.to_owned());
            }
        }
    }

    /// Adds what others saw.
    pub fn add(&mut self, other: Self) {
        for (name, kind) in other.kinds {
            let mine = self.kinds.entry(name).or_default();
            mine.places.extend(kind.places);
            mine.live.extend(kind.live);
            mine.again.extend(kind.again);
        }
    }

    /// Compares the page with what was seen, or writes it.
    pub fn check_page(&self) -> Result<()> {
        let text = self.page()?;
        let path = places::workspace().join(PAGE);
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        if page == text {
            return Ok(());
        }
        if std::env::var_os(WRITE).is_none() {
            let missing: Vec<&str> =
                text.lines().filter(|line| !page.lines().any(|has| has == *line)).collect();
            let missing = missing.join("\n");
            bail!(
                "{PAGE} is not what the tests did: `{WRITE}=1 cargo xtask test netns vm` writes it.\n{missing}"
            );
        }
        std::fs::write(&path, text).with_context(|| format!("cannot write {PAGE}"))?;
        println!("wrote {PAGE}");
        Ok(())
    }

    fn page(&self) -> Result<String> {
        let mut page = format!(
            "{HEAD}\n| kind | changed in place | recreated | tested on | page | example |\n|---|---|---|---|---|---|\n"
        );
        for (name, kind) in &self.kinds {
            let word = object_of(name);
            let example = format!("examples/standalone/{word}.yaml");
            for file in [&format!("docs/kinds/{word}.md"), &example] {
                if !places::workspace().join(Path::new(file)).exists() {
                    bail!("{PAGE}: kind {name} has no {file}");
                }
            }
            let places: Vec<&str> = kind.places.iter().map(String::as_str).collect();
            page += &format!(
                "| {name} | {} | {} | {} | [{word}](kinds/{word}.md) | [{word}.yaml](../{example}) |\n",
                list(&kind.live),
                list(&kind.again),
                places.join(", ")
            );
        }
        Ok(page)
    }
}

fn list(fields: &BTreeSet<String>) -> String {
    fields.iter().map(|field| format!("`{field}`")).collect::<Vec<_>>().join(", ")
}

/// The object for a link that the kernel calls so.
fn object_of(kind: &str) -> &str {
    match kind {
        "tun" => "tap",
        "host-device" => "hostdevice",
        "gretap" | "ip6gre" | "ip6gretap" => "gre",
        "ipip" | "sit" | "ip6tnl" => "iptunnel",
        kind => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_both_kernels_become_rows() {
        let mut seen = Seen::default();
        seen.read("noise\nseen veth made\nseen veth live mtu\nseen veth live\n", "host");
        let mut guest = Seen::default();
        guest.read("seen vxlan again vni\r\nseen veth live alias\nseen veth made\n", "guest");
        seen.add(guest);
        let page = seen.page().unwrap();
        let rows: Vec<&str> = page.lines().rev().take(2).collect();
        assert_eq!(
            rows,
            [
                "| vxlan |  | `vni` | guest | [vxlan](kinds/vxlan.md) | [vxlan.yaml](../examples/standalone/vxlan.yaml) |",
                "| veth | `alias`, `mtu` |  | guest, host | [veth](kinds/veth.md) | [veth.yaml](../examples/standalone/veth.yaml) |",
            ]
        );
    }

    #[test]
    fn a_kind_without_a_page_is_refused() {
        let mut seen = Seen::default();
        seen.read("seen nosuch made", "host");
        let error = seen.page().unwrap_err().to_string();
        assert!(error.contains("kind nosuch has no docs/kinds/nosuch.md"), "{error}");
    }
}
