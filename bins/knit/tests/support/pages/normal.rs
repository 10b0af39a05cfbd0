//! Normalizes output that differs from run to run.
//!
//! | printed | written |
//! |---|---|
//! | the pid of the page's first, second, ... sandbox, also at the end of a name | 1001, 1002, ... |
//! | a hardware address that no YAML of the page states | `xx:xx:xx:xx:xx:xx` |
//! | a link-local address | `fe80::x` |
//! | a time | `2026-01-01T00:00:00Z` |
//! | the index of a link's other end, `@if7` | `@if2` |
//! | the namespace of a link's other end, `link-netns NAME` | `link-netnsid 0` |
//! | how long all of `ping` took | nothing |
//! | a mark, `knit-1b690c687a` | `knit-0123456789` |

/// The normalized pid of the first sandbox of a page.
const FIRST_PID: usize = 1001;
const MAC: &str = "xx:xx:xx:xx:xx:xx";
const MARK: &str = "knit-0123456789";
const TIME: &str = "2026-01-01T00:00:00Z";

/// Normalizes the output of one page, and tracks the pids of its sandboxes.
pub struct Normaliser {
    pids: Vec<String>,
    stated: String,
}

impl Normaliser {
    /// Values in the files of the page are not normalized.
    pub fn new<'a>(files: impl Iterator<Item = &'a str>) -> Self {
        Self { pids: Vec::new(), stated: files.collect::<Vec<_>>().join("\n").to_lowercase() }
    }

    /// The pids of the holders of sandboxes.
    pub fn holders(&self) -> impl Iterator<Item = i32> {
        self.pids.iter().filter_map(|pid| pid.parse().ok())
    }

    /// The normalized lines.
    pub fn lines(&mut self, printed: &str) -> Vec<String> {
        for line in printed.lines() {
            if let Some((_, rest)) = line.split_once(" created (pid ") {
                self.pids.push(rest.trim_end_matches(')').to_owned());
            }
        }
        let printed = printed.lines().filter(|line| *line != NETNS_RACE);
        printed.map(|line| self.line(line)).collect()
    }

    fn line(&self, line: &str) -> String {
        let mut line = line.trim_end().to_owned();
        if let Some((result, _)) = line.split_once("% packet loss, time ") {
            line = format!("{result}% packet loss");
        }
        for (index, pid) in self.pids.iter().enumerate() {
            line = replace_pid(&line, pid, &(FIRST_PID + index).to_string());
        }
        let mut words: Vec<String> =
            line.split_inclusive([' ', '"', '/', ',']).map(|word| self.word(word)).collect();
        if let Some(at) = words.iter().position(|word| word.starts_with("link-netns")) {
            words.truncate(at);
            words.push("link-netnsid 0".to_owned());
        }
        words.concat()
    }

    /// Normalizes a word and its trailing punctuation.
    fn word(&self, word: &str) -> String {
        let end = word.len() - word.trim_end_matches([' ', '"', '/', ',']).len();
        let (body, end) = word.split_at(word.len() - end);
        let body = if is_mac(body) && !self.stated.contains(body) {
            MAC.to_owned()
        } else if body.starts_with("fe80::") {
            "fe80::x".to_owned()
        } else if is_mark(body) {
            MARK.to_owned()
        } else if is_time(body) {
            TIME.to_owned()
        } else if let Some((name, index)) = body.split_once("@if") {
            let rest = index.trim_start_matches(|letter: char| letter.is_ascii_digit());
            format!("{name}@if2{rest}")
        } else {
            body.to_owned()
        };
        body + end
    }
}

/// `ip -d link` prints this when another test creates or deletes a named namespace while it looks the names up.
const NETNS_RACE: &str = "Error: Peer netns reference is invalid.";

/// Replaces a pid that is a word or the end of a name such as `pc0<pid>`, and keeps the width of columns.
fn replace_pid(line: &str, pid: &str, by: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(pid) {
        let (before, after) = (&rest[..at], &rest[at + pid.len()..]);
        text += before;
        // A derived name may contain the digits of a pid before other digits or letters.
        let whole = !after.starts_with(|letter: char| letter.is_ascii_alphanumeric());
        let number = |letter: char| letter == '.' || letter == ':';
        // A name may have one digit before the pid; addresses and other numbers have more.
        let mut letters = before.chars().rev();
        let begins = match letters.next() {
            Some(letter) if letter.is_ascii_digit() => letters.next().is_some_and(char::is_alphabetic),
            Some(letter) => !number(letter),
            None => true,
        };
        if whole && begins {
            text += by;
            if after.starts_with("  ") {
                text += &" ".repeat(pid.len().saturating_sub(by.len()));
            }
        } else {
            text += pid;
        }
        rest = after;
    }
    text + rest
}

fn is_mac(word: &str) -> bool {
    let pair = |pair: &str| pair.len() == 2 && pair.chars().all(|digit| digit.is_ascii_hexdigit());
    let known = ["00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"];
    word.split(':').count() == 6 && word.split(':').all(pair) && !known.contains(&word)
}

fn is_mark(word: &str) -> bool {
    let id = word.strip_prefix("knit-").unwrap_or_default();
    id.len() == 10 && id.chars().all(|digit| digit.is_ascii_hexdigit())
}

fn is_time(word: &str) -> bool {
    word.len() == TIME.len()
        && word
            .chars()
            .zip(TIME.chars())
            .all(|(one, other)| if other.is_ascii_digit() { one.is_ascii_digit() } else { one == other })
}

#[test]
fn varying_values_are_normalized() {
    let mut normaliser = Normaliser::new(["mac: 02:00:00:00:00:07"].into_iter());
    let printed = "\
sandbox/a created (pid 204)
sandbox/b created (pid 23456)
hpc0204@if12  UP  96:fa:1f:94:96:07
net23456      UP  02:00:00:00:00:07 fe80::94fa:1fff:fe94:9607/64
link/ether 96:fa:1f:94:96:07 brd ff:ff:ff:ff:ff:ff link-netns knit-test-host
altname knit-1b690c687a
{podVethName:pc123456 podIPAddr:10.0.204.2/24 at:1204 peerVethName:knit204fbb4d64}
1 packets transmitted, 1 received, 0% packet loss, time 1ms
  lastTransitionTime: \"2026-11-15T04:12:10Z\"";
    let expected = "\
sandbox/a created (pid 1001)
sandbox/b created (pid 1002)
hpc01001@if2  UP  xx:xx:xx:xx:xx:xx
net1002       UP  02:00:00:00:00:07 fe80::x/64
link/ether xx:xx:xx:xx:xx:xx brd ff:ff:ff:ff:ff:ff link-netnsid 0
altname knit-0123456789
{podVethName:pc11002 podIPAddr:10.0.204.2/24 at:1204 peerVethName:knit204fbb4d64}
1 packets transmitted, 1 received, 0% packet loss
  lastTransitionTime: \"2026-01-01T00:00:00Z\"";
    assert_eq!(normaliser.lines(printed).join("\n"), expected);
    assert_eq!(normaliser.holders().collect::<Vec<_>>(), [204, 23456]);
}
