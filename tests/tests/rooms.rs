//! The rooms of each crate, read from its sources: the modules at its root import one way, and no folder has more
//! entries than a stranger takes in at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::MetadataCommand;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, UseTree};

/// Modules of one folder.
const ENTRIES_MAX: usize = 14;

/// A crate as its sources show it.
#[derive(Default)]
struct Crate {
    /// The modules at the root.
    rooms: BTreeSet<String>,
    /// What the root re-exports, with the room that it is from.
    face: BTreeMap<String, String>,
    /// Who imports whom, with a file and the name that shows it.
    imports: BTreeMap<(String, String), String>,
}

impl Crate {
    /// Reads a crate from its root file on.
    fn read(root: &Path) -> Self {
        let mut found = Self::default();
        let file = parse(root);
        for item in kept(&file.items) {
            match item {
                Item::Mod(module) => {
                    found.rooms.insert(module.ident.to_string());
                }
                Item::Use(item) => leaves(&item.tree, &mut Vec::new(), &mut |path| {
                    let from = path.iter().find(|name| !matches!(&***name, "crate" | "self"));
                    if let (Some(room), Some(name)) = (from, path.last()) {
                        found.face.insert(name.clone(), room.clone());
                    }
                }),
                _ => {}
            }
        }
        // A name at the root that is no room's: of another crate, or defined there.
        let rooms = found.rooms.clone();
        found.face.retain(|_, room| rooms.contains(room));
        let folder = root.parent().expect("a file is in a folder");
        found.walk(&file.items, folder, folder, &[]);
        found
    }

    /// Goes through the modules below one whose items are given, whose files are in `folder`.
    fn walk(&mut self, items: &[Item], src: &Path, folder: &Path, path: &[String]) {
        for item in kept(items) {
            let Item::Mod(module) = item else { continue };
            let name = module.ident.to_string();
            let path: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            if let Some((_, items)) = &module.content {
                self.walk(items, src, &folder.join(&name), &path);
                continue;
            }
            let Some(file) = file_of(module, folder) else {
                continue;
            };
            let parsed = parse(&file);
            let shown = file.strip_prefix(src).unwrap_or(&file).display().to_string();
            let mut names = Names { path: path.clone(), found: BTreeSet::new() };
            for item in kept(&parsed.items) {
                names.visit_item(item);
            }
            for name in names.found {
                let room = if self.rooms.contains(&name) {
                    name.clone()
                } else if let Some(room) = self.face.get(&name) {
                    room.clone()
                } else {
                    continue;
                };
                if room != path[0] {
                    self.imports
                        .entry((path[0].clone(), room))
                        .or_insert_with(|| format!("{shown} names {name}"));
                }
            }
            let below = if file.ends_with("mod.rs") {
                file.parent().expect("a file is in a folder").to_path_buf()
            } else {
                file.with_extension("")
            };
            self.walk(&parsed.items, src, &below, &path);
        }
    }

    /// The imports that are part of a circle.
    fn circles(&self) -> Vec<String> {
        let reaches = |from: &str, to: &str| {
            let mut seen = BTreeSet::from([from]);
            let mut pending = vec![from];
            while let Some(room) = pending.pop() {
                for (importer, imported) in self.imports.keys() {
                    if importer == room && imported == to {
                        return true;
                    }
                    if importer == room && seen.insert(imported) {
                        pending.push(imported);
                    }
                }
            }
            false
        };
        let tied = self.imports.iter().filter(|((from, to), _)| reaches(to, from));
        tied.map(|((from, to), why)| format!("{from} -> {to}: {why}")).collect()
    }
}

/// The names at the root of the crate that the code of one module uses.
struct Names {
    /// The module.
    path: Vec<String>,
    found: BTreeSet<String>,
}

impl Names {
    /// Takes a path such as `super::super::a::B`, as seen from the module.
    fn path(&mut self, names: &[String]) {
        let mut names = names.iter().peekable();
        let mut at = match names.peek().map(|name| name.as_str()) {
            Some("crate") => 0,
            Some("super") => self.path.len(),
            _ => return,
        };
        if at == 0 {
            names.next();
        }
        while names.next_if(|name| *name == "super").is_some() {
            at = at.saturating_sub(1);
        }
        if at == 0 {
            self.found.extend(names.next().cloned());
        }
    }

    /// Takes the paths in the arguments of a macro, which are not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut names: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if names.is_empty() || colons == 2 => {
                    names.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && colons < 2 => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) => {
                    self.path(&names);
                    names = vec![name.to_string()];
                    colons = 0;
                    continue;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            self.path(&names);
            names.clear();
            colons = 0;
        }
        self.path(&names);
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.path.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.path.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        leaves(&item.tree, &mut Vec::new(), &mut |path| self.path(path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.path(&names.collect::<Vec<_>>());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

/// Calls `leaf` with each whole path of a tree of imports.
fn leaves(tree: &UseTree, path: &mut Vec<String>, leaf: &mut impl FnMut(&[String])) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            leaves(&step.tree, path, leaf);
            path.pop();
        }
        UseTree::Name(name) => {
            path.push(name.ident.to_string());
            leaf(path);
            path.pop();
        }
        UseTree::Rename(name) => {
            path.push(name.ident.to_string());
            leaf(path);
            path.pop();
        }
        UseTree::Glob(_) => leaf(path),
        UseTree::Group(group) => {
            for tree in &group.items {
                leaves(tree, path, leaf);
            }
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether something is for tests alone.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.meta.require_list();
        attribute.path().is_ident("cfg")
            && condition.is_ok_and(|list| {
                let words = list.tokens.to_string().replace(' ', "");
                words == "test" || words.starts_with("all(test,")
            })
    })
}

