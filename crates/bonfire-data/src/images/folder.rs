//! Pictures in folders, one folder per class, on disk or in a tar archive.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use super::archive::{Archive, Entry, Other, Place};
use super::{Picture, PictureError, Pictures};

/// The endings of pictures, in small letters.
const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// Pictures whose classes are the folders they lie in.
///
/// The classes are the names of the sub-folders, sorted, as in torchvision's `ImageFolder`. Pictures are the files
/// below them, at any depth, that end in `jpg`, `jpeg` or `png`, small or capital, sorted by path. Names that begin
/// with a dot are left aside, and so are links to folders below a class.
#[derive(Debug)]
pub struct ImageFolder {
    name: String,
    classes: Vec<String>,
    labels: Vec<usize>,
    files: Files,
}

#[derive(Debug)]
enum Files {
    OnDisk(Vec<PathBuf>),
    InArchive { archive: Archive, files: Vec<(PathBuf, Place)> },
}

/// The pictures of each class. Names of folders need not be text, and two may look alike as text.
type ByClass<F> = BTreeMap<OsString, Vec<F>>;

impl ImageFolder {
    /// Lists the pictures below a folder without reading them.
    ///
    /// # Errors
    /// [`PictureError::Unreadable`], [`PictureError::NoClasses`] or [`PictureError::EmptyClass`].
    pub fn open(root: impl AsRef<Path>) -> Result<Self, PictureError> {
        let root = root.as_ref();
        let mut by_class = ByClass::new();
        for path in visible(root)? {
            // Also through a link, as subsets of large data sets are made of them.
            if path.is_dir() {
                by_class.insert(file_name(&path).to_owned(), pictures_below(&path)?);
            }
        }
        let name = root.display().to_string();
        let all = flattened(&name, by_class)?;
        Ok(Self { name, classes: all.classes, labels: all.labels, files: Files::OnDisk(all.files) })
    }

    /// Lists the pictures below `folder`, a path in a tar archive (not a compressed one), which is
    /// read in place. An empty path is the archive's root. A link is the file that it names.
    ///
    /// # Errors
    /// [`PictureError::Unreadable`], [`PictureError::Compressed`], [`PictureError::Unlinked`],
    /// [`PictureError::NoClasses`] or [`PictureError::EmptyClass`].
    pub fn in_tar(
        archive: impl AsRef<Path>,
        folder: impl AsRef<Path>,
    ) -> Result<Self, PictureError> {
        let folder = folder.as_ref();
        let name = archive.as_ref().join(folder).display().to_string();
        let (archive, entries) = Archive::open(archive.as_ref())?;
        let mut by_class = ByClass::new();
        for Other { path, target } in archive.others() {
            let names = names_below(path, folder);
            // A class, or a picture; a link to a folder below a class is left aside, as on disk.
            if names.len() == 1 || (!names.is_empty() && is_picture(path)) {
                return Err(PictureError::Unlinked {
                    archive: name,
                    path: path.clone(),
                    target: target.clone().unwrap_or_default(),
                });
            }
        }
        for Entry { path, place } in entries {
            let names = names_below(&path, folder);
            let [class, .., _file] = &names[..] else {
                continue;
            };
            let files = by_class.entry(class.clone()).or_default();
            if is_picture(&path) {
                files.push((path, place));
            }
        }
        let all = flattened(&name, by_class)?;
        let files = all.files;
        Ok(Self {
            name,
            classes: all.classes,
            labels: all.labels,
            files: Files::InArchive { archive, files },
        })
    }

    /// Returns the path of a picture, in its archive if it is in one.
    ///
    /// # Panics
    /// If `index` is out of range.
    pub fn path(&self, index: usize) -> &Path {
        match &self.files {
            Files::OnDisk(files) => &files[index],
            Files::InArchive { files, .. } => &files[index].0,
        }
    }
}

impl Pictures for ImageFolder {
    fn name(&self) -> &str {
        &self.name
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self) -> &[usize] {
        &self.labels
    }

    fn picture(&self, index: usize) -> Result<Picture, PictureError> {
        let path = self.path(index);
        let encoded = match &self.files {
            Files::OnDisk(_) => fs::read(path).map_err(PictureError::unreadable(path))?,
            Files::InArchive { archive, files } => archive.read(files[index].1)?,
        };
        Picture::decode(&encoded, &path.display().to_string())
    }
}

struct Flattened<F> {
    classes: Vec<String>,
    labels: Vec<usize>,
    files: Vec<F>,
}

/// All files, sorted by class, then by path.
fn flattened<F: Ord>(name: &str, by_class: ByClass<F>) -> Result<Flattened<F>, PictureError> {
    if by_class.is_empty() {
        return Err(PictureError::NoClasses { name: name.to_owned() });
    }
    let mut all = Flattened { classes: Vec::new(), labels: Vec::new(), files: Vec::new() };
    for (label, (class, mut files)) in by_class.into_iter().enumerate() {
        if files.is_empty() {
            return Err(PictureError::EmptyClass { name: format!("{name}/{}", class.display()) });
        }
        files.sort();
        all.labels.extend(std::iter::repeat_n(label, files.len()));
        all.classes.push(class.to_string_lossy().into_owned());
        all.files.append(&mut files);
    }
    Ok(all)
}

fn pictures_below(class: &Path) -> Result<Vec<PathBuf>, PictureError> {
    let mut pictures = Vec::new();
    let mut open = vec![class.to_path_buf()];
    while let Some(folder) = open.pop() {
        for path in visible(&folder)? {
            // A link to a folder may lead round in a circle.
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else if is_picture(&path) {
                pictures.push(path);
            }
        }
    }
    Ok(pictures)
}

fn visible(folder: &Path) -> Result<Vec<PathBuf>, PictureError> {
    let entries = fs::read_dir(folder).map_err(PictureError::unreadable(folder))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(PictureError::unreadable(folder))?.path();
        if !is_hidden(file_name(&path)) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// The names from `folder` to a file of an archive; none if it lies elsewhere, or one is hidden.
fn names_below(path: &Path, folder: &Path) -> Vec<OsString> {
    let path = plain(path);
    let Ok(below) = path.strip_prefix(plain(folder)) else {
        return Vec::new();
    };
    if below.iter().any(is_hidden) {
        Vec::new()
    } else {
        below.iter().map(OsStr::to_owned).collect()
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

/// Normalizes `.` and the like, in which archives differ.
fn plain(path: &Path) -> PathBuf {
    let is_name = |part: &Component<'_>| matches!(part, Component::Normal(_));
    path.components().filter(is_name).collect()
}

fn is_picture(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        let extension = extension.to_string_lossy().to_lowercase();
        EXTENSIONS.contains(&extension.as_str())
    })
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

#[cfg(test)]
mod tests;
