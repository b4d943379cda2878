//! The names that a user reaches from `bonfire` are listed in one file, so that a change of the interface is seen.
//!
//! `BONFIRE_WRITE=1 cargo test -p bonfire-tests --test interface` writes `crates/bonfire/interface.txt` again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, UseTree, Visibility};

/// More names are more than a user can look through.
const NAMES_MAX: usize = 250;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn items(path: &Path) -> Vec<Item> {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    syn::parse_file(&text).expect("a source file parses").items
}

/// Whether an attribute takes an item out of the interface.
fn hides(attribute: &Attribute) -> bool {
    let text = match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        _ => return false,
    };
    (attribute.path().is_ident("cfg") && text == "test")
        || (attribute.path().is_ident("doc") && text == "hidden")
}

/// The names that a `use` brings into `path`.
fn used(tree: &UseTree, path: &str, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(tree) => used(&tree.tree, path, names),
        UseTree::Name(name) => drop(names.insert(format!("{path}::{}", name.ident))),
        UseTree::Rename(name) => drop(names.insert(format!("{path}::{}", name.rename))),
        UseTree::Group(group) => group.items.iter().for_each(|tree| used(tree, path, names)),
        UseTree::Glob(_) => panic!("{path} re-exports by `*`: name what is public"),
    }
}

/// Collects what is public in a module whose files are in `folder`.
fn collect(items: &[Item], folder: &Path, path: &str, names: &mut BTreeSet<String>) {
    for item in items {
        let (attributes, visibility, name) = match item {
            Item::Use(item) => (&item.attrs, &item.vis, None),
            Item::Mod(item) => (&item.attrs, &item.vis, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, &item.vis, Some(&item.sig.ident)),
            Item::Struct(item) => (&item.attrs, &item.vis, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, &item.vis, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, &item.vis, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, &item.vis, Some(&item.ident)),
            Item::Const(item) => (&item.attrs, &item.vis, Some(&item.ident)),
            _ => continue,
        };
        if !matches!(visibility, Visibility::Public(_)) || attributes.iter().any(hides) {
            continue;
        }
        match item {
            Item::Use(item) => used(&item.tree, path, names),
            Item::Mod(module) => {
                let path = format!("{path}::{}", module.ident);
                let below = folder.join(module.ident.to_string());
                match &module.content {
                    Some((_, content)) => collect(content, &below, &path, names),
                    None => {
                        collect(&self::items(&below.with_extension("rs")), &below, &path, names)
                    }
                }
            }
            _ => drop(names.insert(format!("{path}::{}", name.expect("an item has a name")))),
        }
    }
}

/// All names, those of the prelude among them.
fn interface() -> BTreeSet<String> {
    let folder = Path::new(ROOT).join("crates/bonfire/src");
    let mut names = BTreeSet::new();
    collect(&items(&folder.join("lib.rs")), &folder, "bonfire", &mut names);
    names
}

#[test]
fn the_interface_is_what_its_list_says() {
    let names = interface();
    let own = names.iter().filter(|name| !name.contains("::prelude::")).count();
    assert!(own <= NAMES_MAX, "{own} public names");
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    let path = Path::new(ROOT).join("crates/bonfire/interface.txt");
    if std::env::var_os("BONFIRE_WRITE").is_some() {
        fs::write(&path, &text).expect("the list can be written");
    }
    let listed = fs::read_to_string(&path).expect("the list is there");
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let added: Vec<_> = names.difference(&listed).collect();
    let removed: Vec<_> = listed.difference(&names).collect();
    assert!(
        added.is_empty() && removed.is_empty(),
        "public and not listed: {added:?}; listed and not public: {removed:?}; \
         BONFIRE_WRITE=1 cargo test -p bonfire-tests --test interface"
    );
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs" || end == "md") {
            found.push(path);
        }
    }
}

/// The imports of Bonfire's crates in a page, or in a source's documentation.
fn imports(path: &Path) -> Vec<UseTree> {
    let text = fs::read_to_string(path).expect("a file is text");
    let source = path.extension().is_some_and(|end| end == "rs");
    let shown = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let shown = if source { doc? } else { line };
        // What is hidden from the reader stands in for the facade.
        (!shown.trim_start().starts_with("# ") || !source).then_some(shown)
    });
    let text = shown.collect::<Vec<_>>().join("\n");
    let uses = text.split("use bonfire").skip(1);
    let uses = uses.filter_map(|rest| rest.split_once(';'));
    // Prose that happens to have these words does not parse.
    uses.filter_map(|(tree, _)| syn::parse_str(&format!("bonfire{tree}")).ok()).collect()
}

/// The paths that an import names; for one of all names, that of their module.
fn paths(tree: &UseTree, path: &str, found: &mut Vec<String>) {
    let joined = |name: &syn::Ident| format!("{path}::{name}");
    match tree {
        UseTree::Path(tree) => paths(&tree.tree, &joined(&tree.ident), found),
        UseTree::Name(name) if name.ident == "self" => found.push(path.to_owned()),
        UseTree::Name(name) => found.push(joined(&name.ident)),
        UseTree::Rename(name) => found.push(joined(&name.ident)),
        UseTree::Group(group) => group.items.iter().for_each(|tree| paths(tree, path, found)),
        UseTree::Glob(_) => found.push(path.to_owned()),
    }
}

#[test]
fn documentation_imports_what_users_have() {
    // Crates with readers of their own; the others are shown as a part of `bonfire`.
    let alone = [
        "bonfire_config",
        "bonfire_cuda",
        "bonfire_connect",
        "bonfire_plan",
        "bonfire_sys",
        "bonfire_testkit",
    ];
    let names = interface();
    let root = Path::new(ROOT);
    let mut texts = vec![root.join("README.md")];
    for folder in ["crates", "book/src"] {
        files(&root.join(folder), &mut texts);
    }
    let (mut count, mut unknown) = (0, Vec::new());
    for path in texts {
        let own = path.to_string_lossy().replace('-', "_");
        let mut found = Vec::new();
        for tree in imports(&path) {
            paths(&tree, "", &mut found);
        }
        // The engine of GPUs is shown without Burn, as its page says.
        found.retain(|_| !path.ends_with("gpu-collectives.md"));
        for name in found {
            let name = name.trim_start_matches("::");
            let (package, _) = name.split_once("::").unwrap_or((name, ""));
            let module = format!("{name}::");
            count += 1;
            let known = names.contains(name)
                || names.iter().any(|name| name.starts_with(&module))
                || (alone.contains(&package) && own.contains(package));
            if !known {
                unknown.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(count > 100, "{count} imports in the documentation");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}
