//! What a user's build compiles because of Bonfire.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Crates of the default build that Burn would not have brought. Raise it only for what a training cannot do
/// without, and say so beside the dependency.
const CRATES_MAX: usize = 25;

/// The crates of a build of the facade, each with those that it needs.
struct Tree(BTreeMap<String, BTreeSet<String>>);

impl Tree {
    /// That of the crate `bonfire` with these features alone, as a crate outside of the workspace has it.
    fn of(features: &[&str]) -> Self {
        let output = Command::new(env!("CARGO"))
            .args("tree --offline --locked --package bonfire --edges normal".split(' '))
            .args(["--prefix", "depth", "--format", " {p}"])
            .args(features)
            .output()
            .expect("cargo runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
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
        Self(needs)
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
    let tree = Tree::of(&[]);
    let burns = tree.burns();
    assert!(burns.len() > 100, "Burn has {} crates", burns.len());
    let others = tree.0.keys().map(String::as_str);
    let added: Vec<&str> = others
        .filter(|name| !burns.contains(name) && !name.starts_with("bonfire"))
        .collect();
    assert!(
        added.iter().any(|name| name.starts_with("clap ")),
        "{added:?}"
    );
    let count = added.len();
    assert!(
        count <= CRATES_MAX,
        "{count} crates beside Burn's: {added:#?}"
    );
}

#[test]
fn a_build_for_gpus_alone_leaves_the_cpu_backend_out() {
    let default = Tree::of(&[]);
    assert!(default.has("burn-flex ") && !default.has("burn-wgpu "));
    for features in ["wgpu,weights,images", "cuda-cpp,weights,images"] {
        let tree = Tree::of(&["--no-default-features", "--features", features]);
        assert!(tree.has("burn-cubecl "), "{features}");
        assert!(!tree.has("burn-flex "), "{features}");
    }
}
