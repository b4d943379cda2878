//! Gathers this repository's own text, so that the example trains without any download and the
//! installed binary works from any folder.
//!
//! Rust sources and Markdown of the workspace, in the order of their paths, each under a line with its name. Outside
//! the workspace (a packaged copy), there is only the example's own text.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folders of the workspace that hold text written for it.
const FOLDERS: [&str; 6] = ["benches", "book", "crates", "examples", "kernels", "tests"];

/// Folders inside those that hold something else: build output and the rendered book.
const SKIPPED: [&str; 3] = ["target", "book/book", "runs"];

fn main() -> io::Result<()> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = package.ancestors().nth(2).filter(|root| root.join("examples/gpt").is_dir());
    let root = workspace.unwrap_or(&package);
    let folders: Vec<PathBuf> = match workspace {
        Some(root) => FOLDERS.iter().map(|folder| root.join(folder)).collect(),
        None => vec![package.clone()],
    };

    let mut files = files_directly_in(root)?;
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        println!("cargo::rerun-if-changed={}", folder.display());
        files.extend(files_below(folder, root)?);
    }
    files.sort();

    let mut corpus = String::new();
    for path in &files {
        println!("cargo::rerun-if-changed={}", path.display());
        // Text that is not UTF-8 is not a source; leave it out.
        let Ok(text) = fs::read_to_string(path) else {
            continue;
        };
        corpus.push_str(&format!("// {}\n\n{}\n\n", name(path, root), text.trim()));
    }
    fs::write(PathBuf::from(variable("OUT_DIR")?).join("corpus.txt"), corpus)
}

fn files_below(folder: &Path, root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        if SKIPPED.iter().any(|skipped| name(&folder, root).ends_with(skipped)) {
            continue;
        }
        files.extend(files_directly_in(&folder)?);
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type()?.is_dir() && !hidden {
                open.push(entry.path());
            }
        }
    }
    Ok(files)
}

fn files_directly_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_text =
            path.extension().is_some_and(|extension| extension == "rs" || extension == "md");
        if is_text && path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// A path below the root, with slashes on every platform.
fn name(path: &Path, root: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

fn variable(name: &str) -> io::Result<String> {
    std::env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}
