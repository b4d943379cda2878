//! The code in the book's pages is that of programs that are built and run, so that it can be read where the pages are.
//!
//! A comment before a block of code names its file, as a path from the page, and the parts of it that the block has:
//!
//! ```text
//! <!-- listing ../listings/src/bin/train.rs imports model -->
//! ```
//!
//! A part is what lies between `ANCHOR: NAME` and `ANCHOR_END: NAME`; without one the block is the whole file.
//! `BONFIRE_WRITE=1 cargo test -p bonfire-tests --test listings` writes the blocks again.
//!
//! A call in a table is looked for in the sources of programs, which are compiled; `fragments.rs` of the listings has those
//! that no other program has.

use std::fs;
use std::path::{Path, PathBuf};

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../book/src");

/// What stands between the marks of a part, without the marks of others, moved to the left as far as it goes.
fn part(text: &str, name: &str) -> String {
    let marked = |line: &str, mark: &str| line.trim_end().ends_with(&format!("{mark}: {name}"));
    let inside = text.lines().skip_while(|line| !marked(line, "ANCHOR"));
    let inside = inside.skip(1).take_while(|line| !marked(line, "ANCHOR_END"));
    let lines: Vec<&str> = inside.filter(|line| !line.contains("ANCHOR")).collect();
    let indents = lines.iter().filter(|line| !line.is_empty());
    let indents = indents.map(|line| line.len() - line.trim_start().len());
    let indent = indents.min().unwrap_or(0);
    let moved = lines.iter().map(|line| line.get(indent..).unwrap_or_default());
    moved.map(|line| format!("{line}\n")).collect()
}

/// The code that a mark asks for.
fn listing(mark: &str) -> String {
    let mut words = mark.split(' ');
    let path = Path::new(BOOK).join(words.next().expect("a mark names a file"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts: Vec<String> = words.map(|name| part(&text, name)).collect();
    assert!(parts.iter().all(|part| !part.is_empty()), "there is no such part: {mark}");
    if parts.is_empty() { text } else { parts.join("\n") }
}

/// A page with its listings as they should be, and how many it has.
fn filled(page: &str) -> (String, usize) {
    let (mut text, mut count) = (String::new(), 0);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += &format!("{line}\n");
        let mark = line.trim_start().strip_prefix("<!-- listing ");
        let Some(mark) = mark.and_then(|mark| mark.strip_suffix(" -->")) else {
            continue;
        };
        count += 1;
        let indent = &line[..line.len() - line.trim_start().len()];
        let fence = lines.next().filter(|fence| fence.trim_start().starts_with("```"));
        text += &format!("{}\n", fence.expect("code follows the mark of a listing"));
        for line in listing(mark).lines() {
            text += format!("{indent}{line}").trim_end();
            text += "\n";
        }
        let end = lines.by_ref().find(|line| line.trim() == "```");
        text += &format!("{}\n", end.expect("a block of code ends"));
    }
    (text, count)
}

fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(BOOK).expect("the book is there");
    let paths = entries.map(|entry| entry.expect("the book can be read").path());
    let pages = paths.filter(|path| path.extension().is_some_and(|end| end == "md"));
    pages.collect()
}

#[test]
fn pages_have_the_code_of_their_listings() {
    let write = std::env::var_os("BONFIRE_WRITE").is_some();
    let mut count = 0;
    for path in pages() {
        let page = fs::read_to_string(&path).expect("a page is text");
        let (wanted, listings) = filled(&page);
        count += listings;
        if write && wanted != page {
            fs::write(&path, wanted).expect("a page can be written");
        } else {
            assert!(
                wanted == page,
                "{} has other code than its listings: BONFIRE_WRITE=1 cargo test -p bonfire-tests --test listings",
                path.display()
            );
        }
        assert!(!page.contains("{{#include"), "{}: code is shown only by mdBook", path.display());
    }
    assert!(count > 40, "{count} listings");
}

/// Without white space, which lines of a program have elsewhere than a cell of a table.
fn flat(text: &str) -> String {
    text.split_whitespace().collect()
}

