//! The code in the book's pages is that of programs that are built and run, so that it can be read where the pages are.
//!
//! A comment before a block of code names its file, as a path from the page, and the parts of it that the block has:
//!
//! ```text
//! <!-- listing ../listings/src/bin/train.rs imports model -->
//! ```
//!
//! A part is what lies between `ANCHOR: NAME` and `ANCHOR_END: NAME`; without one the block is the whole file.
//! `BONFIRE_WRITE=1 cargo test -p bonfire-tests --test listings` writes the blocks anew.

use std::fs;
use std::path::{Path, PathBuf};

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../book/src");

/// What stands between the marks of a part, without the marks of others, moved to the left as far as it goes.
fn part(text: &str, name: &str) -> String {
    let marked = |line: &str, mark: &str| line.trim_end().ends_with(&format!("{mark}: {name}"));
    let inside = text.lines().skip_while(|line| !marked(line, "ANCHOR"));
    let inside = inside
        .skip(1)
        .take_while(|line| !marked(line, "ANCHOR_END"));
    let lines: Vec<&str> = inside.filter(|line| !line.contains("ANCHOR")).collect();
    let indents = lines.iter().filter(|line| !line.is_empty());
    let indents = indents.map(|line| line.len() - line.trim_start().len());
    let indent = indents.min().unwrap_or(0);
    let moved = lines
        .iter()
        .map(|line| line.get(indent..).unwrap_or_default());
    moved.map(|line| format!("{line}\n")).collect()
}

/// The code that a mark asks for.
fn listing(mark: &str) -> String {
    let mut words = mark.split(' ');
    let path = Path::new(BOOK).join(words.next().expect("a mark names a file"));
    let text =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts: Vec<String> = words.map(|name| part(&text, name)).collect();
    assert!(
        parts.iter().all(|part| !part.is_empty()),
        "there is no such part: {mark}"
    );
    if parts.is_empty() {
        text
    } else {
        parts.join("\n")
    }
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
        let fence = lines
            .next()
            .filter(|fence| fence.trim_start().starts_with("```"));
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
        assert!(
            !page.contains("{{#include"),
            "{}: code is shown only by mdBook",
            path.display()
        );
    }
    assert!(count > 40, "{count} listings");
}
