//! The layers of the workspace, read from the manifests and the sources.
//!
//! Imports go one way: plans and system calls know nobody, kernels know the driver, collectives between GPUs use
//! those, training uses collectives, and only programs use everything. One crate names Burn beside them and the
//! models of the self-test, so that a new version of it is one crate's work; two crates, the launches of kernels
//! and two files may use `unsafe`, so that an audit is short.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use proc_macro2::{TokenStream, TokenTree};

/// Which other crates of this workspace a crate may import.
enum Imports {
    /// These and no others.
    Only(&'static [&'static str]),
    /// A program or the facade: every library, from the facade down.
    Libraries,
}

/// Whether a crate may name Burn.
#[derive(PartialEq)]
enum Burn {
    Named,
    Unknown,
}

/// The layers: a crate that is not listed here has no place in the workspace yet.
const LAYERS: &[(&str, Imports, Burn)] = &[
    ("cubecl-llvm", Imports::Only(&[]), Burn::Unknown),
    (STAND_IN, Imports::Only(&[]), Burn::Unknown),
    ("bonfire-plan", Imports::Only(&[]), Burn::Unknown),
    ("bonfire-sys", Imports::Only(&[]), Burn::Unknown),
    ("bonfire-cuda", Imports::Only(&["bonfire-sys"]), Burn::Unknown),
    ("bonfire-kernels", Imports::Only(&["bonfire-cuda"]), Burn::Unknown),
    (LABORATORY, Imports::Only(&[]), Burn::Unknown),
    ("bonfire-connect", Imports::Only(&["bonfire-plan", "bonfire-sys"]), Burn::Unknown),
    (
        "bonfire-collective",
        Imports::Only(&["bonfire-plan", "bonfire-sys", "bonfire-connect"]),
        Burn::Unknown,
    ),
    (
        "bonfire-gpu",
        Imports::Only(&[
            "bonfire-plan",
            "bonfire-sys",
            "bonfire-connect",
            "bonfire-collective",
            "bonfire-cuda",
            "bonfire-kernels",
        ]),
        Burn::Unknown,
    ),
    (
        "bonfire-launch",
        Imports::Only(&["bonfire-plan", "bonfire-sys", "bonfire-collective"]),
        Burn::Unknown,
    ),
    ("bonfire-optim", Imports::Only(&["bonfire-plan", "bonfire-sys"]), Burn::Named),
    ("bonfire-layers", Imports::Only(&[]), Burn::Unknown),
    ("bonfire-checkpoint", Imports::Only(&["bonfire-plan", "bonfire-collective"]), Burn::Named),
    ("bonfire-config", Imports::Only(&["bonfire-plan"]), Burn::Unknown),
    (
        "bonfire-train",
        Imports::Only(&[
            "bonfire-plan",
            "bonfire-collective",
            "bonfire-gpu",
            "bonfire-launch",
            "bonfire-kernels",
            "bonfire-optim",
            "bonfire-layers",
            "bonfire-checkpoint",
        ]),
        Burn::Named,
    ),
    (
        "bonfire-parallel",
        Imports::Only(&[
            "bonfire-plan",
            "bonfire-collective",
            "bonfire-checkpoint",
            "bonfire-train",
        ]),
        Burn::Named,
    ),
    (
        "bonfire-learner",
        Imports::Only(&[
            "bonfire-collective",
            "bonfire-launch",
            "bonfire-checkpoint",
            "bonfire-train",
        ]),
        Burn::Named,
    ),
    (DATA, Imports::Only(&["bonfire-collective"]), Burn::Named),
    (
        "bonfire-report",
        Imports::Only(&[
            "bonfire-plan",
            "bonfire-collective",
            "bonfire-launch",
            "bonfire-checkpoint",
            "bonfire-train",
        ]),
        Burn::Named,
    ),
    // Its self-test trains.
    (
        "bonfire-cli",
        Imports::Only(&[
            "bonfire-plan",
            "bonfire-config",
            "bonfire-collective",
            "bonfire-gpu",
            "bonfire-launch",
            "bonfire-kernels",
            "bonfire-report",
            "bonfire-train",
        ]),
        Burn::Named,
    ),
    (
        TESTKIT,
        Imports::Only(&["bonfire-plan", "bonfire-sys", "bonfire-collective", "bonfire-launch"]),
        Burn::Unknown,
    ),
    ("bonfire", Imports::Libraries, Burn::Named),
    ("finetune", Imports::Only(&["bonfire", "vision"]), Burn::Named),
    ("gpt", Imports::Libraries, Burn::Named),
    ("tutorials", Imports::Libraries, Burn::Named),
    ("vision", Imports::Only(&["bonfire"]), Burn::Named),
    ("bonfire-tests", Imports::Libraries, Burn::Named),
    (BENCHES, Imports::Libraries, Burn::Named),
    ("book-listings", Imports::Libraries, Burn::Named),
];

