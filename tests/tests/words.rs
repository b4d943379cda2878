//! Words that a reader of PyTorch, NCCL and Burn would have to translate stay out of comments, errors and logs.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What is not said, and what is said instead.
const DENIED: &[(&str, &str)] = &[
    ("whoever", "the caller, the rank that"),
    ("so many", "a number, N"),
    ("told", "reported, notified"),
    ("dealt", "assigned, distributed"),
    ("hears of", "is notified of"),
    ("That there", "an error, a state"),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// The comment of a line, and what is between quotation marks in it.
fn prose(line: &str) -> String {
    let (code, comment) = line.split_once("//").unwrap_or((line, ""));
    let quoted: Vec<&str> = code.split('"').skip(1).step_by(2).collect();
    format!("{} {comment}", quoted.join(" "))
}

fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[test]
fn comments_errors_and_logs_use_the_words_of_the_field() {
    let root = fs::canonicalize(ROOT).expect("the repository is there");
    let mut paths = Vec::new();
    for folder in ["crates", "kernels/src", "examples", "benches/src"] {
        sources(&root.join(folder), &mut paths);
    }
    paths.retain(|path| {
        let below = path.strip_prefix(&root).unwrap_or(path);
        !below.components().any(|part| part.as_os_str() == "tests") && !path.ends_with("tests.rs")
    });
    assert!(paths.len() > 500, "{} sources", paths.len());
    let mut found = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).expect("a source is text");
        // Tests at the end of a file have words of their own.
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let prose = prose(line);
            for (word, instead) in DENIED {
                if has_word(&prose, word) {
                    found.push(format!(
                        "{}:{}: `{word}` (say: {instead})",
                        path.display(),
                        number + 1
                    ));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_word_is_found_in_comments_and_messages_and_not_in_names() {
    assert!(has_word(&prose("x(); // the rank is told"), "told"));
    assert!(has_word(&prose("error(\"nobody told it\")"), "told"));
    assert!(!has_word(&prose("let told = retold(); // toldest"), "told"));
}
