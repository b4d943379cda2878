//! The names, shapes and types of the tensors of safetensors files. Nothing but their descriptions is read.
//!
//! A file begins with the length of its description, in eight bytes, the lowest first; the description is JSON. An index
//! of several files says which tensor is in which: <https://huggingface.co/docs/safetensors>.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bonfire_plan::DType;
use serde::Deserialize;

/// How many bytes a description may have, as in the format's reference reader.
const DESCRIPTION_BYTES_MAX: u64 = 100_000_000;

/// More elements than any tensor has; of fewer, no sum of bytes overflows.
const ELEMS_MAX: usize = 1 << 48;

/// What a folder of a model has, in the order in which it is looked for.
const NAMES: [&str; 2] = ["model.safetensors.index.json", "model.safetensors"];

pub(super) type Shape = (String, Vec<usize>, DType);

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
}

/// The tensors of a file, of all files of an index, or of a folder with either, sorted by name.
pub(super) fn read(path: &Path) -> Result<Vec<Shape>> {
    let path = if path.is_dir() { in_folder(path)? } else { path.to_owned() };
    let files = if path.extension().is_some_and(|ending| ending == "json") {
        indexed(&path)?
    } else {
        BTreeSet::from([path])
    };
    let mut shapes = Vec::new();
    for file in files {
        let read = described(&file).with_context(|| format!("cannot read {}", file.display()))?;
        shapes.extend(read);
    }
    shapes.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    Ok(shapes)
}

fn in_folder(folder: &Path) -> Result<PathBuf> {
    let paths = NAMES.iter().map(|name| folder.join(name));
    let Some(path) = paths.into_iter().find(|path| path.is_file()) else {
        let (folder, [index, file]) = (folder.display(), NAMES);
        bail!("{folder} has neither {index} nor {file}");
    };
    Ok(path)
}

fn indexed(index: &Path) -> Result<BTreeSet<PathBuf>> {
    let read = || -> Result<Index> { Ok(serde_json::from_str(&std::fs::read_to_string(index)?)?) };
    let Index { weight_map } =
        read().with_context(|| format!("cannot read {}", index.display()))?;
    let folder = index.parent().unwrap_or(Path::new(""));
    let files = weight_map.into_values();
    Ok(files.map(|name| folder.join(name)).collect())
}

fn described(path: &Path) -> Result<Vec<Shape>> {
    let mut file = File::open(path)?;
    let mut begin = [0; 8];
    file.read_exact(&mut begin).context("it is not a safetensors file")?;
    let len = u64::from_le_bytes(begin);
    if len > DESCRIPTION_BYTES_MAX {
        let mut more = Vec::new();
        file.take(24).read_to_end(&mut more)?;
        let begin = [&begin[..], &more].concat();
        let begin = String::from_utf8_lossy(&begin);
        // Most often a pointer of Git LFS, or a web page.
        bail!("it is not a safetensors file: it begins with {begin:?}");
    }
    let mut description = Vec::new();
    file.take(len).read_to_end(&mut description)?;
    let tensors: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&description).context("it is not a safetensors file")?;
    let tensors = tensors.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, value)| {
            let Tensor { dtype, shape } = serde_json::from_value(value)?;
            let elems = shape.iter().try_fold(1_usize, |elems, &dim| elems.checked_mul(dim));
            if elems.is_none_or(|elems| elems > ELEMS_MAX) {
                bail!("tensor {name} of shape {shape:?} has more than {ELEMS_MAX} elements");
            }
            let dtype = match dtype.as_str() {
                "F64" => DType::F64,
                "F32" => DType::F32,
                "F16" => DType::F16,
                "BF16" => DType::BF16,
                "I64" | "U64" => DType::I64,
                "I32" | "U32" => DType::I32,
                "I16" | "U16" => DType::I16,
                "BOOL" | "I8" | "U8" => DType::U8,
                // One byte, and nothing that is trained.
                other if other.starts_with("F8") => DType::U8,
                other => bail!("tensor {name} is of type {other}, which is not known"),
            };
            Ok((name, shape, dtype))
        })
        .collect()
}