/// All Rust files below a folder of the repository.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder can be read") {
            let path = entry.expect("a folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// The calls in the tables of a page, but for columns of other libraries.
fn calls_in_tables(page: &str) -> Vec<String> {
    const FOREIGN: [&str; 5] = ["PyTorch", "accelerate", "DeepSpeed", "Lightning", "torchrun"];
    let mut calls = Vec::new();
    let mut ours: Vec<bool> = Vec::new();
    for line in page.lines() {
        if !line.starts_with('|') {
            ours.clear();
            continue;
        }
        // A bar in a cell is written with a backslash.
        let line = line.replace("\\|", "\u{1}");
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if ours.is_empty() {
            let is_ours = |cell: &&str| !FOREIGN.iter().any(|other| cell.starts_with(other));
            ours = cells.iter().map(is_ours).collect();
        }
        let cells = cells.iter().zip(&ours).filter(|(_, is_ours)| **is_ours);
        for (cell, _) in cells {
            let code = cell.split('`').skip(1).step_by(2);
            calls.extend(code.filter(|code| is_call(code)).map(|code| code.replace('\u{1}', "|")));
        }
    }
    calls
}

/// Whether it is a call as a program has it: not one with dots in place of arguments, not the message of an error, and
/// not a signature such as `value(tag, value)` or `Ddp::whole()`.
fn is_call(code: &str) -> bool {
    let Some((name, arguments)) = code.split_once('(') else {
        return false;
    };
    let plain = |text: &str, more: &str| {
        text.chars().all(|letter| letter.is_alphanumeric() || more.contains(letter))
    };
    let signature = plain(name, "_") && plain(arguments, "_ ,)");
    let method = plain(name, "_:") && arguments == ")";
    plain(name, "_.:<>!&= ")
        && !name.contains(": ")
        && !code.contains("..")
        && !signature
        && !method
}

#[test]
fn calls_in_the_tables_of_pages_are_those_of_programs() {
    let root = Path::new(BOOK).join("../..");
    let folders = ["book/listings", "examples", "tests"].map(|folder| root.join(folder));
    let files = folders.iter().flat_map(|folder| sources(folder));
    let text = |path: &PathBuf| fs::read_to_string(path).expect("a source is text");
    let compiled: String = files.map(|path| flat(&text(&path))).collect();
    let mut count = 0;
    for path in pages() {
        for call in calls_in_tables(&text(&path)) {
            count += 1;
            assert!(
                compiled.contains(&flat(&call)),
                "{}: no program has `{call}`: write it into book/listings/src/bin/fragments.rs",
                path.display()
            );
        }
    }
    assert!(count > 70, "{count} calls in tables");
}

#[test]
fn blocks_of_rust_are_listings() {
    for path in pages() {
        let page = fs::read_to_string(&path).expect("a page is text");
        let mut before = "";
        for line in page.lines() {
            let is_listing = before.trim_start().starts_with("<!-- listing ");
            assert!(
                is_listing || !line.trim_start().starts_with("```rust"),
                "{}: the block after {before:?} is of no program that is compiled",
                path.display()
            );
            before = line;
        }
    }
}

/// It is the listing of the pages for newcomers, too.
#[test]
fn the_first_program_of_readme_and_of_the_documentation_is_the_books() {
    let root = Path::new(BOOK).join("../..");
    let text = |path: &str| fs::read_to_string(root.join(path)).expect("a text");
    let block = |text: &str, fence: &str| {
        let lines = text.lines().skip_while(|line| *line != fence).skip(1);
        let lines = lines.take_while(|line| *line != "```");
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let library = text("crates/bonfire/src/lib.rs");
    let lines = library.lines().map_while(|line| line.strip_prefix("//!"));
    let documentation: Vec<&str> =
        lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let mark = "../listings/src/bin/first.rs program";
    let program = listing(mark);
    assert!(program.lines().count() <= 25, "{program}");
    assert_eq!(block(&text("README.md"), "```rust"), program);
    assert_eq!(block(&documentation.join("\n"), "```no_run"), program);
    for page in ["quick-start.md", "own-crate.md"] {
        let page = text(&format!("book/src/{page}"));
        let first = page.lines().find_map(|line| line.strip_prefix("<!-- listing "));
        assert_eq!(first, Some(format!("{mark} -->").as_str()));
    }
}
