//! The packages of the workspace as users and a registry see them: what a build compiles because of Bonfire, under
//! which licences, and what can be published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use bonfire_testkit::is_full;
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// Crates of the default build that Burn would not have brought. Raise it only for what a training cannot do
/// without, and say so beside the dependency.
const CRATES_MAX: usize = 25;

/// Runs Cargo at the root of the workspace, without the network. A machine that only built and tested this workspace
/// lacks the sources of other features: `.ci/run` downloads them here, any other run of the tests skips.
fn cargo(arguments: &[&str]) -> Option<Output> {
    let run = |network: &[&str]| {
        Command::new(env!("CARGO"))
            .args(arguments)
            .args(network)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .output()
            .expect("cargo runs")
    };
    let mut output = run(&["--offline"]);
    // Cargo has no code for it: only its text says that it wanted the network.
    let lacks_sources = String::from_utf8_lossy(&output.stderr).contains("--offline");
    if !output.status.success() && lacks_sources {
        if !is_full() {
            println!("skipped: Cargo lacks crates; BONFIRE_TESTS=full downloads them");
            return None;
        }
        output = run(&[]);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    Some(output)
}

/// The crates of a build of the facade, each with those that it needs.
struct Tree(BTreeMap<String, BTreeSet<String>>);

impl Tree {
    /// That of the crate `bonfire` with these features alone, as a crate outside of the workspace has it.
    fn of(features: &[&str]) -> Option<Self> {
        let mut arguments = vec!["tree", "--locked", "--package", "bonfire"];
        arguments.extend(["--edges", "normal", "--prefix", "depth"]);
        arguments.extend(["--format", " {p}"]);
        arguments.extend(features);
        let output = cargo(&arguments)?;
        let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut path: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // `2 burn-core v0.22.1`
            let words: Vec<&str> = line.split(' ').take(3).collect();
            let [depth, name, version] = words[..] else {
                continue;
            };
            path.truncate(depth.parse().expect("a line begins with its depth"));
            let found = format!("{name} {version}");
            if let Some(parent) = path.last() {
                let parent = needs.get_mut(parent).expect("a parent comes first");
                parent.insert(found.clone());
            }
            needs.entry(found.clone()).or_default();
            path.push(found);
        }
        Some(Self(needs))
    }

    fn has(&self, name: &str) -> bool {
        self.0.keys().any(|found| found.starts_with(name))
    }

    /// What Burn's crates need, and they themselves.
    fn burns(&self) -> BTreeSet<&str> {
        let is_burns = |name: &&String| name.starts_with("burn ") || name.starts_with("burn-");
        let mut pending: Vec<&String> = self.0.keys().filter(is_burns).collect();
        let mut found = BTreeSet::new();
        while let Some(name) = pending.pop() {
            if found.insert(name.as_str()) {
                pending.extend(&self.0[name]);
            }
        }
        found
    }
}

#[test]
fn the_default_build_adds_few_crates_to_burns() {
    let tree = Tree::of(&[]).expect("a build of the workspace has its crates");
    let burns = tree.burns();
    assert!(burns.len() > 100, "Burn has {} crates", burns.len());
    let others = tree.0.keys().map(String::as_str);
    let added: Vec<&str> =
        others.filter(|name| !burns.contains(name) && !name.starts_with("bonfire")).collect();
    assert!(added.iter().any(|name| name.starts_with("clap ")), "{added:?}");
    let count = added.len();
    assert!(count <= CRATES_MAX, "{count} crates beside Burn's: {added:#?}");
}

#[test]
fn a_build_for_gpus_alone_leaves_the_cpu_backend_out() {
    let default = Tree::of(&[]).expect("a build of the workspace has its crates");
    assert!(default.has("burn-flex ") && !default.has("burn-wgpu "));
    for features in ["wgpu,weights,images", "cuda,weights,images"] {
        let Some(tree) = Tree::of(&["--no-default-features", "--features", features]) else {
            return;
        };
        assert!(tree.has("burn-cubecl "), "{features}");
        assert!(!tree.has("burn-flex "), "{features}");
    }
}

/// The packages of this workspace that are published, and the others.
fn packages() -> (Vec<Package>, Vec<Package>) {
    let metadata = MetadataCommand::new().manifest_path("Cargo.toml").no_deps().exec();
    let packages = metadata.expect("cargo metadata reads the workspace").packages;
    packages.into_iter().partition(|package| package.publish.is_none())
}

#[test]
fn published_packages_say_what_a_registry_shows() {
    let (published, _) = packages();
    assert!(published.iter().any(|package| package.name == "bonfire"));
    for package in published {
        let name = &package.name;
        assert!(package.description.is_some_and(|text| !text.ends_with('.')), "{name}");
        assert_eq!(package.license.as_deref(), Some("MIT OR Apache-2.0"), "{name}");
        assert!(package.rust_version.is_some(), "{name} has no rust-version");
        assert!((1..=5).contains(&package.keywords.len()), "{name} has no keywords");
        assert!(!package.categories.is_empty(), "{name} has no categories");
        assert!(package.readme.is_some(), "{name} has no readme");
        // What is behind a feature is on docs.rs only if the manifest asks for it.
        let default = package.features.get("default").cloned().unwrap_or_default();
        let shown = &package.metadata["docs"]["rs"]["features"];
        let is_library = package.targets.iter().any(cargo_metadata::Target::is_lib);
        let is_more = |feature: &&String| *feature != "default" && !default.contains(feature);
        if is_library && package.features.keys().any(|feature| is_more(&feature)) {
            assert!(shown.is_array(), "{name} has features, and no docs.rs metadata");
        }
    }
}

