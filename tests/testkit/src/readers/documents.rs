//! The command lines that README, book and examples ask a reader to type, for tests that parse them.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// Where such pages are, from the root of the workspace.
const FOLDERS: [&str; 2] = ["book/src", "examples"];

#[derive(Clone, Debug)]
pub struct CommandLine {
    pub page: String,
    pub words: Vec<String>,
}

impl CommandLine {
    /// The value of a flag: what comes behind it, or behind its `=`.
    pub fn value(&self, flag: &str) -> Option<&str> {
        let own = self.words.iter().take_while(|word| *word != "--");
        let mut rest = own.skip_while(|word| *word != flag);
        rest.nth(1).map(String::as_str)
    }

    pub fn behind_dashes(&self) -> &[String] {
        let place = self.words.iter().position(|word| word == "--");
        place.map_or(&[], |place| &self.words[place + 1..])
    }
}

/// All commands in blocks that are marked `sh`, and all within a line of text that run something of this
/// repository: `cargo run ...`.
///
/// # Panics
/// If a page cannot be read.
pub fn command_lines() -> Vec<CommandLine> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)).into();
    for folder in FOLDERS {
        find_pages(&root.join(folder), &mut pages);
    }
    pages.sort();
    let mut found = Vec::new();
    for path in pages {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let name = path.strip_prefix(&root).unwrap_or(&path);
        for line in lines_of(&text) {
            let page = name.display().to_string();
            found.extend(commands_of(&line).map(|words| CommandLine { page: page.clone(), words }));
        }
    }
    found
}

/// Asks `parse` whether it understands each command line of `cargo run` that starts a program of this
/// workspace, with the program's name first.
///
/// # Panics
/// If it does not, or if no page has any.
pub fn assert_understood<T, E: Display>(program: &str, parse: impl Fn(&[String]) -> Result<T, E>) {
    let lines = command_lines();
    let starts = |line: &&CommandLine| {
        line.words.starts_with(&["cargo".to_owned(), "run".to_owned()])
            && line.value("--bin").or(line.value("-p")) == Some(program)
    };
    let mut count = 0;
    for line in lines.iter().filter(starts) {
        let words = [&[program.to_owned()], line.behind_dashes()].concat();
        if let Err(wrong) = parse(&words) {
            panic!("{}: {}: {wrong}", line.page, line.words.join(" "));
        }
        count += 1;
    }
    assert!(count > 0, "no page starts {program}");
}

fn find_pages(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            find_pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The lines of blocks in `sh`, each joined with its continuations; and the spans of code that
/// start with `cargo run`.
fn lines_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block = None;
    let mut begun = String::new();
    for line in text.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(language), None) => block = Some(language),
            (Some(_), Some(_)) => block = None,
            (None, Some("sh")) => match line.strip_suffix('\\') {
                Some(start) => begun.push_str(start),
                None => found.push(std::mem::take(&mut begun) + line),
            },
            (None, Some(_)) => {}
            (None, None) => {
                let spans = line.split('`').skip(1).step_by(2);
                let runs = spans.filter(|span| span.starts_with("cargo run "));
                found.extend(runs.map(str::to_owned));
            }
        }
    }
    found
}

/// The commands of a line, without comments, variables and what the shell does itself.
fn commands_of(line: &str) -> impl Iterator<Item = Vec<String>> {
    let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
    let words: Vec<&str> = words.collect();
    let commands: Vec<Vec<String>> = words
        .split(|word| matches!(*word, "&" | "&&" | "|" | ";" | ">" | ">>"))
        .map(|words| {
            let is_variable = |word: &&&str| {
                word.split_once('=').is_some_and(|(name, _)| {
                    name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
                })
            };
            let words = words.iter().skip_while(is_variable);
            words.map(|word| word.trim_matches('\'').to_owned()).collect()
        })
        .filter(|words: &Vec<String>| words.first().is_some_and(|word| word != "export"))
        .collect();
    commands.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_spans_give_commands_without_comments_and_variables() {
        let text = "\
Text with `cargo run -p a -- --nproc 2` and `cargo test`.
```sh
export A=1
A=1 b --c \\
    d &          # a comment
e '--f'
```
```text
g
```
";
        let found: Vec<String> = lines_of(text)
            .iter()
            .flat_map(|line| commands_of(line))
            .map(|words| words.join(" "))
            .collect();
        assert_eq!(found, ["cargo run -p a -- --nproc 2", "b --c d", "e --f"]);
    }

    #[test]
    fn the_pages_are_found() {
        let lines = command_lines();
        let has = |page: &str| lines.iter().any(|line| line.page == page);
        assert!(has("README.md") && has("book/src/launching.md") && has("examples/gpt/README.md"));
    }
}
