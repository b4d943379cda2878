//! Words that a reader of PyTorch, NCCL and Burn would have to translate stay out of comments, errors, logs and the
//! book, whose pages and sentences have a limit.

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

/// Phrases of the book's prose, and how often at most: about a tenth of the times that a review found them.
const SELDOM: &[(usize, &[&str])] = &[
    (16, &["say", "says", "said"]),
    (8, &["is no", "are no", "has no", "have no", "needs no", "need no"]),
    (7, &["bit for bit", "the bits", "same bits"]),
    (5, &["of one's own", "of its own", "of their own"]),
    (5, &["that names", "which names", "names the", "names it"]),
    (5, &["beside", "besides"]),
    (0, &["nobody", "somebody", "everybody", "whoever"]),
    (0, &["travel", "travels", "trainings", "anew", ", too"]),
    (0, &["deal", "deals", "dealt", "go on", "goes on"]),
    (0, &["is to", "are to", "but for", "as ever"]),
    (0, &["the latter", "the former", "equally many"]),
    (4, &["tell", "tells", "told"]),
    (3, &["a test", "test holds", "tests hold"]),
    (3, &["words"]),
    (2, &["cut", "cuts"]),
    (2, &["so many", "as many"]),
    (2, &["so is", "so are", "so do", "so does", "nor do", "nor does"]),
    (5, &["folder", "folders", "picture", "pictures"]),
    (3, &["2026"]),
];

/// Words at the start of sentences that hide the subject, and how often at most.
const OPENINGS: &[(usize, &str)] = &[(5, "What"), (5, "Where"), (5, "Of")];

/// Pages about what these phrases are needed for.
const EXEMPT: &[(&str, &str)] =
    &[("determinism.md", "same bits"), ("benchmarking.md", "2026"), ("status.md", "2026")];

const BOOK_WORDS_MAX: usize = 50_000;
const GUIDES_WORDS_MAX: usize = 25_000;
/// Of nine in ten sentences of a page.
const SENTENCE_WORDS_MAX: usize = 25;

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
    count_word(text, word) > 0
}

fn count_word(text: &str, word: &str) -> usize {
    let is_whole = |start: usize| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    };
    let places = text.match_indices(word);
    places.filter(|(start, _)| is_whole(*start)).count()
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

/// A paragraph without its code and without the targets of its links.
fn plain(paragraph: &str) -> String {
    let spans = paragraph.split('`').enumerate();
    let spans = spans.map(|(place, span)| if place % 2 == 0 { span } else { "X" });
    let text: String = spans.collect();
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push(']');
        plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain
}

/// The paragraphs and list items of a page, without code, tables, headings and images.
fn paragraphs(page: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut in_code = false;
    for line in page.lines() {
        let line = line.trim().trim_start_matches('>').trim();
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        let is_prose =
            !in_code && !is_fence && !line.is_empty() && !line.starts_with(['|', '#', '<', '!']);
        let numbered =
            line.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if !is_prose || numbered || line.starts_with("- ") {
            found.push(String::new());
        }
        if is_prose {
            let last = found.last_mut().expect("there is one from the start");
            last.push_str(line.trim_start_matches("- "));
            last.push(' ');
        }
    }
    found.retain(|paragraph| !paragraph.is_empty());
    found.iter().map(|paragraph| plain(paragraph)).collect()
}

/// Each sentence as its words.
fn sentences(page: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for paragraph in paragraphs(page) {
        let mut sentence = Vec::new();
        for word in paragraph.split_whitespace() {
            sentence.push(word.to_owned());
            if word.trim_end_matches(['*', ')', ']', '"']).ends_with(['.', '!', '?', ':']) {
                found.push(std::mem::take(&mut sentence));
            }
        }
        if !sentence.is_empty() {
            found.push(sentence);
        }
    }
    found
}

/// The words of the sentence than which one in ten is longer.
fn long_sentence(page: &str) -> usize {
    let mut lengths: Vec<usize> = sentences(page).iter().map(Vec::len).collect();
    lengths.sort_unstable();
    lengths.get((lengths.len() * 9).div_ceil(10).saturating_sub(1)).copied().unwrap_or(0)
}

/// Name and text of README, SECURITY and the book's pages, but for the generated one.
fn pages() -> Vec<(String, String)> {
    let root = fs::canonicalize(ROOT).expect("the repository is there");
    let entries = fs::read_dir(root.join("book/src")).expect("the book is there");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a folder can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
    paths.extend([root.join("README.md"), root.join("SECURITY.md")]);
    let name = |path: &Path| path.file_name().expect("a file").to_string_lossy().into_owned();
    paths
        .iter()
        .map(|path| (name(path), fs::read_to_string(path).expect("a page is text")))
        .collect()
}

