//! Pages of the documentation with commands: a block of YAML with a file name in its first line is a file, a block `console` is
//! commands (`$ ...`) with their output. `...` at the start of a line marks omitted text.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a command that only reads is repeated until its output is as expected.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Commands that can be repeated.
const READS: [&str; 4] = [" get ", " exec ", " describe ", " explain "];

/// A command with its expected output.
#[derive(Debug)]
pub struct Step {
    pub command: String,
    pub output: Vec<String>,
}

/// The blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    let rest = page.split(start.as_str()).skip(1);
    rest.map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// Writes the files of a page into a directory.
pub fn write_files(page: &str, folder: &Path) {
    for block in blocks(page, "yaml") {
        let name = block.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a file has a name");
        std::fs::write(folder.join(name), block).unwrap();
    }
}

/// The commands of a page.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in blocks(page, "console").into_iter().flat_map(str::lines) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), output: Vec::new() }),
            (None, Some(step)) => step.output.push(line.to_owned()),
            (None, None) => panic!("output without a command: {line}"),
        }
    }
    steps
}

/// Pod addresses of the page, each with the one of this cluster.
#[derive(Debug, Default)]
pub struct Addresses(BTreeMap<String, String>);

/// Runs the steps of a page in a directory.
pub fn run(steps: &[Step], folder: &Path, path: &str) {
    let mut addresses = Addresses::default();
    for step in steps {
        let end = Instant::now() + TIMEOUT;
        let repeats = READS.iter().any(|read| step.command.contains(read));
        loop {
            let output = execute(&addresses.in_command(&step.command), folder, path);
            let compared = addresses.compare(&step.output, &output);
            let Err(difference) = compared else { break };
            assert!(repeats && Instant::now() < end, "$ {}\n{difference}\noutput:\n{output}", step.command);
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

fn execute(command: &str, folder: &Path, path: &str) -> String {
    let command = format!("{command} 2>&1");
    let output = Command::new("sh").args(["-c", &command]).current_dir(folder).env("PATH", path).output();
    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
}

impl Addresses {
    /// A command of the page with the addresses of this cluster.
    pub fn in_command(&self, command: &str) -> String {
        let words = command.split(' ').map(|word| {
            let known = self.0.iter().filter(|(page, _)| contains_address(word, page));
            known.fold(word.to_owned(), |word, (page, real)| word.replace(page.as_str(), real))
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// Compares an output line by line; keeps the addresses that it shows if it is as expected.
    pub fn compare(&mut self, expected: &[String], output: &str) -> Result<(), String> {
        let output: Vec<&str> = output.lines().collect();
        let mut known = self.0.clone();
        if !matches(expected, &output, &mut known) {
            return Err(format!("expected:\n{}", expected.join("\n")));
        }
        self.0 = known;
        Ok(())
    }
}

/// Whether a word has this address, not only one that begins with it.
fn contains_address(word: &str, address: &str) -> bool {
    word.split(|letter: char| !letter.is_ascii_digit() && letter != '.').any(|part| part == address)
}

/// Whether the lines are as expected, where `...` is any number of lines.
fn matches(expected: &[String], output: &[&str], known: &mut BTreeMap<String, String>) -> bool {
    let Some((first, rest)) = expected.split_first() else { return output.is_empty() };
    if first == "..." {
        let tries = (0..=output.len()).map(|skipped| &output[skipped..]);
        for tail in tries {
            let mut attempt = known.clone();
            if matches(rest, tail, &mut attempt) {
                *known = attempt;
                return true;
            }
        }
        return false;
    }
    let Some((line, others)) = output.split_first() else { return false };
    is_line(first, line, known) && matches(rest, others, known)
}

fn is_line(expected: &str, line: &str, known: &mut BTreeMap<String, String>) -> bool {
    if let Some(end) = expected.strip_prefix("...") {
        return line.ends_with(end);
    }
    let (expected, line): (Vec<_>, Vec<_>) =
        (expected.split_whitespace().collect(), line.split_whitespace().collect());
    expected.len() == line.len() && expected.iter().zip(&line).all(|(a, b)| is_word(a, b, known))
}

/// Whether a word is as expected. Durations are not compared. Each pod address of the page corresponds to one of this cluster.
fn is_word(expected: &str, word: &str, known: &mut BTreeMap<String, String>) -> bool {
    if let (Some(page), Some(real)) = (address(expected), address(word)) {
        if expected.replace(page, "") != word.replace(real, "") && !is_socket(expected, word) {
            return false;
        }
        let is_new = !known.values().any(|known| known == real);
        return match known.get(page) {
            Some(before) => before == real,
            None => is_new && known.insert(page.to_owned(), real.to_owned()).is_none(),
        };
    }
    expected == word || is_duration(expected) && is_duration(word)
}

/// The pod address in a word.
fn address(word: &str) -> Option<&str> {
    let parts = word.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    parts.into_iter().find(|part| part.parse::<std::net::Ipv4Addr>().is_ok())
}

/// Whether both are an address with any port.
fn is_socket(expected: &str, word: &str) -> bool {
    [expected, word].iter().all(|word| word.parse::<std::net::SocketAddrV4>().is_ok())
}

/// An age (`3m5s`), a time of ping (`time=0.120`, `1001ms`, `0.07/0.09/0.12/0.02`) or of curl (`5001`), a TTL.
fn is_duration(word: &str) -> bool {
    let number = word.strip_prefix("time=").or_else(|| word.strip_prefix("ttl=")).unwrap_or(word);
    let starts = number.starts_with(|letter: char| letter.is_ascii_digit());
    let is_unit = |letter: char| letter.is_ascii_digit() || "./smhd".contains(letter);
    // `1/1` and `100%` are compared.
    starts && number.chars().all(is_unit) && number.len() > 1 && number != "1/1"
}