/// The items that are not for tests alone.
fn kept(items: &[Item]) -> impl Iterator<Item = &Item> {
    items.iter().filter(|item| !is_test(attributes(item)))
}

/// Where the code of a module is; `None` where a build does not have it.
fn file_of(module: &ItemMod, folder: &Path) -> Option<PathBuf> {
    let named = module.attrs.iter().find_map(|attribute| {
        let value = attribute.meta.require_name_value().ok()?;
        let syn::Expr::Lit(literal) = &value.value else {
            return None;
        };
        match &literal.lit {
            syn::Lit::Str(path) if value.path.is_ident("path") => Some(folder.join(path.value())),
            _ => None,
        }
    });
    let name = module.ident.to_string();
    let candidates =
        [named, Some(folder.join(format!("{name}.rs"))), Some(folder.join(&name).join("mod.rs"))];
    candidates.into_iter().flatten().find(|path| path.exists())
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn parse(file: &Path) -> File {
    syn::parse_file(&read(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The roots of the libraries and programs of the workspace, with the names of their crates.
fn roots() -> Vec<(String, PathBuf)> {
    let metadata = MetadataCommand::new()
        .manifest_path("Cargo.toml")
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace");
    let mut roots = Vec::new();
    for package in metadata.workspace_packages() {
        let folder = package.manifest_path.parent().expect("a manifest is in a folder");
        let all = ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
        let root = all.into_iter().find(|root| root.exists());
        roots.extend(root.map(|root| (package.name.to_string(), root.into_std_path_buf())));
    }
    roots
}

#[test]
fn rooms_import_one_way() {
    let mut faults = Vec::new();
    for (name, root) in roots() {
        let circles = Crate::read(&root).circles();
        faults.extend(circles.iter().map(|import| format!("{name}: {import}")));
    }
    assert!(faults.is_empty(), "these imports close circles:\n{}", faults.join("\n"));
}

#[test]
fn folders_are_small() {
    let mut faults = Vec::new();
    for (_, root) in roots() {
        let mut folders = vec![root.parent().expect("a file is in a folder").to_path_buf()];
        while let Some(folder) = folders.pop() {
            let mut entries = BTreeSet::new();
            for entry in std::fs::read_dir(&folder).expect("a folder of the workspace is readable")
            {
                let path = entry.expect("a folder of the workspace is readable").path();
                entries.extend(path.file_stem().map(|name| name.to_os_string()));
                if path.is_dir() && !path.ends_with("tests") {
                    folders.push(path);
                }
            }
            // The module of a folder is in it as a file and as a folder: one entry.
            for apart in ["lib", "main", "tests"] {
                entries.remove(std::ffi::OsStr::new(apart));
            }
            if entries.len() > ENTRIES_MAX {
                faults.push(format!("{}: {} entries", folder.display(), entries.len()));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// A crate of the files that are given by name.
fn crate_of(files: &[(&str, &str)]) -> Crate {
    let folder = tempfile::tempdir().expect("a folder for a crate");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    Crate::read(&folder.path().join("lib.rs"))
}

#[test]
fn a_circle_is_found_wherever_it_is_named() {
    let root = "mod a;\nmod b;\npub use b::B;\n";
    for tie in [
        "use crate::b::B;",
        "use crate::{B as Other};",
        "fn f() { crate::b::g() }",
        "fn f() -> super::B { todo!() }",
        "fn f() { println!(\"{}\", 1 + crate::b::C) }",
        "mod inner { use super::super::B; }",
        "#[cfg(not(test))]\nuse crate::b::B;",
    ] {
        let made = crate_of(&[("lib.rs", root), ("a.rs", tie), ("b.rs", "use crate::a;")]);
        assert_eq!(made.circles().len(), 2, "{tie}");
    }
    let files = [("lib.rs", root), ("a.rs", "mod c;"), ("a/c.rs", "use super::super::b;")];
    let below = crate_of(&[&files[..], &[("b.rs", "use crate::a;")]].concat());
    assert_eq!(below.circles().len(), 2, "in a module of the room");
}

#[test]
fn one_way_is_no_circle_and_tests_may_look_everywhere() {
    let root = "mod a;\nmod b;\npub use b::B;\n";
    for harmless in [
        "use std::b::B;",
        "// use crate::b;",
        "#[cfg(test)]\nmod tests { use crate::b::B; }",
        "#[cfg(test)]\nuse crate::b::B;",
        "use super::a;",
        "mod inner { use super::b; }",
    ] {
        let made = crate_of(&[("lib.rs", root), ("a.rs", harmless), ("b.rs", "use crate::a;")]);
        assert_eq!(made.circles(), [""; 0], "{harmless}");
    }
}
