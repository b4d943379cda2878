//! What pages add to a program is in listings, which are compiled and run.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a difference after which a program is as it says; a line of dots leaves some out.
fn after(difference: &str) -> Vec<&str> {
    let kept = difference.lines().filter(|line| !line.starts_with('-'));
    kept.map(|line| line.get(1..).unwrap_or_default().trim_end()).collect()
}

/// That the lines are in the listing, one behind the other.
#[track_caller]
fn assert_in_listing(lines: &[&str], listing: &str) {
    let source = read(&format!("src/bin/{listing}.rs"));
    let mut rest = source.lines().filter(|line| !line.contains("ANCHOR"));
    let mut gap = true; // the difference may begin anywhere
    for line in lines {
        if line.trim() == "..." {
            gap = true;
            continue;
        }
        let found = if gap {
            rest.any(|candidate| candidate.trim() == line.trim())
        } else {
            rest.next().map(str::trim) == Some(line.trim())
        };
        assert!(found, "{listing}.rs has no `{line}` there");
        gap = false;
    }
}

#[test]
fn what_the_differences_lead_to_is_in_the_listings() {
    let pages = [("from-one-gpu-to-many", "data_loader"), ("before-and-after", "learner")];
    for (page, listing) in pages {
        let text = read(&format!("../src/{page}.md"));
        let rest = text.split_once("```diff\n").expect("the page has a difference").1;
        let (difference, _) = rest.split_once("```").expect("which has an end");
        assert!(!rest.contains("```diff"), "{page}.md has another difference");
        assert!(difference.lines().any(|line| line.starts_with('+')));
        assert_in_listing(&after(difference), listing);
    }
}
