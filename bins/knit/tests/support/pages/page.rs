//! Parses and renders a page: text, files and commands.

/// A page.
pub struct Page {
    /// The parts in order.
    pub blocks: Vec<Block>,
}

/// A part of a page.
pub enum Block {
    /// Text that is not run.
    Text(Vec<String>),
    /// A YAML block.
    File(File),
    /// A console block.
    Console(Vec<Step>),
}

/// A file in a page.
pub struct File {
    /// The name, from the first line.
    pub name: String,
    /// The contents with the first line.
    pub text: String,
}

/// A command and its output.
pub struct Step {
    /// The line number in the page.
    pub line: usize,
    /// The command, with its line breaks.
    pub command: String,
    /// The expected output.
    pub output: Vec<String>,
}

impl Page {
    /// Parses a page.
    pub fn parse(text: &str) -> Self {
        let mut blocks = Vec::new();
        let mut lines = text.lines().enumerate();
        let mut plain: Vec<String> = Vec::new();
        while let Some((number, line)) = lines.next() {
            if line != "```yaml" && line != "```console" {
                plain.push(line.to_owned());
                continue;
            }
            blocks.push(Block::Text(std::mem::take(&mut plain)));
            let body: Vec<&str> =
                lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            blocks.push(match line {
                "```yaml" => Block::File(file(&body)),
                _ => Block::Console(steps(&body, number + 2)),
            });
        }
        blocks.push(Block::Text(plain));
        Self { blocks }
    }

    /// Renders the page.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for block in &self.blocks {
            match block {
                Block::Text(lines) => text.extend(lines.iter().map(|line| format!("{line}\n"))),
                Block::File(file) => text += &format!("```yaml\n{}```\n", file.text),
                Block::Console(steps) => {
                    text += "```console\n";
                    for step in steps {
                        text += &format!("$ {}\n", step.command);
                        text.extend(step.output.iter().map(|line| format!("{line}\n")));
                    }
                    text += "```\n";
                }
            }
        }
        text
    }

    /// The files of the page.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.blocks.iter().filter_map(|block| match block {
            Block::File(file) => Some(file),
            _ => None,
        })
    }

    /// Blocks that would not be run.
    pub fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let mut open = false;
        for line in self.blocks.iter().flat_map(|block| match block {
            Block::Text(lines) => lines.as_slice(),
            _ => &[],
        }) {
            if line.starts_with("```") && !open && line != "```text" {
                errors.push(format!("a block `{line}` is never run: use yaml, console or text"));
            }
            open ^= line.starts_with("```");
        }
        let commands: Vec<&str> = self
            .blocks
            .iter()
            .flat_map(|block| match block {
                Block::Console(steps) => steps.as_slice(),
                _ => &[],
            })
            .map(|step| step.command.as_str())
            .collect();
        for file in self.files() {
            if file.name.is_empty() {
                errors.push(format!("a YAML block does not begin with `# NAME.yaml`:\n{}", file.text));
            } else if !commands.iter().any(|command| command.contains(&file.name)) {
                errors.push(format!("no command uses {}", file.name));
            }
        }
        errors
    }
}

fn file(body: &[&str]) -> File {
    let name = body.first().and_then(|line| line.strip_prefix("# ")).filter(|name| name.ends_with(".yaml"));
    let text = body.iter().map(|line| format!("{line}\n")).collect();
    File { name: name.unwrap_or_default().to_owned(), text }
}

fn steps(body: &[&str], first_line: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut goes_on = false;
    for (number, line) in body.iter().enumerate() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (_, Some(step)) if goes_on => step.command += &format!("\n{line}"),
            (Some(command), _) => {
                let line = first_line + number;
                steps.push(Step { line, command: command.to_owned(), output: Vec::new() });
            }
            (None, Some(step)) => {
                step.output.push((*line).to_owned());
                continue;
            }
            (None, None) => panic!("line {}: output before the first command: {line}", first_line + number),
        }
        goes_on = line.ends_with('\\');
    }
    steps
}

#[test]
fn parsing_and_rendering_a_page_is_lossless() {
    let text = "# A\n\n```yaml\n# a.yaml\nkind: X\n```\ntext\n```console\n$ knit \\\n    get\n...\nX\n$ true\n```\nend\n";
    let page = Page::parse(text);
    assert_eq!(page.render(), text);
    let Block::Console(steps) = &page.blocks[3] else { panic!("no console") };
    assert_eq!((steps[0].line, steps[0].command.as_str()), (9, "knit \\\n    get"));
    assert_eq!((steps[1].line, steps[1].command.as_str()), (13, "true"));
    assert_eq!(page.errors(), ["no command uses a.yaml"]);
}

#[test]
fn blocks_that_would_not_be_run_are_rejected() {
    let page = Page::parse("```sh\nknit get\n```\n```text\nfine\n```\n```yaml\nkind: X\n```\n");
    let errors = page.errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("```sh"));
    assert!(errors[1].contains("kind: X"));
}
