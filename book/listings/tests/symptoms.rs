//! The page of symptoms quotes what the crates say.

use std::fs;
use std::path::Path;

/// Shorter pieces between two `...` prove nothing.
const PIECE_BYTES_MIN: usize = 8;

/// All sources of the crates, with texts that go over several lines in one.
fn sources(folder: &Path, all: &mut String) {
    for entry in
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
    {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source is text");
            let mut lines = text.lines();
            while let Some(mut line) = lines.next() {
                while let Some(start) = line.strip_suffix('\\') {
                    all.push_str(start);
                    line = lines.next().unwrap_or_default().trim_start();
                }
                all.push_str(line);
                all.push('\n');
            }
        }
    }
}

#[test]
fn what_is_quoted_is_what_is_said() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = String::new();
    sources(&book.join("../../crates"), &mut all);
    let page =
        fs::read_to_string(book.join("../src/troubleshooting.md")).expect("the page is there");
    // What other programs say.
    let page = page.split("\n## Building").next().unwrap_or_default();
    let headings = page.lines().filter(|line| line.starts_with("### `"));
    let mut quoted = 0;
    for heading in headings {
        let text = heading.split('`').nth(1).unwrap_or_default();
        let pieces = text.split("...").map(str::trim);
        for piece in pieces.filter(|piece| piece.len() >= PIECE_BYTES_MIN) {
            assert!(all.contains(piece), "no source says `{piece}`: {heading}");
            quoted += 1;
        }
    }
    assert!(quoted > 40, "the page quotes {quoted} texts");
}