/// What `Imports::Libraries` stands for.
const LIBRARIES: &[&str] = &[
    "bonfire",
    "bonfire-plan",
    "bonfire-sys",
    "bonfire-kernels",
    "bonfire-collective",
    "bonfire-gpu",
    "bonfire-launch",
    "bonfire-config",
    "bonfire-optim",
    "bonfire-checkpoint",
    "bonfire-train",
    "bonfire-parallel",
    "bonfire-learner",
    DATA,
    "bonfire-report",
];

/// Ranks and oracles for tests: every crate may use it in its tests, and nowhere else.
const TESTKIT: &str = "bonfire-testkit";

/// What programs train on: these crates use it in their tests, and know nothing of it elsewhere.
const DATA: &str = "bonfire-data";
const TESTED_WITH_DATA: [&str; 2] = ["bonfire-train", "bonfire-learner"];

/// Programs that measure, which nobody depends on: like tests, they may use it.
const BENCHES: &str = "bonfire-benches";

/// A simulated machine room. It takes the system's place in collectives and their tests, in builds of
/// its own alone.
const LABORATORY: &str = "bonfire-laboratory";

/// A CUDA driver on the CPU, loaded by name where there is none: nobody imports it.
const STAND_IN: &str = "cuda-stand-in";

/// Who may import the laboratory, and for which builds.
const LABORATORY_USERS: [&str; 2] = ["bonfire-connect", TESTKIT];
const LABORATORY_BUILD: &str = "cfg(laboratory)";

/// Where `unsafe` may stand: the folders of the audited crates, the files that hand raw memory to the
/// accelerator or to other processes, and the test tool that C calls.
const UNSAFE_PLACES: &[&str] = &[
    "crates/bonfire-sys/",
    "crates/bonfire-cuda/",
    "tests/cuda-stand-in/",
    "crates/bonfire-collective/src/rendezvous/descriptors.rs",
    "kernels/src/launch/",
    "crates/bonfire-train/src/reducer/readback/raw.rs",
];

/// One dependency, as a manifest declares it.
struct Import<'a> {
    importer: &'a str,
    imported: &'a str,
    kind: DependencyKind,
    /// The builds that it is for, if not all.
    target: Option<String>,
}

/// What is wrong with an import, given the names of all crates of the workspace.
fn import_fault(import: &Import<'_>, members: &[&str]) -> Option<String> {
    let Import { importer, imported, kind, ref target } = *import;
    let Some((_, imports, burn)) = LAYERS.iter().find(|(name, ..)| *name == importer) else {
        return Some(format!("{importer} has no entry in LAYERS: give it one"));
    };
    if (imported == "burn" || imported.starts_with("burn-")) && *burn == Burn::Unknown {
        return Some(format!(
            "{importer} names {imported}: what needs Burn belongs in bonfire-train"
        ));
    }
    if !members.contains(&imported) {
        return None;
    }
    if imported == TESTKIT {
        let is_right = kind == DependencyKind::Development || importer == BENCHES;
        return (!is_right).then(|| format!("{importer} imports {TESTKIT} outside its tests"));
    }
    // They measure what the examples train.
    if importer == BENCHES && imported == "vision" {
        return None;
    }
    if imported == DATA && TESTED_WITH_DATA.contains(&importer) {
        let is_right = kind == DependencyKind::Development;
        return (!is_right).then(|| format!("{importer} imports {DATA} outside its tests"));
    }
    if imported == LABORATORY {
        let is_apart = target.as_deref() == Some(LABORATORY_BUILD);
        let is_right = is_apart && LABORATORY_USERS.contains(&importer);
        return (!is_right).then(|| {
            format!("{importer} imports {LABORATORY} for other builds than {LABORATORY_BUILD}")
        });
    }
    let allowed = match imports {
        Imports::Only(names) => names,
        Imports::Libraries => LIBRARIES,
    };
    (!allowed.contains(&imported))
        .then(|| format!("{importer} must not import {imported}, only {allowed:?}"))
}