/// The pages of some parts of the book, by their titles.
fn pages_of(parts: &[&str]) -> Vec<(String, String)> {
    let pages = pages();
    let (_, summary) = pages.iter().find(|(name, _)| name == "SUMMARY.md").expect("a summary");
    let mut names = Vec::new();
    for part in summary
        .split("\n# ")
        .filter(|part| parts.contains(&part.lines().next().unwrap_or_default()))
    {
        names.extend(
            part.split("](")
                .skip(1)
                .filter_map(|rest| rest.split_once(')'))
                .map(|(name, _)| name.to_owned()),
        );
    }
    assert!(!names.is_empty(), "no part {parts:?}");
    pages.into_iter().filter(|(name, _)| names.contains(name)).collect()
}

fn words(pages: &[(String, String)]) -> usize {
    pages.iter().map(|(_, text)| text.split_whitespace().count()).sum()
}

#[test]
fn the_book_seldom_has_phrases_that_hide_the_subject() {
    let pages = pages();
    let mut wrong = Vec::new();
    for (max, phrases) in SELDOM {
        let mut found = Vec::new();
        for (name, text) in &pages {
            let exempt =
                EXEMPT.iter().any(|(page, phrase)| page == name && phrases.contains(phrase));
            if exempt || name == "commands.md" || name == "SUMMARY.md" {
                continue;
            }
            for paragraph in paragraphs(text) {
                let paragraph = paragraph.to_lowercase();
                let count: usize =
                    phrases.iter().map(|phrase| count_word(&paragraph, phrase)).sum();
                found.extend((0..count).map(|_| format!("  {name}: {paragraph}")));
            }
        }
        if found.len() > *max {
            wrong.push(format!("{phrases:?}, at most {max}:\n{}", found.join("\n")));
        }
    }
    for (max, opening) in OPENINGS {
        let own = pages.iter().filter(|(name, _)| name != "commands.md");
        let starts =
            own.flat_map(|(_, text)| sentences(text)).filter(|sentence| sentence[0] == *opening);
        let found: Vec<String> = starts.map(|sentence| sentence.join(" ")).collect();
        if found.len() > *max {
            wrong.push(format!("{opening}, at most {max}:\n{}", found.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_book_and_its_sentences_are_short() {
    let mut book = pages();
    book.retain(|(name, _)| name != "README.md" && name != "SECURITY.md");
    let guides = pages_of(&["Start", "Guides"]);
    let (all, guided) = (words(&book), words(&guides));
    assert!(all <= BOOK_WORDS_MAX, "the book has {all} words");
    assert!(guided <= GUIDES_WORDS_MAX, "Start and Guides have {guided} words");
    for (name, text) in guides {
        let long = long_sentence(&text);
        assert!(
            long <= SENTENCE_WORDS_MAX,
            "{name}: one sentence in ten has more than {long} words"
        );
    }
}

#[test]
fn a_guide_ends_with_its_maturity_and_limitations() {
    let guides = pages_of(&["Guides"]);
    assert!(guides.len() > 20, "{} guides", guides.len());
    for (name, text) in guides {
        let last = text.rsplit("\n## ").next().unwrap_or_default();
        let mut lines = last.lines().filter(|line| !line.is_empty());
        assert_eq!(lines.next(), Some("Limitations"), "{name}: its last section");
        let maturity = ["tested", "experimental"]
            .map(|word| format!("> Maturity: **{word}** ([status](status.md#maturity))."));
        let first = lines.next().unwrap_or_default();
        assert!(maturity.iter().any(|line| line == first), "{name}: {first}");
        assert!(lines.all(|line| line.starts_with('>')), "{name}: limitations outside of the box");
    }
}

#[test]
fn sentences_are_those_of_the_prose() {
    let page = "# Of a title\n\nOne `a. b` [two](x.md). Three:\n\n- four\n  five\n\n> 1. six\n\n```text\nseven\n```\n| a |\n";
    let found: Vec<String> = sentences(page).iter().map(|words| words.join(" ")).collect();
    assert_eq!(found, ["One X [two].", "Three:", "four five", "1.", "six"]);
    assert_eq!(long_sentence(page), 3);
    assert_eq!(count_word("told, retold and told", "told"), 2);
}

#[test]
fn a_word_is_found_in_comments_and_messages_and_not_in_names() {
    assert!(has_word(&prose("x(); // the rank is told"), "told"));
    assert!(has_word(&prose("error(\"nobody told it\")"), "told"));
    assert!(!has_word(&prose("let told = retold(); // toldest"), "told"));
}
