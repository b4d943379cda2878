//! What the page "From one GPU to many" adds to a program is in listings, which are compiled and run.

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
    let page = read("../src/from-one-gpu-to-many.md");
    let blocks: Vec<&str> =
        page.split("```diff\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [own, learner] = blocks[..] else { panic!("the page has {} differences", blocks.len()) };
    for (difference, listing) in [(own, "data_loader"), (learner, "learner")] {
        assert!(difference.lines().any(|line| line.starts_with('+')));
        assert_in_listing(&after(difference), listing);
    }
}