/// What is wrong with a source file, given its path from the root of the workspace.
fn unsafe_fault(path: &str, source: &str) -> Option<String> {
    let tokens = match TokenStream::from_str(source) {
        Ok(tokens) => tokens,
        Err(error) => return Some(format!("{path} is not Rust: {error}")),
    };
    if !names_unsafe(tokens) {
        return None;
    }
    if !UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
        return Some(format!("{path} uses unsafe, which belongs in one of {UNSAFE_PLACES:?}"));
    }
    (!source.contains("// SAFETY:"))
        .then(|| format!("{path} uses unsafe without a `// SAFETY:` comment that proves it"))
}

/// Whether the keyword stands anywhere in the code: comments and strings hold no tokens.
fn names_unsafe(tokens: TokenStream) -> bool {
    let mut pending = vec![tokens];
    while let Some(tokens) = pending.pop() {
        for token in tokens {
            match token {
                TokenTree::Group(group) => pending.push(group.stream()),
                TokenTree::Ident(word) if word == "unsafe" => return true,
                TokenTree::Ident(_) | TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
    false
}

/// The manifests of the workspace, without its dependencies: needs no network.
fn workspace() -> Metadata {
    MetadataCommand::new()
        .manifest_path("Cargo.toml")
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace")
}

/// The Rust sources below a folder, but for build products and hidden folders.
fn rust_sources(root: &Path) -> Vec<PathBuf> {
    let mut sources = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the workspace is readable") {
            let entry = entry.expect("a folder of the workspace is readable");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("the kind of an entry is known");
            if kind.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(entry.path());
            } else if kind.is_file() && name.ends_with(".rs") {
                sources.push(entry.path());
            }
        }
    }
    sources
}

