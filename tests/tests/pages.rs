//! The book's lists are what the sources and the manifests say, and its commands name what there is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bonfire_testkit::{CommandLine, command_lines};
use cargo_metadata::{Metadata, MetadataCommand, Package};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Crates of tests alone, whose variables no user sets.
const TESTS: [&str; 3] = ["bonfire-testkit", "bonfire-laboratory", "cuda-stand-in"];

/// Between parts of one program, or for its build and its tests: for nobody to set.
const INTERNAL: [&str; 3] = ["BONFIRE_SELFTEST_NOTICES", "BONFIRE_VERSION", "BONFIRE_WRITE"];

fn workspace() -> Metadata {
    let metadata = MetadataCommand::new().manifest_path("Cargo.toml").no_deps().exec();
    metadata.expect("cargo metadata reads the workspace")
}

fn page(name: &str) -> String {
    let path = Path::new(ROOT).join("book/src").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All names of variables in a text: `BONFIRE_` and capitals.
fn variables(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_uppercase() || c == '_';
    let names = text.match_indices("BONFIRE_").map(|(at, _)| {
        let rest = &text[at..];
        &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
    });
    // `BONFIRE__...` is a key of the configuration; `BONFIRE_*` stands for all.
    let own = names.filter(|name| !name.starts_with("BONFIRE__") && *name != "BONFIRE_");
    own.filter(|name| !name.starts_with("BONFIRE_TEST")).map(str::to_owned).collect()
}

/// Quoted names in the sources below a folder, but for the modules of tests.
fn find_variables(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources can be read") {
        let path = entry.expect("a folder of sources can be read").path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                find_variables(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source is text");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            found.extend(code.split('"').skip(1).step_by(2).flat_map(variables));
        }
    }
}

#[test]
fn the_variables_of_the_page_are_those_of_the_sources() {
    let mut read = BTreeSet::new();
    for package in workspace().packages {
        if package.publish.is_none() && !TESTS.contains(&package.name.as_str()) {
            let folder = package.manifest_path.parent().expect("a manifest is in a folder");
            find_variables(&folder.join("src").into_std_path_buf(), &mut read);
        }
    }
    read.retain(|name| !INTERNAL.contains(&name.as_str()));
    let listed = variables(&page("launching.md"));
    let missing: Vec<_> = read.difference(&listed).collect();
    assert!(missing.is_empty(), "launching.md does not explain {missing:?}");
    let stale: Vec<_> = listed.difference(&read).collect();
    assert!(stale.is_empty(), "no crate reads {stale:?} of launching.md");
}

#[test]
fn the_features_of_the_page_are_those_of_the_crate() {
    let packages = workspace().packages;
    let facade = packages.iter().find(|package| package.name == "bonfire");
    let features = facade.expect("there is a facade").features.keys();
    let real: BTreeSet<&str> =
        features.map(String::as_str).filter(|name| *name != "default").collect();
    let text = page("own-crate.md");
    let table = text.split("## Features").nth(1).expect("the page has the table");
    let rows = table.split("\n## ").next().unwrap_or_default().lines();
    let listed: BTreeSet<&str> = rows
        .filter_map(|row| row.strip_prefix("| `"))
        .filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    assert_eq!(listed, real);
}

#[test]
fn places_that_pages_name_are_there() {
    let pages = ["CONTRIBUTING.md", "SECURITY.md", "book/src/architecture.md"];
    let folders = ["crates/", "book/", "tests/", "benches/", "examples/", "kernels/", ".ci/"];
    let mut count = 0;
    for name in pages {
        let text = fs::read_to_string(Path::new(ROOT).join(name)).expect("the page can be read");
        for span in text.split('`').skip(1).step_by(2) {
            if folders.iter().any(|folder| span.starts_with(folder)) && !span.contains(' ') {
                assert!(Path::new(ROOT).join(span).exists(), "{name}: {span}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} places");
}

/// What is wrong with a command of Cargo's.
fn fault(line: &CommandLine, packages: &[Package]) -> Option<String> {
    let own: Vec<&String> = line.words.iter().take_while(|word| *word != "--").collect();
    let values = |flag: &str| -> Vec<&str> {
        let pairs = own.windows(2).filter(|pair| pair[0] == flag);
        pairs.map(|pair| pair[1].as_str()).collect()
    };
    let mut chosen: Vec<&Package> = Vec::new();
    for name in values("-p") {
        match packages.iter().find(|package| package.name == name) {
            Some(package) => chosen.push(package),
            None => return Some(format!("there is no package {name}")),
        }
    }
    for path in values("--path") {
        if !Path::new(ROOT).join(path).join("Cargo.toml").exists() {
            return Some(format!("there is no package in {path}"));
        }
    }
    if chosen.is_empty() {
        return None;
    }
    for (flag, kind) in [("--bin", "bin"), ("--test", "test"), ("--example", "example")] {
        for name in values(flag) {
            let mut targets = chosen.iter().flat_map(|package| &package.targets);
            if !targets.any(|target| {
                target.name == name && target.kind.iter().any(|k| k.to_string() == kind)
            }) {
                return Some(format!("none of the packages has a {kind} {name}"));
            }
        }
    }
    for feature in values("--features").iter().flat_map(|list| list.split(',')) {
        if !chosen.iter().any(|package| package.features.contains_key(feature)) {
            return Some(format!("none of the packages has a feature {feature}"));
        }
    }
    None
}

#[test]
fn cargos_commands_name_what_there_is() {
    let packages = workspace().packages;
    let mut count = 0;
    for line in command_lines() {
        if line.words[0] == "cargo" {
            let fault = fault(&line, &packages);
            assert_eq!(fault, None, "{}: {}", line.page, line.words.join(" "));
            count += 1;
        }
    }
    assert!(count > 30, "the pages have {count} commands");
}

#[test]
fn a_command_that_names_what_is_not_there_is_a_fault() {
    let packages = workspace().packages;
    let wrong = |command: &str| {
        let words = command.split(' ').map(str::to_owned).collect();
        let page = String::new();
        fault(&CommandLine { page, words }, &packages)
    };
    assert_eq!(wrong("cargo run -p gpt --features cuda -- --bin x"), None);
    for command in [
        "cargo run -p gtp",
        "cargo run -p tutorials --bin lunch",
        "cargo test -p bonfire-tests --test layer",
        "cargo run -p gpt --features cuda,tpu",
        "cargo install --path crates/cli",
    ] {
        assert!(wrong(command).is_some(), "{command}");
    }
}