/// Cargo packs them in the order in which they can be published. A lock file of each would need the registry.
#[test]
fn published_packages_can_be_packed_and_need_none_that_are_not_published() {
    let (published, others) = packages();
    for package in &published {
        let needed = package.dependencies.iter();
        let needed = needed.filter(|needed| needed.kind != DependencyKind::Development);
        for needed in needed.filter(|needed| needed.path.is_some()) {
            let is_published = published.iter().any(|other| other.name == needed.name);
            assert!(is_published, "{} needs {}", package.name, needed.name);
        }
    }
    let mut arguments = vec!["package", "--workspace", "--no-verify", "--allow-dirty"];
    arguments.extend(["--exclude-lockfile", "--target-dir", env!("CARGO_TARGET_TMPDIR")]);
    for package in &others {
        arguments.extend(["--exclude", &package.name]);
    }
    let output = cargo(&arguments).expect("packing needs no other crates");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("   Packaging ").count(), published.len(), "{said}");
}

/// Licences that ask for no more than to be named.
const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0+WITH+LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "Unicode-3.0",
    "Zlib",
];

/// Others, after a look: three of Burn's and CubeCL's under MPL-2.0, which asks for changes to their own files, and
/// one whose licence is in a file (Apache-2.0).
const LOOKED_AT: [&str; 4] = ["buildid", "cfg_block", "colored", "option-ext"];

/// Whether all that a licence asks for is in the list: alternatives by `OR` or a slash, several by `AND`.
fn is_allowed(licence: &str) -> bool {
    let flat = |text: &str| {
        text.split(" OR ").any(|option| {
            let mut all = option.split(" AND ").map(str::trim);
            all.all(|name| name == "yes" || LICENCES.contains(&name))
        })
    };
    let spaced = licence.replace('/', " OR ").replace(" WITH ", "+WITH+");
    let mut text = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    // Brackets from the inside out.
    while let Some((before, behind)) = text.split_once(')') {
        let Some((before, inside)) = before.rsplit_once('(') else {
            return false;
        };
        let value = if flat(inside) { "yes" } else { "no" };
        text = format!("{before}{value}{behind}");
    }
    flat(&text)
}

#[test]
fn licences_of_everything_that_users_build_are_allowed() {
    assert!(is_allowed("(MIT OR GPL-3.0) AND Unicode-3.0") && is_allowed("GPL-3.0/MIT"));
    assert!(!is_allowed("MIT AND GPL-3.0") && !is_allowed("(GPL-3.0)") && !is_allowed(""));
    let mut arguments = vec!["tree", "--locked", "-p", "bonfire", "-p", "bonfire-cli"];
    arguments.extend(["--all-features", "--edges", "normal"]);
    arguments.extend(["--prefix", "none", "--format", "{p}|{l}|"]);
    let Some(output) = cargo(&arguments) else {
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (package, licence) = line.split_once('|').expect("a line has both");
        let licence = licence.split('|').next().unwrap_or_default();
        let name = package.split(' ').next().unwrap_or_default();
        let is_fine = is_allowed(licence) || LOOKED_AT.contains(&name);
        assert!(is_fine, "{package} has the licence {licence:?}: look at it");
        names.insert(name);
    }
    assert!(names.len() > 300, "{} crates", names.len());
    assert!(LOOKED_AT.iter().all(|name| names.contains(name)), "LOOKED_AT has one too many");
}

/// A program without tests would have an empty harness, linked with all of Burn; and Cargo looks for examples in a whole
/// library that has none.
#[test]
fn targets_have_a_harness_if_they_have_tests() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo runs");
    let packages = metadata.packages.iter();
    for target in packages.flat_map(|package| &package.targets) {
        let source = std::fs::read_to_string(&target.src_path).expect("a target has a file");
        let name = &target.name;
        if target.is_bin() {
            // Of a program in one file; the command's are in its modules.
            let has_tests = source.contains("#[test]") || name == "bonfire";
            assert_eq!(target.test, has_tests, "`test` of the program {name}");
        } else if target.is_lib() {
            let folder = target.src_path.parent().expect("a file is in a folder");
            let has_examples = has_examples(folder.as_std_path());
            assert_eq!(target.doctest, has_examples, "`doctest` of the library {name}");
        }
    }
}

/// Whether a comment of the documentation below a folder has a block of code.
fn has_examples(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).expect("a folder of sources can be read");
    entries.into_iter().any(|entry| {
        let path = entry.expect("a folder of sources can be read").path();
        if path.is_dir() {
            return has_examples(&path);
        }
        let is_block = |line: &str| {
            let line = line.trim_start();
            let line = line.strip_prefix("///").or(line.strip_prefix("//!"));
            line.is_some_and(|line| line.trim_start().starts_with("```"))
        };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        path.extension().is_some_and(|end| end == "rs") && text.lines().any(is_block)
    })
}