#[test]
fn imports_go_one_way() {
    let metadata = workspace();
    let packages = metadata.workspace_packages();
    let members: Vec<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    assert!(members.contains(&"bonfire-plan"), "found {members:?}");
    let faults: Vec<String> = packages
        .iter()
        .flat_map(|package| {
            package.dependencies.iter().map(|dependency| Import {
                importer: package.name.as_str(),
                imported: &dependency.name,
                kind: dependency.kind,
                target: dependency.target.as_ref().map(ToString::to_string),
            })
        })
        .filter_map(|import| import_fault(&import, &members))
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn unsafe_stays_in_its_places() {
    let metadata = workspace();
    let root = metadata.workspace_root.as_std_path();
    let sources = rust_sources(root);
    assert!(sources.len() > 10, "only {} sources found", sources.len());
    let faults: Vec<String> = sources
        .iter()
        .filter_map(|source| {
            let path = source.strip_prefix(root).expect("sources are below the root");
            let text = std::fs::read_to_string(source).expect("a source is readable UTF-8");
            unsafe_fault(&path.to_string_lossy().replace('\\', "/"), &text)
        })
        .collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The verdict on one import, in a workspace of every crate that has a layer.
fn verdict(importer: &str, imported: &str, kind: DependencyKind) -> Option<String> {
    let members: Vec<&str> = LAYERS.iter().map(|(name, ..)| *name).collect();
    let import = Import { importer, imported, kind, target: None };
    import_fault(&import, &members)
}

#[test]
fn an_import_downwards_is_allowed() {
    for (importer, imported) in [
        ("bonfire-collective", "bonfire-sys"),
        ("bonfire-train", "bonfire-collective"),
        ("bonfire-train", "burn-autodiff"),
        ("bonfire", "bonfire-train"),
        ("gpt", "bonfire"),
        ("gpt", "burn"),
        ("bonfire-plan", "serde"),
    ] {
        let fault = verdict(importer, imported, DependencyKind::Normal);
        assert_eq!(fault, None, "{importer} -> {imported}");
    }
}

#[test]
fn an_import_upwards_or_sideways_is_a_fault() {
    for (importer, imported) in [
        ("bonfire-plan", "bonfire-sys"),
        ("bonfire-sys", "bonfire-plan"),
        ("bonfire-collective", "bonfire-train"),
        ("bonfire-train", "bonfire-sys"),
        ("bonfire-cli", "bonfire"),
        ("bonfire-train", "bonfire"),
        ("bonfire", "gpt"),
        ("stranger", "serde"),
    ] {
        for kind in [DependencyKind::Normal, DependencyKind::Development] {
            let fault = verdict(importer, imported, kind);
            assert!(fault.is_some(), "{importer} -> {imported} ({kind:?})");
        }
    }
}

#[test]
fn only_training_and_programs_name_burn() {
    for importer in ["bonfire-plan", "bonfire-collective", "bonfire-gpu", TESTKIT] {
        for imported in ["burn", "burn-tensor"] {
            let fault = verdict(importer, imported, DependencyKind::Normal);
            assert!(fault.is_some(), "{importer} -> {imported}");
        }
    }
}

#[test]
fn the_testkit_is_for_tests() {
    let by_kind = |kind| verdict("bonfire-collective", TESTKIT, kind);
    assert_eq!(by_kind(DependencyKind::Development), None);
    assert!(by_kind(DependencyKind::Normal).is_some());
    assert!(by_kind(DependencyKind::Build).is_some());
    assert!(verdict("gpt", TESTKIT, DependencyKind::Normal).is_some());
    assert_eq!(verdict(BENCHES, TESTKIT, DependencyKind::Normal), None);
}

#[test]
fn the_laboratory_is_in_no_other_build() {
    let by_target = |importer, target: Option<&str>| {
        let import = Import {
            importer,
            imported: LABORATORY,
            kind: DependencyKind::Normal,
            target: target.map(str::to_owned),
        };
        import_fault(&import, &[LABORATORY])
    };
    for importer in LABORATORY_USERS {
        assert_eq!(by_target(importer, Some(LABORATORY_BUILD)), None);
        assert!(by_target(importer, None).is_some());
        assert!(by_target(importer, Some("cfg(unix)")).is_some());
    }
    assert!(by_target("bonfire-train", Some(LABORATORY_BUILD)).is_some());
}

#[test]
fn unsafe_outside_its_places_is_a_fault() {
    for source in [
        "fn f() { unsafe { g() } }",
        "unsafe impl Send for S {}",
        "pub unsafe fn f() {}",
        "macro_rules! m { () => { unsafe { g() } } }",
        "#[unsafe(no_mangle)] fn f() {}",
        "// SAFETY: said, but in the wrong file.\nunsafe extern \"C\" {}",
    ] {
        let fault = unsafe_fault("crates/bonfire-collective/src/lib.rs", source);
        assert!(fault.is_some(), "{source}");
    }
}

#[test]
fn unsafe_in_its_place_needs_its_proof() {
    let bare = "fn f() { unsafe { g() } }";
    let proven = "fn f() {\n    // SAFETY: g has no preconditions.\n    unsafe { g() }\n}";
    for place in ["crates/bonfire-sys/src/region.rs", "kernels/src/launch/stream.rs"] {
        assert!(unsafe_fault(place, bare).is_some(), "{place}");
        assert_eq!(unsafe_fault(place, proven), None, "{place}");
    }
    assert!(unsafe_fault("kernels/src/reduce.rs", proven).is_some());
}

#[test]
fn the_word_unsafe_in_comments_and_text_is_no_fault() {
    let source = "#![forbid(unsafe_code)]\n/// No unsafe { here }.\nconst S: &str = \"unsafe {}\";";
    assert_eq!(unsafe_fault("crates/bonfire/src/lib.rs", source), None);
}
